"""How a leader makes its log everybody's: appends, answers, commits, heartbeats, and handing over.

Pure functions over ``State``. Appends are not sent when an entry is proposed but when the driver asks for what to do
(``fill``): everything proposed since goes out as one message per follower, which is what makes a burst cheap.
"""

from __future__ import annotations

from clutch.consensus import configuration as configurations
from clutch.consensus.log import size_of
from clutch.consensus.progress import Flow, Progress
from clutch.consensus.state import Role, State
from clutch.wire.errors import BrokenInvariant, Corrupt
from clutch.wire.raft import (
    Append,
    AppendReply,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    RaftId,
    TimeoutNow,
)

# ------------------------------------------------------------------------------------------------- the leader


def start_leading(s: State) -> None:
    """Won: know nobody's progress, and put an entry of this term into the log, which will commit all before it."""
    s.move(Role.LEADER, f"won the election of term {s.term}")
    s.leader = s.me
    s.elapsed = s.beat_elapsed = 0
    s.votes = {}
    s.change_after = s.log.last_index
    s.uncommitted_bytes = sum(size_of(e) for e in s.log.between(s.log.commit + 1, s.log.last_index + 1, 1 << 62))
    s.progress = {}
    meet_members(s)
    append(s, [Entry(s.log.last_index + 1, s.term, EntryKind.NOOP, b"")])


def stop_leading(s: State) -> None:
    """Forget the followers; reads under way fail and are asked again elsewhere."""
    s.progress = {}
    s.transfer_to = None
    s.reads_failed.extend(context for _, asker, context, _ in s.reads_confirming if asker == s.me)
    s.reads_failed.extend(context for asker, context in s.reads_waiting if asker == s.me)
    s.reads_confirming = []
    s.reads_waiting = []


def meet_members(s: State) -> None:
    """Follow exactly the members of the configuration in the log."""
    members = s.log.configuration.members
    limits = s.limits
    for member in members:
        if member != s.me and member not in s.progress:
            s.progress[member] = Progress(s.log.last_index + 1, limits.max_inflight_messages, limits.max_inflight_bytes)
            s.progress[member].active = True  # a grace period: it has had no chance to answer yet
    for member in [m for m in s.progress if m not in members]:
        del s.progress[member]


def append(s: State, entries: list[Entry]) -> None:
    s.log.append(entries)
    if any(e.kind == EntryKind.CONFIGURATION for e in entries):
        meet_members(s)


def advance_commit(s: State) -> bool:
    """Commit what a quorum holds, if the rule about terms allows it."""
    voters = s.log.configuration.voters
    own = s.rules.own_match(s.log.stable, s.log.last_index)
    matches = [own if v == s.me else s.progress[v].match for v in voters]
    index = configurations.committed_index(matches, s.quorum)
    if index <= s.log.commit or not s.rules.may_commit(s.log.term(index), s.term):
        return False
    s.log.commit_to(index)
    return True


def fill(s: State) -> None:
    """Send every follower what it lacks, as far as its window allows.

    Appends carry the commit index. On its own it is sent at once only to followers that wait for it (they forwarded a
    proposal or a read lately); the others hear it with the next append or at the next tick.
    """
    last, commit = s.log.last_index, s.log.commit
    for peer, progress in s.progress.items():
        news = progress.sent_commit < commit and progress.eager_ticks > 0
        if progress.next > last and not news:
            continue
        while send_append(s, peer, progress, even_empty=news):
            news = False


def send_append(s: State, peer: RaftId, progress: Progress, *, even_empty: bool) -> bool:
    """One append; True if another may follow at once."""
    if progress.paused:
        return False
    log = s.log
    prev_term = log.term(progress.next - 1)
    if prev_term is None:
        if progress.active:
            progress.needs_snapshot(log.snapshot.index)
            s.snapshots_wanted.append((peer, log.snapshot))
        return False
    entries: list[Entry] = []
    if progress.next <= log.last_index:
        entries = log.between(progress.next, log.last_index + 1, s.limits.max_append_bytes)
    if not entries and not even_empty:
        return False
    prev = progress.next - 1
    s.send_early(Append(s.group, s.me, peer, s.term, prev, prev_term, tuple(entries), log.commit))
    progress.sent_commit = log.commit
    progress.sent(prev + len(entries), sum(size_of(e) for e in entries))
    return bool(entries)


def beat(s: State) -> None:
    """Tell everybody who leads."""
    for peer, progress in s.progress.items():
        _beat_one(s, peer, progress)


def _beat_one(s: State, peer: RaftId, progress: Progress) -> None:
    """A heartbeat carries no commit index that the follower may not have."""
    commit = min(progress.match, s.log.commit)
    progress.sent_commit = max(progress.sent_commit, commit)
    s.send_early(Heartbeat(s.group, s.me, peer, s.term, commit, s.read_round))


def tick(s: State) -> bool:
    """A leader's tick. False when it has lost touch with a quorum and must step down."""
    s.elapsed += 1
    s.beat_elapsed += 1
    if s.elapsed >= s.limits.election_ticks:
        s.elapsed = 0
        s.transfer_to = None  # a hand-over that took this long has failed
        voters = s.log.configuration.voters
        alive = sum(1 for v in voters if v == s.me or s.progress[v].active)
        for progress in s.progress.values():
            progress.active = False
        if alive < s.quorum:
            return False
    due = s.beat_elapsed >= s.limits.heartbeat_ticks
    if due:
        s.beat_elapsed = 0
    for peer, progress in s.progress.items():
        progress.eager_ticks -= 1
        if due or progress.sent_commit < min(progress.match, s.log.commit):
            _beat_one(s, peer, progress)
    return True


def note_eager(s: State, peer: RaftId) -> None:
    """This follower's clients wait for commits."""
    progress = s.progress.get(peer)
    if progress is not None:
        progress.eager_ticks = 4 * s.limits.election_ticks


def on_append_reply(s: State, m: AppendReply) -> None:
    progress = s.progress.get(m.sender)
    if progress is None:
        return
    progress.active = True
    if m.rejected:
        hint = s.log.find_conflict(m.hint_index, m.hint_term)[0] if m.hint_term else m.hint_index
        progress.rejected(m.index, hint)
        return
    if m.index > s.log.last_index:
        raise BrokenInvariant(f"{m.sender} accepted {m.index}, past the leader's last entry", object=str(s.me))
    if progress.accepted(m.index) and m.index > s.log.commit:
        advance_commit(s)
    if m.sender == s.transfer_to:
        hand_over(s, m.sender, progress)


def on_heartbeat_reply(s: State, m: HeartbeatReply) -> None:
    progress = s.progress.get(m.sender)
    if progress is None:
        return
    progress.active = True
    progress.read = max(progress.read, m.read)
    progress.nudge()
    if progress.match < s.log.last_index and not progress.paused:
        # Even with nothing new: if the last append was lost, the answer to this one says so.
        send_append(s, m.sender, progress, even_empty=True)


def hand_over(s: State, target: RaftId, progress: Progress) -> None:
    """Once the target has everything, ask it to stand."""
    if progress.match == s.log.last_index:
        s.send_early(TimeoutNow(s.group, s.me, target, s.term))


def farewell(s: State) -> None:
    """A leader that was removed says so to everyone, and asks the best of them to stand, so that nobody has to wait."""
    for peer, progress in s.progress.items():
        send_append(s, peer, progress, even_empty=True)
    voters = [v for v in s.log.configuration.voters if v in s.progress]
    voters.sort(key=lambda v: s.progress[v].match, reverse=True)
    for target in voters[:1]:
        s.send_early(TimeoutNow(s.group, s.me, target, s.term))


# ----------------------------------------------------------------------------------------------- the follower


def on_append(s: State, m: Append) -> None:
    """Take a leader's entries, or say where the logs part."""
    log = s.log
    if m.prev_index < log.commit:
        s.send_late(AppendReply(s.group, s.me, m.sender, s.term, log.commit))
        return
    if not s.rules.matches(log.term(m.prev_index), m.prev_term):
        hint_index, hint_term = log.find_conflict(m.prev_index, m.prev_term)
        s.send_late(AppendReply(s.group, s.me, m.sender, s.term, m.prev_index, True, hint_index, hint_term))
        return
    log.merge(m.entries)
    last = m.prev_index + len(m.entries)
    log.commit_to(min(m.commit, last))
    s.send_late(AppendReply(s.group, s.me, m.sender, s.term, last))


def on_heartbeat(s: State, m: Heartbeat) -> None:
    """A beat's commit index is one this member once said it holds: not to have it means that its log was shortened."""
    if m.commit > s.log.last_index:
        raise Corrupt(
            f"entries up to {m.commit} were acknowledged but the log ends at {s.log.last_index}",
            object=str(s.me),
            next_step="Bring this member back as a learner under its next incarnation.",
        )
    s.log.commit_to(m.commit)
    s.send_late(HeartbeatReply(s.group, s.me, m.sender, s.term, m.read))


def on_install(s: State, m: InstallSnapshot) -> None:
    """Begin again from the snapshot, unless the log is already past it."""
    log = s.log
    if m.snapshot.index > log.commit:
        if log.term(m.snapshot.index) == m.snapshot.term:
            log.commit_to(m.snapshot.index)  # the entries are all here: no need to lose them
        else:
            log.restore(m.snapshot)
    s.send_late(AppendReply(s.group, s.me, m.sender, s.term, log.commit))


def installed(progress: Progress | None, ok: bool) -> None:
    """The driver's word on a snapshot stream."""
    if progress is not None and progress.flow is Flow.SNAPSHOT:
        progress.snapshot_over(ok)
