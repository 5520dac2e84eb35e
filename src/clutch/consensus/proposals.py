"""What local clients wait for: appends until their key is applied, reads until their index is, changes until committed.

No I/O; time is ticks. Each wait has a deadline. An append is tried again whenever the leader changes, and every so
often: its key makes that harmless. When a deadline passes the client is told so, and that its fate is unknown.
"""

from __future__ import annotations

from collections.abc import Callable

from clutch.wire.errors import ClutchError, Conflict, TimedOut, Unavailable
from clutch.wire.raft import Entry

Done = Callable[[int | ClutchError], None]
"""Called once, with an index or with why there is none."""


class Pending:
    """An append under way."""

    __slots__ = ("data", "deadline", "done", "key", "since", "tried_at", "tried_term")

    def __init__(self, key: str, data: bytes, since: int, deadline: int, done: Done) -> None:
        self.key = key
        self.data = data
        self.since = since
        self.deadline = deadline
        self.done = [(deadline, done)]
        self.tried_at = -1
        self.tried_term = -1


class Proposals:
    """Every wait of this member's local clients."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.appends: dict[str, Pending] = {}
        self._reads: dict[int, tuple[int, Done]] = {}  # context -> (deadline, done), not confirmed yet
        self._reads_at: list[tuple[int, int, Done]] = []  # (index, deadline, done), confirmed, not applied yet
        self._changes: dict[int, tuple[int, int, Done]] = {}  # index -> (term, deadline, done)
        self._soonest = 1 << 62  # no deadline is earlier

    # --------------------------------------------------------------------------------------------- waits

    def wait_append(self, pending: Pending) -> Pending:
        """Join the wait for this key, or begin it."""
        known = self.appends.get(pending.key)
        if known is not None:
            if known.data != pending.data:
                raise Conflict("the key is in use for other data", object=pending.key)
            known.done.extend(pending.done)
            self._soonest = min(self._soonest, pending.deadline)
            return known
        self._check_room()
        self.appends[pending.key] = pending
        self._soonest = min(self._soonest, pending.deadline)
        return pending

    def wait_read(self, context: int, deadline: int, done: Done) -> None:
        self._check_room()
        self._soonest = min(self._soonest, deadline)
        self._reads[context] = (deadline, done)

    def wait_change(self, index: int, term: int, deadline: int, done: Done) -> None:
        self._soonest = min(self._soonest, deadline)
        self._changes[index] = (term, deadline, done)

    def _check_room(self) -> None:
        if len(self.appends) + len(self._reads) + len(self._reads_at) >= self._limit:
            raise Unavailable(f"{self._limit} requests are under way", object="member", next_step="Slow down.")

    # ------------------------------------------------------------------------------------------- answers

    def applied(self, entry: Entry, outcome: int | ClutchError) -> None:
        """An entry was applied: whoever waits for its key has the answer."""
        pending = self.appends.pop(entry.key, None)
        if pending is not None:
            for _, done in pending.done:
                done(outcome)

    def passed(self, index: int, term: int) -> None:
        """The entry at this index is applied: a change proposed there is committed, or was overwritten."""
        waiting = self._changes.pop(index, None)
        if waiting is not None:
            expected, _, done = waiting
            lost = Unavailable("a new leader dropped the change", object="group", next_step="Ask the new leader.")
            done(index if expected == term else lost)

    def confirmed(self, context: int, index: int) -> None:
        waiting = self._reads.pop(context, None)
        if waiting is not None:
            self._reads_at.append((index, *waiting))

    def unconfirmed(self, context: int) -> tuple[int, Done] | None:
        """A read failed: take it back, to ask again."""
        return self._reads.pop(context, None)

    def serve_reads(self, applied: int) -> None:
        if not self._reads_at:
            return
        ready = [r for r in self._reads_at if r[0] <= applied]
        self._reads_at = [r for r in self._reads_at if r[0] > applied]
        for index, _, done in ready:
            done(index)

    def expire(self, now: int) -> None:
        """Tell those whose deadline has passed."""
        if now < self._soonest:
            return
        late: list[Done] = []
        for pending in list(self.appends.values()):
            if any(deadline <= now for deadline, _ in pending.done):
                late.extend(done for deadline, done in pending.done if deadline <= now)
                pending.done = [(deadline, done) for deadline, done in pending.done if deadline > now]
                if not pending.done:
                    del self.appends[pending.key]
        for context in [c for c, (deadline, _) in self._reads.items() if deadline <= now]:
            late.append(self._reads.pop(context)[1])
        late.extend(done for _, deadline, done in self._reads_at if deadline <= now)
        self._reads_at = [r for r in self._reads_at if r[1] > now]
        for index in [i for i, (_, deadline, _) in self._changes.items() if deadline <= now]:
            late.append(self._changes.pop(index)[2])
        self._soonest = self._next_deadline()
        for done in late:
            done(
                TimedOut(
                    "not known to be committed before its deadline",
                    object="request",
                    next_step="Ask again with the same key: it is never doubled.",
                )
            )

    def _next_deadline(self) -> int:
        deadlines = [deadline for p in self.appends.values() for deadline, _ in p.done]
        deadlines.extend(deadline for deadline, _ in self._reads.values())
        deadlines.extend(deadline for _, deadline, _ in self._reads_at)
        deadlines.extend(deadline for _, deadline, _ in self._changes.values())
        return min(deadlines, default=1 << 62)

    def to_retry(self, now: int, term: int, every: int) -> list[Pending]:
        """Appends that were never tried, were tried in another term, or so long ago that a message was lost."""
        return [p for p in self.appends.values() if p.tried_at < 0 or p.tried_term != term or now - p.tried_at >= every]

    def reads_pending(self) -> list[int]:
        return list(self._reads)
