"""How a leader is chosen: timeouts, pre-votes, votes, and stepping down.

Pure functions over ``State``. A member that hears no leader first asks whether it could win (pre-vote: nothing changes,
anywhere); only with a quorum of yes does it raise its term and ask for real votes. A member that hears a leader answers
neither, so one that was cut off and comes back disturbs nobody.
"""

from __future__ import annotations

from clutch.consensus import configuration as configurations
from clutch.consensus import replication
from clutch.consensus.state import Role, State
from clutch.wire.raft import RaftId, TimeoutNow, VoteReply, VoteRequest


def tick(s: State) -> None:
    """A follower or candidate grows impatient."""
    s.elapsed += 1
    if s.elapsed >= s.timeout and s.is_voter:
        campaign(s, pre=True, why=f"no leader heard for {s.elapsed} ticks")


def campaign(s: State, *, pre: bool, why: str, transfer: bool = False) -> None:
    """Ask every voter, oneself first."""
    s.elapsed = 0
    s.draw_timeout()
    s.leader = None
    if pre:
        s.move(Role.PRE_CANDIDATE, why)
        s.votes = {s.me: True}
        term = s.term + 1
    else:
        s.move(Role.CANDIDATE, why)
        s.votes = {}  # its own vote counts once the disk has it: see count_own_vote
        s.term += 1
        s.vote = s.me
        term = s.term
    for voter in s.log.configuration.voters:
        if voter != s.me:
            s.send_late(
                VoteRequest(s.group, s.me, voter, term, s.log.last_index, s.log.last_term, pre=pre, transfer=transfer)
            )
    _count(s)


def count_own_vote(s: State) -> None:
    """What was durable is told to the core: a candidate's own vote may now count."""
    durable = (s.durable.term, s.durable.vote) == (s.term, s.me)
    if s.role is Role.CANDIDATE and durable and s.me not in s.votes:
        s.votes[s.me] = True
        _count(s)


def become_follower(s: State, term: int, leader: RaftId | None, why: str) -> None:
    """Fall back, in a term that is at least one's own."""
    if term > s.term:
        s.term = term
        s.vote = None
    if s.role is Role.LEADER:
        replication.stop_leading(s)
    s.move(Role.FOLLOWER, why)
    s.leader = leader
    s.elapsed = 0
    s.votes = {}
    s.draw_timeout()


def on_vote_request(s: State, m: VoteRequest) -> None:
    """Grant or refuse. A pre-vote is for a term to come and leaves no trace."""
    log = s.log
    current = s.rules.is_up_to_date((log.last_term, log.last_index), (m.last_term, m.last_index))
    if m.pre:
        granted = m.term > s.term and current
        s.send_late(VoteReply(s.group, s.me, m.sender, m.term if granted else s.term, granted, pre=True))
        return
    granted = current and s.rules.may_vote(s.vote, s.leader, m)
    if granted:
        s.vote = m.sender
        s.elapsed = 0
    s.send_late(VoteReply(s.group, s.me, m.sender, s.term, granted))


def on_vote_reply(s: State, m: VoteReply) -> None:
    """Count it, if it answers the question that is being asked now."""
    asking_pre = s.role is Role.PRE_CANDIDATE
    if m.pre != asking_pre or s.role not in (Role.PRE_CANDIDATE, Role.CANDIDATE):
        return
    if m.granted and m.term != (s.term + 1 if asking_pre else s.term):
        return
    s.votes.setdefault(m.sender, m.granted)
    _count(s)


def on_timeout_now(s: State, m: TimeoutNow) -> None:
    """The leader hands over: stand at once, without asking first."""
    if s.is_voter and s.role is not Role.LEADER:
        campaign(s, pre=False, why=f"{m.sender} handed over", transfer=True)


def _count(s: State) -> None:
    result = configurations.election_result(s.votes, s.log.configuration.voters, s.quorum)
    if result is None:
        return
    if result is False:
        become_follower(s, s.term, None, "lost the election" if s.role is Role.CANDIDATE else "would not win")
    elif s.role is Role.PRE_CANDIDATE:
        campaign(s, pre=False, why="a quorum would vote for it")
    else:
        replication.start_leading(s)
