"""Points as a chunk's packed body, and back; the latest value of each name. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec

from clutch.master.metrics_lane.records import NAMES_MAX, Chunk
from clutch.wire.errors import Corrupt
from clutch.wire.metrics import MetricPoint, Value

Row = tuple[str, int, float, dict[str, Value]]
"""Group, step, time, values."""
Latest = dict[str, dict[str, tuple[int, float, Value]]]
"""By group and name: step, time, value."""

_LEVEL = 1
_encoder = msgspec.msgpack.Encoder()
_rows = msgspec.msgpack.Decoder(list[Row])
_latest = msgspec.msgpack.Decoder(Latest)


def chunk(first: int, last: int, rows: Sequence[Row]) -> Chunk:
    body = zlib.compress(_encoder.encode(rows), _LEVEL)
    steps = [row[1] for row in rows] or [0]
    return Chunk(first, last, min(steps), max(steps), len(rows), zlib.crc32(body), body)


def rows_in(packed: Chunk) -> list[Row]:
    """The points of a chunk; ``Corrupt`` if they are not what was stored."""
    try:
        return _rows.decode(zlib.decompress(packed.body))
    except (zlib.error, msgspec.MsgspecError) as error:
        raise damaged(packed) from error


def checked(packed: Chunk) -> Chunk:
    if zlib.crc32(packed.body) != packed.checksum:
        raise damaged(packed)
    return packed


def damaged(packed: Chunk) -> Corrupt:
    return Corrupt(
        f"batches {packed.first} to {packed.last} fail their checksum",
        object="metrics",
        next_step="Check the disk; other metrics are not touched.",
    )


def row(point: MetricPoint, values: dict[str, Value]) -> Row:
    return (point.group, point.step, point.at, values)


def latest_in(packed: bytes) -> Latest:
    return _latest.decode(packed) if packed else {}


def with_latest(packed: bytes, rows: Sequence[Row]) -> bytes:
    """The latest values with these points added: of each name the one of the highest step, then the last reported."""
    known = latest_in(packed)
    for group, step, at, values in rows:
        names = known.setdefault(group, {})
        for name, value in values.items():
            if name not in names or names[name][0] <= step:
                names[name] = (step, at, value)
    count = sum(map(len, known.values()))
    if count > NAMES_MAX:
        ages = sorted((place[1], group, name) for group, names in known.items() for name, place in names.items())
        for _, group, name in ages[: count - NAMES_MAX]:
            del known[group][name]
    return _encoder.encode(known)
