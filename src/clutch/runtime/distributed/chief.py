"""What the chief decides: who has come, who is lost, what failed, where everybody stops. Pure: it returns what to say.

It is told everything that any rank notes, one note after the other, so there is one story of a failure: the first.
"""

from __future__ import annotations

from clutch.runtime.distributed.calls import Call, contradiction
from clutch.runtime.distributed.credits import Desk
from clutch.runtime.distributed.notes import (
    PROTOCOL,
    AnyNote,
    Failed,
    Granted,
    Hello,
    IAmAt,
    Left,
    Reached,
    Waits,
    Welcome,
    WhereAreYou,
)
from clutch.runtime.distributed.shape import arrange
from clutch.wire.errors import BadRequest, ClutchError, Conflict, PeerLost, TimedOut

ASK_WITHIN_S = 0.8
NAMED_MAX = 16
_NEXT = "See why, then start the ranks again."

Say = tuple[int | None, AnyNote]
"""To this rank, or to all."""


class Chief:
    """Everything about one group that one place must know."""

    def __init__(self, size: int, until: float, within_s: float, secret: bytes) -> None:
        self.size = size
        self.over: Failed | None = None
        self.welcomed = False
        self._until = until
        self._within_s = within_s
        self._secret = secret
        self._came: dict[int, Hello] = {}
        self._left: dict[int, Left] = {}
        self._waits: dict[int, Call] = {}
        self._inquiry: _Inquiry | None = None
        self._inquiries = 0
        self._desks: dict[int, Desk] = {}

    def come(self, hello: Hello) -> list[Say]:
        """Raises what is said to the newcomer alone, if it cannot be one of us."""
        rank = hello.seat.rank
        if hello.protocol != PROTOCOL:
            raise BadRequest(
                "it speaks another version", object=f"rank {rank}", next_step="Run one release on all ranks."
            )
        if hello.seat.size != self.size or not 0 <= rank < self.size:
            raise BadRequest(
                f"it says rank {rank} of {hello.seat.size}, and this group has {self.size} ranks",
                object=f"rank {rank}",
                next_step="Give all ranks the same size.",
            )
        if rank in self._came:
            raise Conflict(
                "another process has come as this rank", object=f"rank {rank}", next_step="Number them anew."
            )
        self._came[rank] = hello
        if len(self._came) < self.size or self.over:
            return []
        seats = tuple(self._came[rank].seat for rank in range(self.size))
        try:
            arrange(seats)
        except BadRequest as error:
            return self.fail(error)
        self.welcomed = True
        return [(None, Welcome(seats, tuple(self._came[rank].public_key for rank in range(self.size)), self._secret))]

    def lost(self, rank: int, silent_s: float = 0.0) -> list[Say]:
        """Its connection has ended, or it was silent for so long."""
        if rank in self._left:
            return []
        return self.fail(lost_rank(rank, silent_s))

    def fail(self, error: ClutchError) -> list[Say]:
        if self.over is not None:
            return []
        self.over = Failed(error.view(), error.ranks if isinstance(error, PeerLost) else ())
        return [(None, self.over)]

    def heard(self, rank: int, note: AnyNote, now: float) -> list[Say]:
        """A rank that has come says this."""
        if isinstance(note, Reached):
            return self._reached(note, now)
        if isinstance(note, Left):
            self._left[rank] = note
            return [(None, note)]
        if self.over is not None:
            return [(rank, self.over)]
        if isinstance(note, Failed):
            self.over = note
            return [(None, note)]
        if isinstance(note, Waits):
            return self._waiting(rank, note, now)
        if isinstance(note, IAmAt) and self._inquiry is not None and note.number == self._inquiry.number:
            self._inquiry.answers[rank] = note
            if len(self._inquiry.answers) == len(self._inquiry.ranks):
                return self._conclude()
        return []

    def tick(self, now: float) -> list[Say]:
        """Deadlines."""
        if not self.welcomed and self.over is None and now >= self._until:
            missing = [rank for rank in range(self.size) if rank not in self._came]
            return self.fail(
                TimedOut(
                    f"{named(missing)} did not come within {self._within_s:g} s",
                    object="meeting of a group",
                    next_step="See why they did not start, and whether they reach the chief.",
                )
            )
        if self._inquiry is not None and now >= self._inquiry.until:
            return self._conclude()
        return []

    # ---------------------------------------------------------------------------------------------- inquiries

    def _waiting(self, rank: int, note: Waits, now: float) -> list[Say]:
        self._waits[rank] = note.call
        for other, call in self._waits.items():
            if call.scope == note.call.scope and call.number == note.call.number and call != note.call:
                return self.fail(contradiction(*sorted_pair(rank, note.call, other, call)))
        if not note.late or self._inquiry is not None:
            return []
        self._inquiries += 1
        self._inquiry = _Inquiry(self._inquiries, note, now + ASK_WITHIN_S)
        return [(rank, WhereAreYou(self._inquiries)) for rank in note.ranks]

    def _conclude(self) -> list[Say]:
        """Who did not come to the call whose deadline passed."""
        inquiry, self._inquiry = self._inquiry, None
        if inquiry is None:
            return []
        wanted = inquiry.note.call
        missing = []
        for rank in inquiry.ranks:
            answer = inquiry.answers.get(rank)
            if answer is None or answer.made.get(wanted.scope, 0) < wanted.number:
                missing.append(rank)
        cause = (
            f"{named(missing)} did not come to {wanted} within {inquiry.note.timeout_s:g} s"
            if missing
            else f"all ranks came to {wanted}, but it took longer than {inquiry.note.timeout_s:g} s"
        )
        return self.fail(TimedOut(cause, object="group", next_step="See what they do, or give it more time."))

    # --------------------------------------------------------------------------------------------- agreements

    def _reached(self, note: Reached, now: float) -> list[Say]:
        desk = self._desks.setdefault(note.agreement, Desk())
        if desk.heard(note.count, note.asks, note.waits, now):
            return [(None, Granted(note.agreement, desk.limit, desk.stop))]
        return []


class _Inquiry:
    def __init__(self, number: int, note: Waits, until: float) -> None:
        self.number = number
        self.note = note
        self.ranks = note.ranks
        self.until = until
        self.answers: dict[int, IAmAt] = {}


def lost_rank(rank: int, silent_s: float = 0.0) -> PeerLost:
    cause = (
        f"nothing was heard of it for {silent_s:g} s: it is stopped, or its node cannot be reached"
        if silent_s
        else "its connection has ended: it died, or its node was reset"
    )
    return PeerLost(cause, object=f"rank {rank}", next_step=_NEXT, ranks=(rank,))


def sorted_pair(rank: int, call: Call, other: int, other_call: Call) -> tuple[int, Call, int, Call]:
    return (rank, call, other, other_call) if rank < other else (other, other_call, rank, call)


def named(ranks: list[int]) -> str:
    listed = ", ".join(map(str, ranks[:NAMED_MAX])) + (", ..." if len(ranks) > NAMED_MAX else "")
    return f"rank {listed}" if len(ranks) == 1 else f"{len(ranks)} ranks ({listed})"
