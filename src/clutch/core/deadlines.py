"""What falls due when: a sorted index over all deadlines in the state.

Derived, never stored: the fold sets and clears entries as it moves things, so a restored state has the same ones.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from enum import StrEnum


class Due(StrEnum):
    """What a deadline is for; ties fall due in this order."""

    SILENCE = "1-silence"  # a node: it is lost now
    RESIDENTS = "2-residents"  # a suspect node: its resident members are lost now
    LEAVE = "3-leave"  # a task: its window is over
    MEMBER_LEAVE = "4-member-leave"  # a member: its window is over
    FLUSH = "5-flush"  # a task: the store had its time
    LEASE = "6-lease"  # a lease: waited, lingered or reclaimed long enough
    REST = "7-rest"  # a task: it has rested long enough
    MEMBER_REST = "8-member-rest"  # a member: it has rested long enough
    ALARM = "9-alarm"  # a controller wanted to be woken
    BAR = "a-bar"  # a task and a node: what was missing there may be there by now


class Deadlines:
    """At most one deadline for each (what for, whose)."""

    def __init__(self) -> None:
        self._at: dict[tuple[Due, str], float] = {}
        self._sorted: list[tuple[float, Due, str]] = []

    def set(self, due: Due, whose: str, at: float) -> None:
        self.clear(due, whose)
        self._at[due, whose] = at
        insort(self._sorted, (at, due, whose))

    def clear(self, due: Due, whose: str) -> None:
        at = self._at.pop((due, whose), None)
        if at is not None:
            del self._sorted[bisect_left(self._sorted, (at, due, whose))]

    def next_at(self) -> float | None:
        return self._sorted[0][0] if self._sorted else None

    def due(self, now: float) -> list[tuple[Due, str]]:
        """Everything due by now, earliest first."""
        found = []
        for at, due, whose in self._sorted:
            if at > now:
                break
            found.append((due, whose))
        return found

    def __contains__(self, entry: tuple[Due, str]) -> bool:
        return entry in self._at

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Deadlines) and self._sorted == other._sorted

    __hash__ = None  # type: ignore[assignment]  # an index is not a value
