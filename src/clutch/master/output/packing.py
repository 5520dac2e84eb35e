"""A segment's bytes and the times at which they were written, as one packed body, and back.

The body is a zlib stream of: the number of marks (4 bytes), their offsets inside the segment (4 bytes each), their
times in microseconds (8 bytes each), then the bytes as they were printed. All little-endian. A mark says that the bytes
from its offset on were written at its time.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from clutch.master.output.records import Segment
from clutch.wire.errors import Corrupt

LEVEL = 1
_HEAD = struct.Struct("<I")
_MICROSECONDS = 1_000_000


class Marks(msgspec.Struct, frozen=True):
    """When the bytes of a stretch were written: ``times[i]`` (microseconds) from ``offsets[i]`` on, both growing with
    i. The first offset is at or before the beginning of the stretch."""

    offsets: Sequence[int]
    times: Sequence[int]

    def at(self, offset: int) -> float:
        """When the byte at this offset was written (seconds)."""
        place = max(bisect_right(self.offsets, offset) - 1, 0)
        return self.times[place] / _MICROSECONDS

    def range(self, start: int, stop: int) -> tuple[float, float]:
        """The earliest and the latest time among the bytes of a stretch."""
        low = max(bisect_right(self.offsets, start) - 1, 0)
        high = max(bisect_right(self.offsets, stop - 1), low + 1)
        found = self.times[low:high]
        return min(found) / _MICROSECONDS, max(found) / _MICROSECONDS


def microseconds(at: float) -> int:
    return round(at * _MICROSECONDS)


def pack(data: bytes | memoryview, start: int, marks: Marks) -> bytes:
    """The body of the segment that begins at ``start`` and holds ``data``."""
    low = max(bisect_right(marks.offsets, start) - 1, 0)
    high = max(bisect_right(marks.offsets, start + len(data) - 1), low + 1)
    offsets = array("I", [max(offset - start, 0) for offset in marks.offsets[low:high]])
    times = array("q", marks.times[low:high])
    if sys.byteorder == "big":
        offsets.byteswap()
        times.byteswap()
    packer = zlib.compressobj(LEVEL)
    head = _HEAD.pack(len(offsets)) + offsets.tobytes() + times.tobytes()
    return packer.compress(head) + packer.compress(data) + packer.flush()


def unpack(segment: Segment) -> tuple[bytes, Marks]:
    """The bytes of a segment and the marks of them, at their offsets in the stream."""
    try:
        raw = zlib.decompress(segment.body)
    except zlib.error as error:
        raise damaged(segment) from error
    if len(raw) < _HEAD.size:
        raise damaged(segment)
    (count,) = _HEAD.unpack_from(raw)
    data_at = _HEAD.size + 12 * count
    if len(raw) - data_at != segment.end - segment.start:
        raise damaged(segment)
    offsets, times = array("I"), array("q")
    offsets.frombytes(raw[_HEAD.size : _HEAD.size + 4 * count])
    times.frombytes(raw[_HEAD.size + 4 * count : data_at])
    if sys.byteorder == "big":
        offsets.byteswap()
        times.byteswap()
    start = segment.start
    return raw[data_at:], Marks([start + offset for offset in offsets], times)


def damaged(segment: Segment) -> Corrupt:
    return Corrupt(
        f"bytes {segment.start} to {segment.end} of a stream fail their checksum",
        object="output",
        next_step="Check the disk; other output is not touched.",
    )


def checked(segment: Segment) -> Segment:
    """The segment, or ``Corrupt``."""
    if zlib.crc32(segment.body) != segment.checksum:
        raise damaged(segment)
    return segment
