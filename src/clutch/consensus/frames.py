"""The bytes of the write-ahead log: frames, and how to tell a torn tail from damage.

Pure. One frame is what one sync makes durable::

    head:     magic "CLW", format version | payload length u32 | checksum u32 | zero sectors u32 | number u64 | checksum
              of the head u32
    payload:  length u32 | a record in msgpack | the data of its large entries, one after the other
    end mark: 0xA5

Numbers are consecutive over all segments; the checksum covers number and payload and begins from the log's birth, so
that a frame of another log, or one out of place, is never taken for valid. A segment is preallocated with zeros, and
the head says how many sectors of the frame are zeros on purpose.

A frame is written only after the one before it is durable. So, when a frame does not check:

* a valid frame with a higher number stands behind it: this one was durable once. **Corrupt.**
* it is the last one, and its end mark was never written, or more of its sectors are zeros than its head says: the write
  never finished. **Torn**, and nothing anybody was promised is lost by cutting it.
* it is the last one and all of it was written: bytes changed under us. **Corrupt.**
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Literal

import msgspec

from clutch.consensus import packing
from clutch.wire.errors import Corrupt, TooNew
from clutch.wire.raft import Entry, HardState, RaftId, SnapshotMeta

VERSION = 1
MAGIC = b"CLW" + bytes([VERSION])
_HEAD = struct.Struct("<4sIIIQI")
_BEFORE_HEAD_CHECKSUM = _HEAD.size - 4
HEAD_BYTES = _HEAD.size
END_MARK = b"\xa5"
FRAME_BYTES = HEAD_BYTES + len(END_MARK)
SECTOR_BYTES = 512
_ZEROS = bytes(SECTOR_BYTES)


class SegmentHead(msgspec.Struct, frozen=True, array_like=True, tag="head"):
    """The first frame of a segment. With it, older segments can go."""

    group: str
    me: RaftId
    birth: str
    segment: int
    size_bytes: int
    hard_state: HardState
    snapshot: SnapshotMeta
    base: SnapshotMeta


class Batch(msgspec.Struct, frozen=True, array_like=True, tag="batch"):
    """What one Ready persists. ``installed`` replaces the whole log by a snapshot."""

    hard_state: HardState | None
    entries: list[Entry]
    installed: SnapshotMeta | None = None


class Compacted(msgspec.Struct, frozen=True, array_like=True, tag="compacted"):
    """A snapshot of our own is durable, and the log now begins after ``base``."""

    snapshot: SnapshotMeta
    base: SnapshotMeta


Record = SegmentHead | Batch | Compacted

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


class Scan(msgspec.Struct, frozen=True):
    """The valid frames of a segment, where they end, and how."""

    records: list[Record]
    end: int
    ending: Literal["clean", "torn"]


def birth_seed(birth: str) -> int:
    return zlib.crc32(birth.encode())


def zero_sectors(pieces: Sequence[bytes | memoryview], offset: int) -> int:
    """How many sectors of the disk would hold nothing but zeros of this frame, written at ``offset``."""
    count = 0
    clean = True
    for piece in pieces:
        view = memoryview(piece)
        at, size = 0, len(view)
        if size > 4 * SECTOR_BYTES and bytes(piece).find(_ZEROS) < 0:
            # No sector in its middle can be zeros: only the ones it shares with its neighbours need a look.
            first = SECTOR_BYTES - offset % SECTOR_BYTES
            if clean and view[:first] == _ZEROS[:first]:
                count += 1
            last = (offset + size) % SECTOR_BYTES
            clean = view[size - last :] == _ZEROS[:last]
            offset += size
            continue
        while at < size:
            step = min(SECTOR_BYTES - offset % SECTOR_BYTES, size - at)
            clean = clean and view[at : at + step] == _ZEROS[:step]
            at, offset = at + step, offset + step
            if offset % SECTOR_BYTES == 0:
                count += clean
                clean = True
    return count


def encode(record: Record, number: int, seed: int, offset: int) -> list[bytes]:
    """A whole frame to be written at ``offset``, in pieces: large data is not copied into it."""
    blobs: list[bytes] = []
    if isinstance(record, Batch) and record.entries:
        light, blobs = packing.detach(record.entries)
        if blobs:
            record = Batch(record.hard_state, list(light), record.installed)
    said = _encoder.encode(record)
    payload = [len(said).to_bytes(4, "little"), said, *blobs]
    checksum = zlib.crc32(number.to_bytes(8, "little"), seed)
    length = 0
    for piece in payload:
        checksum = zlib.crc32(piece, checksum)
        length += len(piece)
    zeros = zero_sectors(payload, offset + HEAD_BYTES)
    head = _HEAD.pack(MAGIC, length, checksum, zeros, number, 0)[:_BEFORE_HEAD_CHECKSUM]
    return [head + zlib.crc32(head, seed).to_bytes(4, "little"), *payload, END_MARK]


def number_of(data: bytes) -> int:
    """The number of the frame at the start of a segment, if there is one."""
    return int(_HEAD.unpack_from(data)[4]) if len(data) >= HEAD_BYTES else 0


def decode(payload: memoryview) -> Record:
    """The record of a frame that checks."""
    said = int.from_bytes(payload[:4], "little")
    record = _decoder.decode(payload[4 : 4 + said])
    blobs = payload[4 + said :]
    if isinstance(record, Batch) and packing.has_detached(record.entries):
        return Batch(record.hard_state, list(packing.attach(record.entries, blobs)), record.installed)
    return record


def scan(data: bytes, number: int, seed: int, name: str) -> Scan:
    """Read frames from the start of a segment. Raises Corrupt or TooNew; never skips anything."""
    records: list[Record] = []
    offset = 0
    end_of_data = len(data.rstrip(b"\0"))
    while offset < end_of_data:
        payload = _valid_frame(data, offset, number, seed)
        if payload is None:
            _explain_damage(data, offset, end_of_data, number, seed, name)
            return Scan(records, offset, "torn")
        try:
            records.append(decode(payload))
        except (msgspec.MsgspecError, Corrupt) as error:
            raise Corrupt(f"frame {number} checks but does not decode: {error}", object=f"{name}@{offset}") from error
        offset += FRAME_BYTES + len(payload)
        number += 1
    return Scan(records, offset, "clean")


def _whole_head(data: bytes, offset: int, seed: int) -> tuple[int, int, int, int] | None:
    """(payload length, checksum, zero sectors, number) of a head that checks."""
    if offset + FRAME_BYTES > len(data):
        return None
    magic, length, checksum, zeros, number, head_checksum = _HEAD.unpack_from(data, offset)
    if magic != MAGIC or zlib.crc32(data[offset : offset + _BEFORE_HEAD_CHECKSUM], seed) != head_checksum:
        return None
    return length, checksum, zeros, number


def _valid_frame(data: bytes, offset: int, number: int, seed: int) -> memoryview | None:
    head = _whole_head(data, offset, seed)
    if head is None or head[3] != number:
        return None
    length, checksum, _, _ = head
    end = offset + HEAD_BYTES + length
    if end >= len(data) or data[end : end + 1] != END_MARK:
        return None
    payload = memoryview(data)[offset + HEAD_BYTES : end]
    if zlib.crc32(payload, zlib.crc32(number.to_bytes(8, "little"), seed)) != checksum:
        return None
    return payload


def _explain_damage(data: bytes, offset: int, end_of_data: int, number: int, seed: int, name: str) -> None:
    """Return if the frame at ``offset`` is a write that never finished; raise otherwise."""
    place = f"{name}@{offset}"
    magic = data[offset : offset + 4]
    if magic[:3] == MAGIC[:3] and magic[3] > VERSION:
        raise TooNew(f"written in format {magic[3]}, this release reads {VERSION}", object=place)
    later = _find_later_frame(data, offset + 1, number, seed)
    if later is not None:
        raise Corrupt(f"frame {number} is damaged, but frame {later} stands behind it", object=place)
    written = data[offset:end_of_data]
    if len(written) < HEAD_BYTES and MAGIC.startswith(written[:4]):
        return  # the write stopped inside the frame's head
    head = _whole_head(data, offset, seed)
    if head is None:
        first_sector = data[offset : offset - offset % SECTOR_BYTES + SECTOR_BYTES]
        if first_sector == _ZEROS[: len(first_sector)]:
            return  # the sector with the head never reached the disk
        raise Corrupt(f"the head of frame {number} is damaged", object=place)
    length, _, zeros, found = head
    end = offset + HEAD_BYTES + length
    if found == number and end < len(data):
        if end_of_data <= end:
            return  # the end mark was never written
        payload = memoryview(data)[offset + HEAD_BYTES : end]
        if zero_sectors([payload], offset + HEAD_BYTES) > zeros:
            return  # a sector of it never reached the disk
    raise Corrupt(f"frame {number} was written whole but fails its checksum", object=place)


def _find_later_frame(data: bytes, start: int, number: int, seed: int) -> int | None:
    at = data.find(MAGIC, start)
    while at >= 0 and at + FRAME_BYTES <= len(data):
        found = _HEAD.unpack_from(data, at)[4]
        if found > number and _valid_frame(data, at, found, seed) is not None:
            return int(found)
        at = data.find(MAGIC, at + 1)
    return None
