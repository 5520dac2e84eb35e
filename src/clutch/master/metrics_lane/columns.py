"""Points as columns, and columns as bytes: steps, times and values of each metric as arrays, packed one by one. Pure.

A packed body starts with a version byte and a head that says where each column lies, so that reading one metric unpacks
that one alone. Metrics that were reported together share their steps and times. Within a body a column is ordered by
step; of one step the last reported comes last.

Steps are kept as differences and floats with their bytes apart (all first bytes, then all second ones ...): both are
what makes them small. Integers are exact; a column with texts or of mixed types is kept as it is.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice
from operator import attrgetter, le, sub
from typing import Annotated, Any

import msgspec

from clutch.wire.metrics import MetricPoint, Value

COLUMNAR = 2
"""The version byte of a columnar body. One of rows starts with zlib's own first byte, 0x78."""
FLOATS, INTEGERS, MIXED = "d", "q", "m"
_LEVEL = 1
_LENGTH = struct.Struct("<BI")
_SWAPPED = sys.byteorder == "big"
_encoder = msgspec.msgpack.Encoder()
_values = msgspec.msgpack.Decoder(list[Value])


class Timeline(msgspec.Struct, frozen=True, array_like=True):
    """Steps and times that several columns share."""

    steps: Sequence[int]
    ats: Sequence[float]


class Column(msgspec.Struct, frozen=True):
    """One metric of one group."""

    group: str
    name: str
    time: Timeline
    values: Sequence[Value]

    @property
    def kind(self) -> str:
        types = set(map(type, self.values))
        return FLOATS if types == {float} else INTEGERS if types == {int} else MIXED


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _PackedTimeline(msgspec.Struct, frozen=True, array_like=True):
    count: _Count
    first: int
    steps_size: _Count
    ats_size: _Count


class _PackedColumn(msgspec.Struct, frozen=True, array_like=True):
    group: str
    name: str
    kind: str
    timeline: _Count
    size: _Count


class _Head(msgspec.Struct, frozen=True, array_like=True):
    timelines: tuple[_PackedTimeline, ...]
    columns: tuple[_PackedColumn, ...]


_head = msgspec.msgpack.Decoder(_Head)


# -- points as columns --------------------------------------------------------------------------------------------


def columns_of(points: Sequence[MetricPoint]) -> list[Column]:
    """The metrics in these points, each ordered by step. (No object is made for each point: there are a hundred
    thousand a second, and the collector of garbage would look at every one.)"""
    if not _is_ordered([point.step for point in points]):
        points = sorted(points, key=attrgetter("step"))
    groups = {point.group for point in points}
    shapes = set(map(tuple, [point.values for point in points]))
    if len(groups) == len(shapes) == 1:
        return _together_always(points, groups.pop(), shapes.pop())
    return _in_company(points)


def _together_always(points: Sequence[MetricPoint], group: str, names: Sequence[str]) -> list[Column]:
    """Metrics that always come together."""
    time = Timeline([point.step for point in points], [point.at for point in points])
    values = [point.values for point in points]
    return [Column(group, name, time, [held[name] for held in values]) for name in names]


def _in_company(points: Sequence[MetricPoint]) -> list[Column]:
    """Metrics in different companies; those of one that never come with others share their times."""
    companies: dict[tuple[str, tuple[str, ...]], list[MetricPoint]] = {}
    for point in points:
        companies.setdefault((point.group, tuple(point.values)), []).append(point)
    holders: dict[tuple[str, str], int] = {}
    for group, names in companies:
        for name in names:
            holders[group, name] = holders.get((group, name), 0) + 1
    found: list[Column] = []
    for (group, names), members in companies.items():
        alone = [name for name in names if holders[group, name] == 1]
        found += _together_always(members, group, alone) if alone else []
    shared = [key for key, count in holders.items() if count > 1]
    return found + list(_scattered(points, shared)) if shared else found


def _scattered(points: Sequence[MetricPoint], keys: Sequence[tuple[str, str]]) -> Iterator[Column]:
    """Metrics that come now with these companions, now with those."""
    times: dict[tuple[tuple[int, ...], tuple[float, ...]], Timeline] = {}
    for group, name in keys:
        held = [point for point in points if point.group == group and name in point.values]
        key = tuple(point.step for point in held), tuple(point.at for point in held)
        yield Column(group, name, times.setdefault(key, Timeline(*key)), [point.values[name] for point in held])


def merged(parts: Sequence[Sequence[Column]]) -> list[Column]:
    """The columns of several chunks, in the order in which they were reported, as those of one."""
    found: dict[tuple[str, str], list[Column]] = {}
    for part in parts:
        for column in part:
            found.setdefault((column.group, column.name), []).append(column)
    times: dict[tuple[int, ...], tuple[Timeline, list[int] | None]] = {}
    columns: list[Column] = []
    for name, pieces in found.items():
        key = tuple([id(piece.time) for piece in pieces])
        if key not in times:
            times[key] = _joined_times([piece.time for piece in pieces])
        time, order = times[key]
        values = list(chain.from_iterable([piece.values for piece in pieces]))
        columns.append(Column(*name, time, values if order is None else [values[place] for place in order]))
    return columns


def _joined_times(pieces: Sequence[Timeline]) -> tuple[Timeline, list[int] | None]:
    """Times one behind the other, by step, and the order that brings their values there; None where they are."""
    steps = list(chain.from_iterable([piece.steps for piece in pieces]))
    ats = list(chain.from_iterable([piece.ats for piece in pieces]))
    if _is_ordered(steps):
        return Timeline(steps, ats), None
    order = sorted(range(len(steps)), key=steps.__getitem__)
    return Timeline([steps[place] for place in order], [ats[place] for place in order]), order


def _is_ordered(steps: Sequence[int]) -> bool:
    return all(map(le, steps, islice(steps, 1, None)))


# -- columns as bytes ---------------------------------------------------------------------------------------------


def packed(columns: Sequence[Column]) -> bytes:
    timelines: dict[int, int] = {}
    times: list[_PackedTimeline] = []
    heads: list[_PackedColumn] = []
    time_parts: list[bytes] = []
    parts: list[bytes] = []
    for column in columns:
        place = timelines.get(id(column.time))
        if place is None:
            place = timelines[id(column.time)] = len(times)
            steps, ats = _packed_steps(column.time.steps), packed_floats(column.time.ats)
            times.append(_PackedTimeline(len(column.values), column.time.steps[0], len(steps), len(ats)))
            time_parts += (steps, ats)
        kind = column.kind
        body = packed_values(kind, column.values)
        heads.append(_PackedColumn(column.group, column.name, kind, place, len(body)))
        parts.append(body)
    head = _encoder.encode(_Head(tuple(times), tuple(heads)))
    return b"".join((_LENGTH.pack(COLUMNAR, len(head)), head, *time_parts, *parts))


def packed_values(kind: str, values: Sequence[Value]) -> bytes:
    if kind == FLOATS:
        return packed_floats(values)  # type: ignore[arg-type]
    if kind == INTEGERS:
        return zlib.compress(_apart(raw("q", values)), _LEVEL)  # type: ignore[arg-type]
    return zlib.compress(_encoder.encode(list(values)), _LEVEL)


def packed_floats(values: Sequence[float]) -> bytes:
    return zlib.compress(_apart(raw("d", values)), _LEVEL)


def _packed_steps(steps: Sequence[int]) -> bytes:
    # They are ordered, so a difference is never negative; and at most 2**64 - 1.
    return zlib.compress(raw("Q", map(sub, islice(steps, 1, None), steps)), _LEVEL)  # type: ignore[arg-type]


def raw(code: str, values: Sequence[float | int]) -> bytes:
    """Eight bytes each, the lowest first."""
    numbers = array(code, values)
    if _SWAPPED:
        numbers.byteswap()
    return numbers.tobytes()


def numbers_in(code: str, body: bytes) -> array[float] | array[int]:
    numbers = array(code)
    numbers.frombytes(body)
    if _SWAPPED:
        numbers.byteswap()
    return numbers


def _apart(body: bytes) -> bytes:
    return b"".join([body[place::8] for place in range(8)])


def _together(body: bytes) -> bytes:
    count = len(body) // 8
    whole = bytearray(len(body))
    for place in range(8):
        whole[place::8] = body[place * count : (place + 1) * count]
    return bytes(whole)


class Body:
    """A columnar body that is unpacked as far as it is read. What is wrong with it comes as the decoders' errors."""

    def __init__(self, body: bytes) -> None:
        version, length = _LENGTH.unpack_from(body)
        if version != COLUMNAR:
            raise ValueError(f"a body of version {version}")
        start = _LENGTH.size + length
        self._body = body
        self._head = _head.decode(body[_LENGTH.size : start])
        sizes = chain((start,), *((one.steps_size, one.ats_size) for one in self._head.timelines))
        self._places = list(accumulate(chain(sizes, (one.size for one in self._head.columns))))
        if self._places[-1] != len(body):
            raise ValueError("a body of another length than its head says")
        self._times: dict[int, Timeline] = {}
        self.names = [(one.group, one.name) for one in self._head.columns]

    def count(self, place: int) -> int:
        return self._head.timelines[self._head.columns[place].timeline].count

    def column(self, place: int) -> Column:
        head = self._head.columns[place]
        part = zlib.decompress(self._part(2 * len(self._head.timelines) + place))
        if head.kind == MIXED:
            return Column(head.group, head.name, self._time(head.timeline), _values.decode(part))
        return Column(head.group, head.name, self._time(head.timeline), numbers_in(head.kind, _together(part)))

    def _part(self, place: int) -> bytes:
        return self._body[self._places[place] : self._places[place + 1]]

    def _time(self, place: int) -> Timeline:
        found = self._times.get(place)
        if found is None:
            first = self._head.timelines[place].first
            differences: Iterable[Any] = numbers_in("Q", zlib.decompress(self._part(2 * place)))
            ats = numbers_in("d", _together(zlib.decompress(self._part(2 * place + 1))))
            found = self._times[place] = Timeline(array("q", accumulate(differences, initial=first)), ats)
        return found
