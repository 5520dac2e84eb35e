"""The door of the pure core: tick, step, propose, read - then ready, do what it says, advance.

It may know its log, its limits, ticks and a ``Random``. It never waits, reads a clock, touches a file or a socket.

The contract of ``Ready``, in this order (``member.Member`` keeps it, in the driver and in the simulation alike)::

    1. send ``early``                       these promise nothing; they may overlap with 2
    2. persist ``snapshot``, ``hard_state``, ``entries``, together and durably
    3. send ``late``                        these promise what 2 made durable
    4. apply ``snapshot``, then ``committed``; serve ``reads``; stream ``snapshots_wanted``
    5. ``advance(ready)``                   only now may ``ready`` be called again

Messages by who may send them in which role, and what a term above or below one's own means::

    message           term above                      same term                        term below
    VoteRequest pre   answer, keep the term           answer                           refuse, with one's own term
    VoteRequest       follow the term, then answer    answer                           refuse, with one's own term
    (both)            ignored while a leader is heard, unless that leader asked for it
    VoteReply         granted pre: count; else follow count, if it answers what is asked   ignore
    Append, Heartbeat,
    InstallSnapshot   follow the sender               follow the sender, take it       answer with one's own term
    others            follow the term, then take it   take it                          ignore
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from clutch.consensus import election, membership, reads, replication
from clutch.consensus.log import Log, size_of
from clutch.consensus.rules import Rules
from clutch.consensus.state import Limits, ReadState, Role, State
from clutch.wire.errors import BrokenInvariant, ClutchError, Corrupt, NotAllowed, Stale, TooLarge, Unavailable
from clutch.wire.raft import (
    Address,
    Append,
    AppendReply,
    Entry,
    EntryKind,
    Forward,
    HardState,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    MemberStatus,
    Message,
    RaftId,
    RaftMessage,
    ReadReply,
    ReadRequest,
    SnapshotMeta,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)

FROM_LEADER = (Append, Heartbeat, InstallSnapshot)
LEADER_ONLY = (AppendReply, HeartbeatReply, ReadRequest, Forward)

HANDLERS: dict[type[Message], Callable[[State, Any], None]] = {
    VoteRequest: election.on_vote_request,
    VoteReply: election.on_vote_reply,
    TimeoutNow: election.on_timeout_now,
    Append: replication.on_append,
    Heartbeat: replication.on_heartbeat,
    InstallSnapshot: replication.on_install,
    AppendReply: replication.on_append_reply,
    HeartbeatReply: replication.on_heartbeat_reply,
    ReadReply: reads.on_read_reply,
}


class Recovered(msgspec.Struct, frozen=True):
    """What a member's disk gives back at start: the only thing a member is ever made from."""

    hard_state: HardState
    snapshot: SnapshotMeta
    base: SnapshotMeta
    entries: list[Entry]


class Ready(msgspec.Struct, frozen=True):
    """What is to be done, in the order of the contract above."""

    early: list[RaftMessage]
    hard_state: HardState | None
    entries: list[Entry]
    snapshot: SnapshotMeta | None
    late: list[RaftMessage]
    committed: list[Entry]
    reads: list[ReadState]
    reads_failed: list[int]
    snapshots_wanted: list[tuple[RaftId, SnapshotMeta]]

    @property
    def must_sync(self) -> bool:
        return self.hard_state is not None or bool(self.entries) or self.snapshot is not None


class Raft:
    """One member of one group. Feed it, ask ``ready``, do, ``advance``."""

    def __init__(
        self,
        group: str,
        me: RaftId,
        recovered: Recovered,
        chance: Random,
        limits: Limits | None = None,
        rules: Rules | None = None,
    ) -> None:
        hard = recovered.hard_state
        last = recovered.entries[-1].index if recovered.entries else recovered.base.index
        if hard.commit > last:
            raise Corrupt(f"the log ends at {last} but {hard.commit} was committed", object=str(me))
        log = Log(recovered.snapshot, recovered.base, recovered.entries, last)
        log.commit_to(hard.commit)
        self.state = State(group, me, log, limits or Limits(), rules or Rules(), chance)
        self.state.term, self.state.vote, self.state.durable = hard.term, hard.vote, hard
        self._outstanding: Ready | None = None

    # ------------------------------------------------------------------------------------------------ in

    def tick(self) -> None:
        """A tick of the driver's clock has passed."""
        s = self.state
        if s.role is not Role.LEADER:
            election.tick(s)
        elif not replication.tick(s):
            election.become_follower(s, s.term, None, "lost touch with a quorum")

    def step(self, message: RaftMessage) -> None:
        """Take a message. Raises NotAllowed or Stale for one that is not meant for this life of this member."""
        s = self.state
        self._check(message)
        if message.term > s.term and not self._meet_higher_term(message):
            return
        if message.term < s.term:
            self._answer_lower_term(message)
            return
        if isinstance(message, FROM_LEADER):
            self._follow(message)
        handler = HANDLERS.get(type(message))
        if isinstance(message, LEADER_ONLY) and s.role is not Role.LEADER:
            return
        if handler is not None:
            handler(s, message)
        elif isinstance(message, ReadRequest):
            replication.note_eager(s, message.sender)
            reads.request(s, message.sender, message.context)
        elif isinstance(message, Forward):
            replication.note_eager(s, message.sender)
            self._take_forwarded(message)
        self._settle()

    def propose(self, data: bytes, key: str = "", since: int = 0) -> int:
        """The index the data will have if it is committed. Raises NotLeader, TooLarge or Unavailable."""
        s = self.state
        limits = s.limits
        if len(data) > limits.max_entry_bytes or len(key) > limits.max_key_bytes:
            raise TooLarge(
                f"an entry may have {limits.max_entry_bytes} bytes and a key {limits.max_key_bytes}; "
                f"this one has {len(data)} and {len(key)}",
                object=key or "entry",
                next_step="Put the bytes into a blob and a pointer into the log.",
            )
        membership.require_leader(s)
        entry = Entry(s.log.last_index + 1, s.term, EntryKind.DATA, data, key, since)
        size = size_of(entry)
        if s.transfer_to is not None:
            raise Unavailable("leadership is being handed over", object=str(s.me))
        if s.uncommitted_bytes and s.uncommitted_bytes + size > limits.max_uncommitted_bytes:
            raise Unavailable(f"{s.uncommitted_bytes} bytes wait to be committed", object=str(s.me))
        if s.log.size_bytes + size > limits.max_log_bytes:
            raise Unavailable("the log is full", object=s.group, next_step="Save a snapshot.")
        s.uncommitted_bytes += size
        replication.append(s, [entry])
        return entry.index

    def forward(self, data: bytes, key: str, since: int) -> bool:
        """Hand a proposal to the leader, if one is known."""
        s = self.state
        if s.leader is None or s.leader == s.me:
            return False
        s.send_early(Forward(s.group, s.me, s.leader, s.term, data, key, since))
        return True

    def read(self, context: int) -> None:
        """Ask for a read; ``context`` comes back in ``Ready.reads`` or ``reads_failed``, or is lost with a message."""
        reads.ask(self.state, context)

    def add_learner(self, address: Address) -> int:
        return membership.add_learner(self.state, address)

    def promote(self, member: RaftId) -> int:
        return membership.promote(self.state, member)

    def remove(self, member: RaftId) -> int:
        return membership.remove(self.state, member)

    def transfer(self, target: RaftId) -> None:
        membership.transfer(self.state, target)

    def compact(self, snapshot: SnapshotMeta) -> SnapshotMeta:
        """A snapshot of applied state is durable: forget most of the log before it. Returns where the log begins."""
        log, limits = self.state.log, self.state.limits
        keep_from = snapshot.index + 1
        kept = 0
        while keep_from - 1 > log.base.index and snapshot.index + 1 - keep_from < limits.keep_entries:
            kept += size_of(log.entries[keep_from - 2 - log.base.index])
            if kept > limits.keep_bytes:
                break
            keep_from -= 1
        log.compact(snapshot, keep_from)
        return log.base

    def report_snapshot(self, peer: RaftId, ok: bool) -> None:
        replication.installed(self.state.progress.get(peer), ok)

    def report_unreachable(self, peer: RaftId) -> None:
        progress = self.state.progress.get(peer)
        if progress is not None:
            progress.unreachable()

    def report_gone(self, peer: RaftId) -> None:
        """The connection to a peer broke. If it led, do not wait out the silence: its process has probably ended.

        A hint and no more: whoever stands too early asks first, and is refused by those who still hear the leader.
        """
        s = self.state
        if s.leader == peer and s.role is Role.FOLLOWER:
            s.elapsed = max(s.elapsed, s.limits.election_ticks)

    # ----------------------------------------------------------------------------------------------- out

    def ready(self) -> Ready | None:
        """What is to be done now, or None. It must be advanced before the next is asked for."""
        if self._outstanding is not None:
            raise BrokenInvariant("the last Ready was not advanced", object=str(self.state.me))
        s, log = self.state, self.state.log
        if s.role is Role.LEADER:
            reads.flush(s)
            replication.fill(s)
        entries = log.unstable()
        changed = (s.term, s.vote) != (s.durable.term, s.durable.vote)
        committed: list[Entry] = []
        if log.received is None and log.applied < log.commit:
            committed = log.between(log.applied + 1, log.commit + 1, s.limits.max_apply_bytes)
        persist = changed or bool(entries) or log.received is not None
        if not (persist or committed or s.early or s.late or s.reads_ready or s.reads_failed or s.snapshots_wanted):
            return None
        ready = Ready(
            early=s.early,
            hard_state=s.hard_state() if persist else None,
            entries=entries,
            snapshot=log.received,
            late=s.late,
            committed=committed,
            reads=s.reads_ready,
            reads_failed=s.reads_failed,
            snapshots_wanted=s.snapshots_wanted,
        )
        s.early, s.late, s.reads_ready, s.reads_failed, s.snapshots_wanted = [], [], [], [], []
        self._outstanding = ready
        return ready

    def take_early(self) -> list[RaftMessage]:
        """Messages that may leave while a Ready is still being persisted, so that a slow disk stops no heartbeat.

        A leader also sends what was proposed meanwhile: its followers' disks then work beside its own.
        """
        if self.state.role is Role.LEADER:
            reads.flush(self.state)
            replication.fill(self.state)
        taken, self.state.early = self.state.early, []
        return taken

    def advance(self, ready: Ready) -> None:
        """The Ready has been done."""
        if ready is not self._outstanding:
            raise BrokenInvariant("advance of a Ready that is not the last one", object=str(self.state.me))
        self._outstanding = None
        s, log = self.state, self.state.log
        if ready.hard_state is not None:
            s.durable = ready.hard_state
        if ready.snapshot is not None:
            log.applied = max(log.applied, ready.snapshot.index)
            if log.received == ready.snapshot:
                log.received = None
        if ready.entries:
            log.stable_to(ready.entries[-1].index, ready.entries[-1].term)
        if ready.committed:
            log.applied = max(log.applied, ready.committed[-1].index)
            if s.role is Role.LEADER:
                s.uncommitted_bytes = max(0, s.uncommitted_bytes - sum(size_of(e) for e in ready.committed))
        if s.role is Role.LEADER and ready.entries:
            replication.advance_commit(s)
        elif s.role is Role.CANDIDATE:
            election.count_own_vote(s)
        self._settle()

    def members(self) -> tuple[MemberStatus, ...]:
        """Every member, with its progress where this one leads."""
        s = self.state
        found = []
        for member in s.log.configuration.members:
            voter = member in s.log.configuration.voters
            progress = s.progress.get(member)
            if progress is not None:
                found.append(MemberStatus(member, voter, progress.match, progress.flow.value, progress.active))
            else:
                own = member == s.me
                found.append(
                    MemberStatus(member, voter, s.log.last_index if own else 0, s.role.value if own else "", own)
                )
        return tuple(found)

    # -------------------------------------------------------------------------------------------- inside

    def _check(self, message: RaftMessage) -> None:
        s = self.state
        if message.group != s.group:
            raise NotAllowed(f"a message of group {message.group} reached {s.group}", object=str(message.sender))
        if message.sender.generation != s.me.generation:
            raise Stale(
                f"a message of generation {message.sender.generation} reached {s.me}", object=str(message.sender)
            )
        if message.receiver != s.me or message.sender == s.me:
            raise Stale(f"a message for {message.receiver} reached {s.me}", object=str(message.sender))

    def _meet_higher_term(self, m: RaftMessage) -> bool:
        """Whether the message is still to be handled."""
        s = self.state
        if isinstance(m, VoteRequest):
            if s.hears_leader and not m.transfer:
                return False
            if m.pre:
                return True
        if isinstance(m, VoteReply) and m.pre and m.granted:
            return True
        leader = m.sender if isinstance(m, FROM_LEADER) else None
        election.become_follower(s, m.term, leader, f"{m.sender} is in term {m.term}")
        return True

    def _answer_lower_term(self, m: RaftMessage) -> None:
        """The sender is behind. Its leader must learn that, or a member ahead of it could never come back."""
        s = self.state
        if isinstance(m, FROM_LEADER):
            s.send_late(AppendReply(s.group, s.me, m.sender, s.term, 0, rejected=True))
        elif isinstance(m, VoteRequest):
            s.send_late(VoteReply(s.group, s.me, m.sender, s.term, False, pre=m.pre))

    def _follow(self, m: RaftMessage) -> None:
        s = self.state
        if s.role is Role.LEADER:
            raise BrokenInvariant(f"{m.sender} and {s.me} both lead term {s.term}", object=s.group)
        if s.role is not Role.FOLLOWER or s.leader != m.sender:
            election.become_follower(s, s.term, m.sender, f"{m.sender} leads term {s.term}")
        s.elapsed = 0

    def _take_forwarded(self, m: Forward) -> None:
        try:
            self.propose(m.data, m.key, m.since)
        except ClutchError:
            return  # its proposer asks again until its own deadline

    def _settle(self) -> None:
        if membership.leave_if_removed(self.state):
            election.become_follower(self.state, self.state.term, None, "it was removed from the group")
