"""Many points as few: each series is held as buckets that keep the last value and the range. Pure.

However many points come, a series never holds more than four times what was asked for. Neighbours by step are joined
so that every bucket stands for about as many points as any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from clutch.wire.metrics import SeriesPoint, Value


class Bucket(NamedTuple):
    step: int
    """Of the last point in it."""
    at: float
    value: Value
    low: float | None
    high: float | None
    points: int
    superseded: bool


class Buckets:
    """One series as it is read. ``limit`` is the step beyond which its points are superseded."""

    def __init__(self, points_max: int, limit: int | None) -> None:
        self._max = points_max
        self._limit = limit
        self._held: list[Bucket] = []
        self.total = 0

    def add(self, step: int, at: float, value: Value) -> None:
        number = value if isinstance(value, int | float) and value == value else None
        superseded = self._limit is not None and step > self._limit
        self._held.append(Bucket(step, at, value, number, number, 1, superseded))
        self.total += 1
        if len(self._held) > 4 * self._max:
            self._held = joined(self._held, 2 * self._max)

    def points(self) -> tuple[SeriesPoint, ...]:
        return tuple(_point(bucket) for bucket in joined(self._held, self._max))


def joined(held: Iterable[Bucket], count: int) -> list[Bucket]:
    """At most so many buckets (one more where superseded points begin), by step."""
    ordered = sorted(held, key=lambda bucket: bucket.step)  # stable: of one step, the last reported stays last
    if len(ordered) <= count:
        return ordered
    total = sum(bucket.points for bucket in ordered)
    found: list[Bucket] = []
    passed, filled = 0, -1
    for bucket in ordered:
        slot = passed * count // total
        passed += bucket.points
        if slot == filled and found[-1].superseded == bucket.superseded:
            found[-1] = _both(found[-1], bucket)
        else:
            found.append(bucket)
        filled = slot
    return found


def _both(first: Bucket, second: Bucket) -> Bucket:
    lows = [low for low in (first.low, second.low) if low is not None]
    highs = [high for high in (first.high, second.high) if high is not None]
    return Bucket(
        second.step,
        second.at,
        second.value,
        min(lows) if lows else None,
        max(highs) if highs else None,
        first.points + second.points,
        second.superseded,
    )


def _point(bucket: Bucket) -> SeriesPoint:
    if bucket.points == 1:
        return SeriesPoint(bucket.step, bucket.at, bucket.value, superseded=bucket.superseded)
    return SeriesPoint(*bucket)
