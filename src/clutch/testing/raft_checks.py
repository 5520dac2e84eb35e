"""What must hold after every step of a raft, checked from outside, by what members show and say.

The five properties of the paper, and what a client cares about::

    election safety        at most one leader a term
    log matching           two logs with an entry of the same index and term are the same up to it
    leader completeness    what is committed is in the log of every later leader
    state machine safety   no two members apply different entries at one index
    (append-only is what the log machine itself refuses to break)
    no lost acknowledgement  what a client was told is committed is applied, at that index, once
    linearizability        an operation that ended before another began comes before it in the log

The checks keep one global truth per index and compare each member with it, looking only at what changed since they
last looked, so that they can run after every single event.
"""

from __future__ import annotations

import bisect

from clutch.consensus.member import Member
from clutch.consensus.state import Role
from clutch.wire.raft import Entry, RaftId


class Violation(AssertionError):
    """A promise was broken. The message names it."""


class Shown:
    """What a member showed when last looked at."""

    __slots__ = ("commit", "index", "last", "term")

    def __init__(self) -> None:
        self.index = 0
        self.last = 0
        self.commit = 0
        self.term = 0


class Checks:
    """The global truth, as far as it is known."""

    def __init__(self) -> None:
        self.leaders: dict[int, RaftId] = {}
        self.committed: dict[int, tuple[int, str, bytes]] = {}  # index -> (term, key, data)
        self.committed_to = 0
        self.applied: dict[int, tuple[str, bytes]] = {}
        self.looks = 0
        self._committed_in: dict[int, int] = {}  # index -> the term of the leader that committed it
        self._entries: dict[tuple[int, int], tuple[int, str, bytes]] = {}  # (index, term) -> (term before, key, data)
        self._shown: dict[RaftId, Shown] = {}

    def forget(self, member: RaftId) -> None:
        """It restarted: what it shows from now on is compared from its beginning."""
        self._shown.pop(member, None)

    def look(self, member: Member, leaders: list[Member]) -> None:
        """Compare a member with everything known. ``leaders`` are all that lead just now, in any term."""
        self.looks += 1
        state = member.raft.state
        shown = self._shown.get(member.me)
        if shown is None:
            shown = self._shown[member.me] = Shown()
        if state.term < shown.term:
            raise Violation(f"{member.me} went back from term {shown.term} to {state.term}")
        shown.term = state.term
        self._look_at_log(member, shown)
        if state.log.commit != shown.commit:
            self._look_at_commit(member, shown, leaders)
        if state.role is Role.LEADER and self.leaders.get(state.term) != member.me:
            self._look_at_leader(member)

    def _look_at_log(self, member: Member, shown: Shown) -> None:
        log = member.raft.state.log
        last = log.last_index
        if last == shown.index and log.term(last) == shown.last:
            return
        start = shown.index if log.term(shown.index) == shown.last else min(log.commit, shown.index)
        start = max(start, log.base.index)
        before = log.term(start)
        for entry in log.entries[start - log.base.index :]:
            now = (before, entry.key, entry.data)
            known = self._entries.setdefault((entry.index, entry.term), now)  # type: ignore[arg-type]
            if known != now:
                raise Violation(f"log matching: {member.me} holds another entry {entry.index} of term {entry.term}")
            before = entry.term
        shown.index, shown.last = last, log.last_term

    def _look_at_commit(self, member: Member, shown: Shown, leaders: list[Member]) -> None:
        log = member.raft.state.log
        if log.commit < shown.commit:
            raise Violation(f"{member.me} went back from commit {shown.commit} to {log.commit}")
        for entry in log.entries[max(0, shown.commit - log.base.index) : log.commit - log.base.index]:
            truth = (entry.term, entry.key, entry.data)
            known = self.committed.get(entry.index)
            if known is None:
                self.committed[entry.index] = truth
                self.committed_to = max(self.committed_to, entry.index)
                self._committed_in[entry.index] = member.raft.state.term
                self._look_at_later_leaders(entry, member.raft.state.term, leaders)
            elif known != truth:
                raise Violation(
                    f"state machine safety: {member.me} commits entry {entry.index} of term {entry.term}, "
                    f"but one of term {known[0]} was committed there"
                )
        shown.commit = log.commit

    def _look_at_later_leaders(self, entry: Entry, committed_in: int, leaders: list[Member]) -> None:
        """Those of terms after the one it was committed in. An older entry may be committed long after its own term."""
        for leader in leaders:
            log = leader.raft.state.log
            known_here = entry.index <= log.base.index or log.term(entry.index) == entry.term
            if leader.raft.state.term > committed_in and not known_here:
                raise Violation(f"leader completeness: {leader.me} lacks committed entry {entry.index}")

    def _look_at_leader(self, member: Member) -> None:
        state = member.raft.state
        known = self.leaders.setdefault(state.term, member.me)
        if known != member.me:
            raise Violation(f"election safety: {known} and {member.me} both lead term {state.term}")
        high = self.committed_to
        while high > state.log.base.index and self._committed_in[high] >= state.term:
            high -= 1  # an election won late: a later leader has committed this meanwhile
        if high > state.log.base.index and state.log.term(high) != self.committed[high][0]:
            raise Violation(f"leader completeness: {member.me} leads term {state.term} without committed entry {high}")

    def look_at_apply(self, member: RaftId, entries: list[Entry]) -> None:
        for entry in entries:
            truth = (entry.key, entry.data)
            known = self.applied.setdefault(entry.index, truth)
            if known != truth:
                raise Violation(f"state machine safety: {member} applies another entry at {entry.index}")

    def look_at_ack(self, key: str, index: int) -> None:
        """A client is told that its key stands at this index."""
        known = self.committed.get(index)
        if known is None or known[1] != key:
            raise Violation(f"acknowledged too early: {key} at {index} is not committed there")


class History:
    """What clients saw, and whether one order of all operations explains it.

    The log is that order: an append stands at its index, a read after the index it saw. It explains the history exactly
    if every operation comes after all that ended before it began.
    """

    def __init__(self) -> None:
        self.operations = 0
        self._ended_at: list[float] = []
        self._highest: list[int] = []  # the highest index of anything ended by then

    def ended(self, kind: str, what: str, began: float, now: float, index: int) -> None:
        """An operation ended: an append at ``index``, or a read that saw everything up to ``index``."""
        self.operations += 1
        position = bisect.bisect_left(self._ended_at, began)  # strictly before it began
        floor = self._highest[position - 1] if position else 0
        if index < floor or (kind == "append" and index == floor):
            raise Violation(f"linearizability: {kind} {what} stands at {index}, but {floor} had ended before it began")
        self._ended_at.append(now)
        self._highest.append(max(index, self._highest[-1] if self._highest else 0))
