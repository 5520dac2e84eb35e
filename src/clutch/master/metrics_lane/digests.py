"""What is known of a column of values without its points: how many, from where to where, range and mean. Pure.

Range and mean are those of the finite numbers; texts, NaN and the infinities are counted and nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from clutch.master.metrics_lane.records import NAMES_MAX
from clutch.wire.metrics import Value

Digests = dict[str, dict[str, "Digest"]]
"""By group and name."""


class Digest(msgspec.Struct, frozen=True, array_like=True):
    """Points of one metric. ``step``, ``at`` and ``value`` are those of the highest step, of equal ones the latest."""

    step: int
    at: float
    value: Value
    count: int
    first_step: int
    finite: int
    """How many of them are finite numbers;"""
    mean: float | None
    """these are what mean and range are about."""
    low: float | int | None
    high: float | int | None


class Remembered(msgspec.Struct, frozen=True, array_like=True):
    """What a source remembers of its metrics. ``whole`` unless names were forgotten for want of room."""

    whole: bool
    names: Digests


_SMALLER = 64
"""Powers of two by which numbers are made smaller whose sum is none: more than there are points."""
_encoder = msgspec.msgpack.Encoder()
_remembered = msgspec.msgpack.Decoder(Remembered)
_latest = msgspec.msgpack.Decoder(dict[str, dict[str, tuple[int, float, Value]]])


def finite_in(values: Sequence[Value]) -> Sequence[float | int]:
    """The finite numbers among these values; the values themselves where all are."""
    try:
        total = math.fsum(values)  # type: ignore[arg-type]
        if total - total == 0.0:
            return values  # type: ignore[return-value]
    except (TypeError, OverflowError, ValueError):
        pass
    return [value for value in values if not isinstance(value, str) and math.isfinite(value)]


def mean_of(numbers: Sequence[float | int]) -> float:
    count = len(numbers)
    try:
        return math.fsum(numbers) / count
    except OverflowError:  # the mean is a number though the sum is none, and rounding must not carry it beyond
        smaller = [math.ldexp(number, -_SMALLER) for number in numbers]
        return math.ldexp(min(max(math.fsum(smaller) / count, min(smaller)), max(smaller)), _SMALLER)


def digest_of(steps: Sequence[int], ats: Sequence[float], values: Sequence[Value]) -> Digest:
    """Of points in the order of their steps; there is at least one."""
    numbers = finite_in(values)
    if not numbers:
        return Digest(steps[-1], ats[-1], values[-1], len(values), steps[0], 0, None, None, None)
    mean, low, high = mean_of(numbers), min(numbers), max(numbers)
    return Digest(steps[-1], ats[-1], values[-1], len(values), steps[0], len(numbers), mean, low, high)


def joined(one: Digest, later: Digest) -> Digest:
    """Both as one; ``later`` was reported later."""
    end = later if later.step >= one.step else one
    finite = one.finite + later.finite
    mean, low, high = one.mean, one.low, one.high
    if later.mean is not None and later.low is not None and later.high is not None:
        if mean is None or low is None or high is None:
            mean, low, high = later.mean, later.low, later.high
        else:
            # Weighted, since a sum of large numbers is not always a number.
            mean = mean * (one.finite / finite) + later.mean * (later.finite / finite)
            low, high = min(low, later.low), max(high, later.high)
            mean = min(max(mean, low), high)
    count, first = one.count + later.count, min(one.first_step, later.first_step)
    return Digest(end.step, end.at, end.value, count, first, finite, mean, low, high)


def add(known: Digests, group: str, name: str, later: Digest) -> None:
    names = known.setdefault(group, {})
    present = names.get(name)
    names[name] = later if present is None else joined(present, later)


def remembered_in(packed: bytes) -> Remembered:
    """What a source remembers. One that an earlier release wrote knows of each name only its latest value."""
    if not packed:
        return Remembered(True, {})
    if packed[0] & 0xF0 == 0x90:  # an array
        return _remembered.decode(packed)
    latest = _latest.decode(packed)
    return Remembered(
        False,
        {
            group: {
                name: Digest(step, at, value, 1, step, 0, None, None, None) for name, (step, at, value) in names.items()
            }
            for group, names in latest.items()
        },
    )


def with_news(packed: bytes, news: Mapping[tuple[str, str], Digest]) -> bytes:
    """What a source remembers with these points added; beyond ``NAMES_MAX`` names, those reported last."""
    before = remembered_in(packed)
    whole, known = before.whole, before.names
    for (group, name), digest in news.items():
        add(known, group, name, digest)
    count = sum(map(len, known.values()))
    if count > NAMES_MAX:
        whole = False
        ages = sorted((digest.at, group, name) for group, names in known.items() for name, digest in names.items())
        for _, group, name in ages[: count - NAMES_MAX]:
            del known[group][name]
    return _encoder.encode(Remembered(whole, known))
