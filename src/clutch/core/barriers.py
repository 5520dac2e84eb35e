"""Where members meet: ``rendezvous`` (who are my peers) and ``all_gather`` (what does each of them say).

A ``Barrier`` is a frozen value: ``join`` and ``expire`` return a new one with what is to be told to whom. It opens when
all members are there and then stays open: a member that asks again gets an answer at once. A restarted member comes
with a higher fence: its entry is replaced and whoever waited with the old one is told ``Stale``. At an open rendezvous
its new address takes the place of the old, for itself and for everybody who asks again; an open round of ``all_gather``
is history, and it reads what was said then, as all others did.

Soft state: a new master starts with no barriers and members join again. No clock, no queue, no waiting here: the caller
keeps the waiters and answers them as told.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from clutch.wire.errors import BadRequest, Stale, TimedOut
from clutch.wire.ids import Fence

Seat = tuple[str, int]
"""A member's role and rank."""


class Kind(StrEnum):
    RENDEZVOUS = "rendezvous"  # addresses: a restarted member brings a new one
    ALL_GATHER = "all_gather"  # one round: once it is complete it never changes


class Verdict(StrEnum):
    OPEN = "open"  # everybody is there: here is what they said
    STALE = "stale"  # a newer incarnation of this member has joined
    TIMED_OUT = "timed_out"  # some did not come in time


class Entry(msgspec.Struct, frozen=True):
    """One member at the barrier, and what it brought."""

    fence: Fence
    data: bytes
    waiter: str
    """Who is to be answered: an id of the caller's (a connection, a long poll)."""


class Answer(msgspec.Struct, frozen=True):
    """To be told to one waiter."""

    waiter: str
    verdict: Verdict
    data: tuple[bytes, ...] = ()
    """For OPEN: what each seat brought, in the order of the seats."""
    detail: str = ""

    def error(self) -> Stale | TimedOut | None:
        """The error a waiter gets, if it is one."""
        if self.verdict is Verdict.STALE:
            return Stale(self.detail, object=self.waiter, next_step="Stop: a newer incarnation has taken this place.")
        if self.verdict is Verdict.TIMED_OUT:
            return TimedOut(self.detail, object=self.waiter, next_step="See why the missing members did not start.")
        return None


class Barrier(msgspec.Struct, frozen=True):
    """One meeting. ``seats`` are everybody who must come, in order; the first is the chief."""

    name: str
    kind: Kind
    seats: tuple[Seat, ...]
    deadline: float
    entries: tuple[Entry | None, ...] = ()
    version: int = 0
    """1 when it opens, and one more each time an open rendezvous changes."""

    @property
    def is_open(self) -> bool:
        return self.version > 0

    @property
    def missing(self) -> tuple[Seat, ...]:
        return tuple(seat for seat, entry in zip(self.seats, self.entries, strict=True) if entry is None)


class Peer(msgspec.Struct, frozen=True):
    """What a member brings to a rendezvous."""

    address: str
    public_key: str = ""


def convene(name: str, kind: Kind, seats: tuple[Seat, ...], now: float, timeout_s: float) -> Barrier:
    """A barrier nobody has come to yet."""
    if not seats or len(dict.fromkeys(seats)) != len(seats):
        raise BadRequest(f"a meeting needs different members, not {seats}", object=name)
    return Barrier(name, kind, seats, now + timeout_s, (None,) * len(seats))


def join(barrier: Barrier, seat: Seat, fence: Fence, data: bytes, waiter: str) -> tuple[Barrier, tuple[Answer, ...]]:
    """A member comes, for the first time or again.

    Raises ``BadRequest`` for a stranger and ``Stale`` for an incarnation older than the one that is there.
    """
    if seat not in barrier.seats:
        raise BadRequest(f"{_name(seat)} is not among its {len(barrier.seats)} members", object=barrier.name)
    place = barrier.seats.index(seat)
    there = barrier.entries[place]
    if there is not None and fence < there.fence:
        raise Stale(f"{_name(seat)} {fence} is older than {there.fence}", object=barrier.name)
    if barrier.is_open:
        changed = _join_open(barrier, place, Entry(fence, data, waiter))
        return changed, (_open_answer(changed, waiter),)
    answers: list[Answer] = []
    if there is not None and there.waiter != waiter:
        answers.append(_stale(there, seat, fence))
    changed = _with_entry(barrier, place, Entry(fence, data, waiter))
    if not changed.missing:
        changed = msgspec.structs.replace(changed, version=1)
        answers.extend(_open_answer(changed, entry.waiter) for entry in changed.entries if entry is not None)
    return changed, tuple(answers)


def join_rendezvous(
    barrier: Barrier, seat: Seat, fence: Fence, peer: Peer, waiter: str
) -> tuple[Barrier, tuple[Answer, ...]]:
    """``join`` with an address and a public key."""
    return join(barrier, seat, fence, msgspec.msgpack.encode(peer), waiter)


def roster(answer: Answer) -> tuple[Peer, ...]:
    """The peers of an open rendezvous by rank; the first is the chief."""
    return tuple(msgspec.msgpack.decode(data, type=Peer) for data in answer.data)


def _join_open(barrier: Barrier, place: int, entry: Entry) -> Barrier:
    there = barrier.entries[place]
    assert there is not None, "an open barrier has an entry for every seat"
    if barrier.kind is Kind.ALL_GATHER:
        entry = msgspec.structs.replace(entry, data=there.data)
    changed = _with_entry(barrier, place, entry)
    if entry.data != there.data:
        changed = msgspec.structs.replace(changed, version=barrier.version + 1)
    return changed


def _with_entry(barrier: Barrier, place: int, entry: Entry) -> Barrier:
    entries = list(barrier.entries)
    entries[place] = entry
    return msgspec.structs.replace(barrier, entries=tuple(entries))


def leave(barrier: Barrier, waiter: str) -> Barrier:
    """A waiter went away before the barrier opened (its poll was cut): its entry goes with it."""
    if barrier.is_open:
        return barrier
    entries = tuple(None if entry is not None and entry.waiter == waiter else entry for entry in barrier.entries)
    return msgspec.structs.replace(barrier, entries=entries)


def expire(barrier: Barrier, now: float, timeout_s: float) -> tuple[Barrier, tuple[Answer, ...]]:
    """Past the deadline everybody who waits is told who is missing; those who still want to meet come again."""
    if barrier.is_open or now < barrier.deadline:
        return barrier, ()
    missing = ", ".join(_name(seat) for seat in barrier.missing)
    detail = f"{len(barrier.missing)} of {len(barrier.seats)} members did not come: {missing}"
    answers = tuple(
        Answer(entry.waiter, Verdict.TIMED_OUT, detail=detail) for entry in barrier.entries if entry is not None
    )
    fresh = msgspec.structs.replace(barrier, entries=(None,) * len(barrier.seats), deadline=now + timeout_s)
    return fresh, answers


def rank_of(barrier: Barrier, seat: Seat) -> int:
    """A member's place among all of the allocation; 0 is the chief."""
    return barrier.seats.index(seat)


def _name(seat: Seat) -> str:
    return f"{seat[0]}.{seat[1]}"


def _stale(there: Entry, seat: Seat, fence: Fence) -> Answer:
    return Answer(there.waiter, Verdict.STALE, detail=f"{_name(seat)} {there.fence} was replaced by {fence}")


def _open_answer(barrier: Barrier, waiter: str) -> Answer:
    return Answer(waiter, Verdict.OPEN, tuple(entry.data for entry in barrier.entries if entry is not None))
