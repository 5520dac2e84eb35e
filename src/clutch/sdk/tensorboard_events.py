"""TensorBoard's event files, written by hand: records with masked CRC-32C around three protocol buffer messages.

Only what a scalar needs: ``Event {double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary =
5}``, ``Summary {repeated Value value = 1}``, ``Value {string tag = 1; float simple_value = 2}``.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

_POLYNOMIAL = 0x82F63B78
_MASK = 0xA282EAD8
_VERSION = b"brain.Event:2"


def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
        found.append(byte)
    return tuple(found)


_TABLE = _table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF)


def record(data: bytes) -> bytes:
    """Data as one record of the file."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, _masked(length), data, _masked(data)))


def _varint(number: int) -> bytes:
    number &= 0xFFFFFFFFFFFFFFFF  # a negative one has ten bytes
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _text(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def scalar_event(tag: bytes, step: int, at: float, value: float) -> bytes:
    """``value`` must be in the range of a 32-bit float, or no finite number at all."""
    summary = _text(1, _text(1, tag) + b"\x15" + struct.pack("<f", value))
    return b"\x09" + struct.pack("<d", at) + b"\x10" + _varint(step) + _text(5, summary)


class EventFile:
    """A new file of one run; ``at`` is when the run began, in seconds since 1970."""

    def __init__(self, folder: Path, at: float) -> None:
        number = 0
        while (
            path := folder / f"events.out.tfevents.{int(at):010d}.{socket.gethostname()}.{os.getpid()}.{number}"
        ).exists():
            number += 1
        self.path = path
        self._file = path.open("xb")
        self._tags: dict[str, bytes] = {}
        self._file.write(record(b"\x09" + struct.pack("<d", at) + _text(3, _VERSION)))

    def scalar(self, tag: str, step: int, at: float, value: float) -> None:
        name = self._tags.get(tag)
        if name is None:
            name = self._tags[tag] = tag.encode()
        self._file.write(record(scalar_event(name, step, at, value)))

    def close(self) -> None:
        self._file.close()
