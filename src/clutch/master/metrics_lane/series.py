"""Many points as few: each series is held as buckets that keep the last value and the range. Pure.

However many points come, a series never holds more than four times what was asked for. Neighbours by step are joined
so that every bucket stands for about as many points as any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter

from clutch.wire.metrics import SeriesPoint, Value

Bucket = tuple[int, float, Value, float | None, float | None, int, bool]
"""Step, time and value of its last point; lowest and highest value; how many points; whether they are superseded.
(A plain tuple, since one is made for every point that is read.)"""


class Buckets:
    """One series as it is read. ``limit`` is the step beyond which its points are superseded."""

    def __init__(self, points_max: int, limit: int | None) -> None:
        self._max = points_max
        self._limit = limit
        self._held: list[Bucket] = []
        self.total = 0

    def add(self, step: int, at: float, value: Value) -> None:
        number = None if isinstance(value, str) or value != value else value
        superseded = self._limit is not None and step > self._limit
        self._held.append((step, at, value, number, number, 1, superseded))
        self.total += 1
        if len(self._held) > 4 * self._max:
            self._held = joined(self._held, 2 * self._max)

    def points(self) -> tuple[SeriesPoint, ...]:
        return tuple(_point(bucket) for bucket in joined(self._held, self._max))


def joined(held: Iterable[Bucket], count: int) -> list[Bucket]:
    """At most so many buckets (one more where superseded points begin), by step."""
    ordered = sorted(held, key=itemgetter(0))  # stable: of one step, the last reported stays last
    if len(ordered) <= count:
        return ordered
    total = sum(bucket[5] for bucket in ordered)
    found: list[Bucket] = []
    passed, filled = 0, -1
    run: list[Bucket] = []
    for bucket in ordered:
        slot = passed * count // total
        passed += bucket[5]
        if run and (slot != filled or run[-1][6] != bucket[6]):
            found.append(_one(run))
            run = []
        run.append(bucket)
        filled = slot
    found.append(_one(run))
    return found


def _one(run: list[Bucket]) -> Bucket:
    """Neighbours as one bucket."""
    if len(run) == 1:
        return run[0]
    step, at, value, _, _, _, superseded = run[-1]
    low = min((bucket[3] for bucket in run if bucket[3] is not None), default=None)
    high = max((bucket[4] for bucket in run if bucket[4] is not None), default=None)
    return (step, at, value, low, high, sum(bucket[5] for bucket in run), superseded)


def _point(bucket: Bucket) -> SeriesPoint:
    if bucket[5] == 1:
        return SeriesPoint(bucket[0], bucket[1], bucket[2], superseded=bucket[6])
    return SeriesPoint(*bucket)
