"""Many points as few: each series is held as buckets that keep the last value and the range. Pure.

However many points come, a series never holds more than four times what was asked for and what came last. In the end
neighbours by step are joined, either so that every bucket stands for about as many points as any other, or, where
``tsdownsample`` is installed, so that the buckets end at the points that give the curve its shape.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from clutch.master.metrics_lane.briefs import Bucket
from clutch.wire.metrics import SeriesPoint

_SHAPE_LEAST = 4
"""Fewer points than that have no shape to keep."""


@functools.cache
def shape_tools() -> Any:
    """numpy and the chooser of points; None unless both are installed."""
    try:
        import numpy
        import tsdownsample
    except ImportError:
        return None
    chooser: Any = tsdownsample.MinMaxLTTBDownsampler
    return numpy, chooser()


class Buckets:
    """One series as it is read."""

    def __init__(self, points_max: int) -> None:
        self._max = points_max
        self._held: list[Bucket] = []
        self.total = 0

    def extend(self, buckets: Sequence[Bucket], count: int) -> None:
        """Take buckets of so many points in all."""
        self._held += buckets
        self.total += count
        if len(self._held) > 4 * self._max:
            self._held = joined(self._held, 2 * self._max)

    def take(self, other: Buckets) -> None:
        self.extend(other._held, other.total)

    def points(self, shapes: bool = True) -> tuple[SeriesPoint, ...]:
        """At most so many as were asked for, one more where superseded points begin."""
        tools = shape_tools() if shapes and self._max >= _SHAPE_LEAST else None
        found = joined(self._held, self._max) if tools is None else shaped(self._held, self._max, tools)
        return tuple([_point(bucket) for bucket in found])


def joined(held: Iterable[Bucket], count: int) -> list[Bucket]:
    """At most so many buckets (one more where superseded points begin), by step, each of about as many points."""
    ordered = sorted(held, key=itemgetter(0))  # stable: of one step, the last reported stays last
    if len(ordered) <= count:
        return ordered
    total = sum(map(itemgetter(5), ordered))
    stops: list[int] = []
    passed, filled = 0, -1
    start = 0
    for place, bucket in enumerate(ordered):
        slot = passed * count // total
        passed += bucket[5]
        if place > start and (slot != filled or ordered[start][6] != bucket[6]):
            stops.append(place)
            start = place
        filled = slot
    return _runs(ordered, [*stops, len(ordered)])


def shaped(held: Iterable[Bucket], count: int, tools: Any) -> list[Bucket]:
    """At most so many buckets (one more where superseded points begin), by step, that end where the curve turns."""
    ordered = sorted(held, key=itemgetter(0))
    if len(ordered) <= count:
        return ordered
    cut = next((place for place, bucket in enumerate(ordered) if bucket[6]), len(ordered))
    shares = ((ordered[:cut], count * cut // len(ordered)), (ordered[cut:], count - count * cut // len(ordered)))
    found: list[Bucket] = []
    for part, share in shares:
        if share < _SHAPE_LEAST or len(part) <= share:
            found += joined(part, max(share, 1))
            continue
        found += _runs(part, [end + 1 for end in _ends(part, share, tools)])
    return found


def _ends(ordered: Sequence[Bucket], count: int, tools: Any) -> list[int]:
    """The places of the chosen ones, the last among them."""
    numpy, chooser = tools
    held = 0.0
    heights = []
    for bucket in ordered:
        value = bucket[2]
        if not isinstance(value, str) and math.isfinite(value):
            held = float(value)
        heights.append(held)  # what is no height stands where the one before it stood
    steps = numpy.array([bucket[0] for bucket in ordered], dtype=numpy.float64)
    chosen = chooser.downsample(steps, numpy.array(heights), n_out=count)
    return sorted({*chosen.tolist(), len(ordered) - 1})


def _runs(ordered: Sequence[Bucket], stops: Sequence[int]) -> list[Bucket]:
    """Neighbours as one bucket each: those before the first stop, from there to before the second, and so on."""
    _, _, _, lows, highs, counts, _ = zip(*ordered, strict=True)
    low_of, high_of = (_least, _most) if None in lows else (min, max)
    found: list[Bucket] = []
    start = 0
    for stop in stops:
        end = ordered[stop - 1]
        if stop - start > 1:
            low, high = low_of(lows[start:stop]), high_of(highs[start:stop])
            end = (*end[:3], low, high, sum(counts[start:stop]), end[6])
        found.append(end)
        start = stop
    return found


def _least(numbers: Sequence[float | None]) -> float | None:
    return min([number for number in numbers if number is not None], default=None)


def _most(numbers: Sequence[float | None]) -> float | None:
    return max([number for number in numbers if number is not None], default=None)


def _point(bucket: Bucket) -> SeriesPoint:
    if bucket[5] == 1:
        return SeriesPoint(bucket[0], bucket[1], bucket[2], superseded=bucket[6])
    return SeriesPoint(*bucket)
