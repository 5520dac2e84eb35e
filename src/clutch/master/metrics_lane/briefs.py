"""Reductions of a chunk's columns, kept beside its body: what a chart reads instead of points. Pure.

Every ``BUCKET`` points of a column are one bucket: the last point, and the range of the finite numbers. With them lies
the digest of the whole column.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from itertools import accumulate, repeat
from typing import Any

import msgspec

from clutch.master.metrics_lane.columns import FLOATS, INTEGERS, Column, numbers_in, raw
from clutch.master.metrics_lane.digests import Digest, digest_of, finite_in
from clutch.wire.metrics import Value

BUCKET = 32
_VERSION = 1
_START = struct.Struct("<BII")
"""Version, checksum of what follows it, length of the head."""

Bucket = tuple[int, float, Value, float | None, float | None, int, bool]
"""Step, time and value of its last point; lowest and highest finite number; how many points; whether they are
superseded. (A plain tuple, since thousands are made for one chart.)"""

_encoder = msgspec.msgpack.Encoder()


class _Mixed(msgspec.Struct, frozen=True, array_like=True):
    values: list[Value]
    lows: list[float | int | None]
    highs: list[float | int | None]


class _BriefColumn(msgspec.Struct, frozen=True, array_like=True):
    group: str
    name: str
    kind: str
    digest: Digest
    size: int


_head = msgspec.msgpack.Decoder(tuple[_BriefColumn, ...])
_mixed = msgspec.msgpack.Decoder(_Mixed)


def buckets_of(column: Column, start: int, stop: int, size: int, superseded: bool) -> list[Bucket]:
    """The points from ``start`` to before ``stop`` as buckets of ``size``."""
    steps, ats, values = column.time.steps[start:stop], column.time.ats[start:stop], column.values[start:stop]
    if size == 1:
        numbers = [_finite(value) for value in values]
        return list(zip(steps, ats, values, numbers, numbers, repeat(1), repeat(superseded)))
    found: list[Bucket] = []
    are_finite, whole = finite_in(values) is values, 0
    if are_finite and len(values) >= size:
        whole = len(values) - len(values) % size
        parts: list[Any] = [values[place:whole:size] for place in range(size)]  # all first ones, all second ones ...
        ends = slice(size - 1, whole, size)
        ranges = map(min, *parts), map(max, *parts)
        found += zip(steps[ends], ats[ends], values[ends], *ranges, repeat(size), repeat(superseded))
    for first in range(whole, len(values), size):
        part = values[first : first + size]
        numbers = part if are_finite else finite_in(part)  # type: ignore[assignment]
        low, high = (min(numbers), max(numbers)) if numbers else (None, None)  # type: ignore[type-var]
        last = first + len(part) - 1
        found.append((steps[last], ats[last], part[-1], low, high, len(part), superseded))
    return found


def _finite(value: Value) -> float | None:
    return value if not isinstance(value, str) and math.isfinite(value) else None


def brief_of(columns: Sequence[Column]) -> bytes:
    heads: list[_BriefColumn] = []
    parts: list[bytes] = []
    for column in columns:
        buckets = buckets_of(column, 0, len(column.values), BUCKET, False)
        steps, ats, values, lows, highs, _, _ = zip(*buckets, strict=True)
        kind = column.kind
        part = raw("q", steps) + raw("d", ats)
        if kind == FLOATS:
            part += raw("d", values) + raw("d", _numbers(lows)) + raw("d", _numbers(highs))
        elif kind == INTEGERS:
            part += raw("q", values) + raw("q", lows) + raw("q", highs)
        else:
            part += _encoder.encode(_Mixed(list(values), list(lows), list(highs)))
        digest = digest_of(column.time.steps, column.time.ats, column.values)
        heads.append(_BriefColumn(column.group, column.name, kind, digest, len(part)))
        parts.append(part)
    head = _encoder.encode(heads)
    rest = b"".join((head, *parts))
    return _START.pack(_VERSION, zlib.crc32(rest), len(head)) + rest


def _numbers(values: Iterable[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


class Brief:
    """A chunk's reductions; ``ValueError`` when their checksum fails."""

    def __init__(self, body: bytes) -> None:
        version, checksum, length = _START.unpack_from(body)
        if version != _VERSION or zlib.crc32(memoryview(body)[_START.size :]) != checksum:
            raise ValueError("the reductions fail their checksum")
        start = _START.size + length
        self._body = body
        self._heads = _head.decode(body[_START.size : start])
        self._places = list(accumulate((head.size for head in self._heads), initial=start))
        self.names = [(head.group, head.name) for head in self._heads]

    def digest(self, place: int) -> Digest:
        return self._heads[place].digest

    def buckets(self, place: int, superseded: bool) -> list[Bucket]:
        head = self._heads[place]
        part = self._body[self._places[place] : self._places[place + 1]]
        total = head.digest.count
        count = -(-total // BUCKET)
        size = 8 * count
        steps, ats = numbers_in("q", part[:size]), numbers_in("d", part[size : 2 * size])
        values: Sequence[Value]
        lows: Sequence[float | None]
        highs: Sequence[float | None]
        if head.kind in (FLOATS, INTEGERS):
            values = numbers_in(head.kind, part[2 * size : 3 * size])
            lows, highs = numbers_in(head.kind, part[3 * size : 4 * size]), numbers_in(head.kind, part[4 * size :])
            if head.digest.finite != total:
                lows, highs = ([None if one != one else one for one in numbers] for numbers in (lows, highs))
        else:
            mixed = _mixed.decode(part[2 * size :])
            values, lows, highs = mixed.values, mixed.lows, mixed.highs
        counts = [BUCKET] * count
        counts[-1] = total - BUCKET * (count - 1)
        return list(zip(steps, ats, values, lows, highs, counts, repeat(superseded)))
