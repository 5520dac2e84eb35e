"""Points as a chunk's packed body, and back. Pure.

A few points are kept as rows, more as columns with their reductions. A chunk is loose until enough of them are packed
into one.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from operator import attrgetter
from typing import Protocol

import msgspec
from msgspec.structs import replace

from clutch.master.metrics_lane.briefs import Brief, brief_of
from clutch.master.metrics_lane.columns import COLUMNAR, Body, Column, columns_of, packed
from clutch.master.metrics_lane.digests import Digest, digest_of
from clutch.master.metrics_lane.records import Chunk
from clutch.wire.errors import Corrupt
from clutch.wire.metrics import MetricPoint, Value

COLUMNAR_POINTS = 32
"""Fewer points than that are kept as rows."""
_Row = tuple[str, int, float, dict[str, Value]]
"""Group, step, time, values."""
_LEVEL = 1
_encoder = msgspec.msgpack.Encoder()
_rows = msgspec.msgpack.Decoder(list[_Row])
_DAMAGE = (zlib.error, msgspec.MsgspecError, struct.error, ValueError, IndexError, OverflowError)


class Columns(Protocol):
    """The metrics of a chunk, by their places."""

    names: list[tuple[str, str]]

    def count(self, place: int) -> int: ...

    def column(self, place: int) -> Column: ...


class LooseColumns:
    """Points as a packed chunk would show them."""

    def __init__(self, points: Sequence[MetricPoint]) -> None:
        self._columns = columns_of(points)
        self.names = [(one.group, one.name) for one in self._columns]

    def count(self, place: int) -> int:
        return len(self._columns[place].values)

    def column(self, place: int) -> Column:
        return self._columns[place]


def chunk_of(span: tuple[int, int], points: Sequence[MetricPoint], columns: Sequence[Column]) -> Chunk:
    """New points; ``span`` are their first and last batch, ``columns`` those of the points."""
    if len(points) < COLUMNAR_POINTS:
        rows = [(point.group, point.step, point.at, point.values) for point in points]
        body, brief = zlib.compress(_encoder.encode(rows), _LEVEL), b""
    else:
        body, brief = packed(columns), brief_of(columns)
    return replace(empty_chunk(span, points), checksum=zlib.crc32(body), brief=brief, body=body)


def empty_chunk(span: tuple[int, int], points: Sequence[MetricPoint]) -> Chunk:
    """What a chunk of these points says of itself."""
    steps = [point.step for point in points] or [0]
    return Chunk(*span, min(steps), max(steps), len(points), 0, b"", b"")


def packed_chunk(parts: Sequence[Chunk], columns: Sequence[Column]) -> Chunk:
    """Chunks as one, with the columns of all of them. Points without values leave no trace but their number."""
    body = packed(columns)
    low, high = min(one.low for one in parts), max(one.high for one in parts)
    points = sum(one.points for one in parts)
    return Chunk(parts[0].first, parts[-1].last, low, high, points, zlib.crc32(body), brief_of(columns), body)


def every_column(chunk: Chunk, group: str = "") -> list[Column]:
    """The columns of a chunk, or only those of a group."""
    columns = columns_in(chunk)
    return [
        column_in(chunk, columns, place) for place, name in enumerate(columns.names) if not group or name[0] == group
    ]


def points_in(chunk: Chunk, group: str = "") -> list[MetricPoint]:
    """The points of a chunk, or only those of a group; ``Corrupt`` if they are not what was stored.

    Those of a columnar one come by step and time, and what was reported of one group at one step and time as one point.
    """
    if chunk.body.startswith(bytes((COLUMNAR,))):
        return _rebuilt(every_column(chunk, group))
    try:
        rows = _rows.decode(zlib.decompress(chunk.body))
    except _DAMAGE as error:
        raise damaged(chunk) from error
    return [MetricPoint(one, step, values, at) for one, step, at, values in rows if not group or one == group]


def _rebuilt(columns: Sequence[Column]) -> list[MetricPoint]:
    found: dict[tuple[str, int, float, int], MetricPoint] = {}
    for column in columns:
        seen: dict[tuple[int, float], int] = {}
        for step, at, value in zip(column.time.steps, column.time.ats, column.values, strict=True):
            again = seen[step, at] = seen.get((step, at), -1) + 1
            key = (column.group, step, at, again)
            found.setdefault(key, MetricPoint(column.group, step, {}, at)).values[column.name] = value
    return sorted(found.values(), key=attrgetter("step", "at"))


def columns_in(chunk: Chunk) -> Columns:
    """The metrics of a chunk that was read with its body. (A column may still turn out to be damaged.)"""
    if not chunk.body.startswith(bytes((COLUMNAR,))):
        return LooseColumns(points_in(chunk))
    try:
        return Body(chunk.body)
    except _DAMAGE as error:
        raise damaged(chunk) from error


def column_in(chunk: Chunk, columns: Columns, place: int) -> Column:
    try:
        return columns.column(place)
    except _DAMAGE as error:
        raise damaged(chunk) from error


def brief_in(chunk: Chunk) -> Brief:
    try:
        return Brief(chunk.brief)
    except _DAMAGE as error:
        raise damaged(chunk) from error


def digests_in(columns: Sequence[Column]) -> dict[tuple[str, str], Digest]:
    return {(one.group, one.name): digest_of(one.time.steps, one.time.ats, one.values) for one in columns}


def checked(chunk: Chunk) -> Chunk:
    if chunk.body and zlib.crc32(chunk.body) != chunk.checksum:
        raise damaged(chunk)
    return chunk


def damaged(chunk: Chunk) -> Corrupt:
    return Corrupt(
        f"batches {chunk.first} to {chunk.last} fail their checksum",
        object="metrics",
        next_step="Check the disk; other metrics are not touched.",
    )
