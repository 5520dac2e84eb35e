"""Points as a chunk's packed body, and back. Pure.

A chunk is loose, as rows of points, until enough of them are packed into one as columns with their reductions.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Protocol

import msgspec

from clutch.master.metrics_lane.briefs import Brief, brief_of
from clutch.master.metrics_lane.columns import COLUMNAR, Body, Column, Row, columns_of, packed
from clutch.master.metrics_lane.digests import Digest, digest_of
from clutch.master.metrics_lane.records import Chunk
from clutch.wire.errors import Corrupt
from clutch.wire.metrics import MetricPoint, Value

_LEVEL = 1
_encoder = msgspec.msgpack.Encoder()
_rows = msgspec.msgpack.Decoder(list[Row])
_DAMAGE = (zlib.error, msgspec.MsgspecError, struct.error, ValueError, IndexError)


class Columns(Protocol):
    """The metrics of a chunk, by their places."""

    names: list[tuple[str, str]]

    def count(self, place: int) -> int: ...

    def column(self, place: int) -> Column: ...


class LooseColumns:
    """Rows as a packed chunk would show them."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._columns = columns_of(rows)
        self.names = [(one.group, one.name) for one in self._columns]

    def count(self, place: int) -> int:
        return len(self._columns[place].values)

    def column(self, place: int) -> Column:
        return self._columns[place]


def loose_chunk(first: int, last: int, rows: Sequence[Row]) -> Chunk:
    body = zlib.compress(_encoder.encode(rows), _LEVEL)
    return _chunk(first, last, rows, body, b"")


def packed_chunk(first: int, last: int, rows: Sequence[Row], columns: Sequence[Column]) -> Chunk:
    """``columns`` are those of the rows. Rows without values leave no trace but their number."""
    return _chunk(first, last, rows, packed(columns), brief_of(columns))


def _chunk(first: int, last: int, rows: Sequence[Row], body: bytes, brief: bytes) -> Chunk:
    steps = [row[1] for row in rows] or [0]
    return Chunk(first, last, min(steps), max(steps), len(rows), zlib.crc32(body), brief, body)


def rows_in(chunk: Chunk) -> list[Row]:
    """The points of a loose chunk; ``Corrupt`` if they are not what was stored."""
    try:
        return _rows.decode(zlib.decompress(chunk.body))
    except _DAMAGE as error:
        raise damaged(chunk) from error


def columns_in(chunk: Chunk) -> Columns:
    """The metrics of a chunk that was read with its body. (A column may still turn out to be damaged.)"""
    if not chunk.body.startswith(bytes((COLUMNAR,))):
        return LooseColumns(rows_in(chunk))
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


def row(point: MetricPoint, values: dict[str, Value]) -> Row:
    return (point.group, point.step, point.at, values)
