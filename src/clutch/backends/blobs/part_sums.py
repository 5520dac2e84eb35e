"""Checksums of a large file's parts: they are taken at the speed of memory, by many threads, as SHA-256 never is.

They are taken together with the hash that seals the file and name it, so what fits them is what was sealed. They find
damage, not deceit: where they are missing or do not fit, the hash decides.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import xxhash

FROM_BYTES = 32 << 20
"""Files below are hashed in no time."""
_PART_BYTES = 8 << 20
_PARTS_MAX = 256
"""An extended attribute has four kilobytes at most on some file systems."""
_READ_BYTES = 1 << 20
_THREADS_MAX = 4
_HEAD = struct.Struct("<32sQI")


class PartSums(msgspec.Struct, frozen=True):
    """XXH3 of each part, in 64 bits; the last part may be shorter."""

    part_bytes: int
    sums: tuple[int, ...]

    def encode(self, sha256: str) -> bytes:
        head = _HEAD.pack(bytes.fromhex(sha256), self.part_bytes, len(self.sums))
        return head + struct.pack(f"<{len(self.sums)}Q", *self.sums)


class Summing:
    """The sums of a file whose bytes come in order, a piece at a time."""

    def __init__(self, part_bytes: int) -> None:
        self._part_bytes = part_bytes
        self._left = part_bytes
        self._sum = xxhash.xxh3_64()
        self._sums: list[int] = []

    def add(self, piece: memoryview) -> None:
        while piece:
            now, piece = piece[: self._left], piece[self._left :]
            self._sum.update(now)
            self._left -= len(now)
            if not self._left:
                self._end_part()

    def sums(self) -> PartSums:
        """Of all that came; nothing may come any more."""
        if self._left < self._part_bytes:
            self._end_part()
        return PartSums(self._part_bytes, tuple(self._sums))

    def _end_part(self) -> None:
        self._sums.append(self._sum.intdigest())
        self._sum, self._left = xxhash.xxh3_64(), self._part_bytes


def decode(content: bytes, sha256: str, size_bytes: int) -> PartSums | None:
    """None if these are not the sums of a file with this hash and size."""
    if len(content) < _HEAD.size:
        return None
    whose, part_bytes, count = _HEAD.unpack_from(content)
    if whose.hex() != sha256 or not part_bytes or len(content) != _HEAD.size + 8 * count:
        return None
    if count != -(-size_bytes // part_bytes):
        return None
    return PartSums(part_bytes, struct.unpack_from(f"<{count}Q", content, _HEAD.size))


def part_bytes_of(size_bytes: int) -> int:
    """How large the parts of such a file are; 0: it has none."""
    if size_bytes < FROM_BYTES:
        return 0
    part_bytes = _PART_BYTES
    while size_bytes > part_bytes * _PARTS_MAX:
        part_bytes *= 2
    return part_bytes


def sum_of(descriptor: int, start: int, stop: int) -> int:
    """Of the bytes that a file holds there."""
    buffer = memoryview(bytearray(min(_READ_BYTES, stop - start)))
    found = xxhash.xxh3_64()
    while start < stop:
        count = os.preadv(descriptor, [buffer[: stop - start]], start)
        if not count:
            raise OSError(errno.EIO, "the file became shorter while it was read")
        found.update(buffer[:count])
        start += count
    return found.intdigest()


def copied_by_parts(copy: Callable[[int, int], None], origin: int, size_bytes: int, sums: PartSums) -> bool:
    """Whether all that ``copy`` (from, to) took out of the origin fits. Nobody may write to the origin meanwhile.

    One thread copies, since the kernel lets only one write to a file at a time; others check behind it, in the origin:
    its pages are the ones just copied, and nobody who reads there waits for who writes the target.
    """
    with ThreadPoolExecutor(min(_THREADS_MAX, os.cpu_count() or 1)) as threads:
        found: list[Future[int]] = []
        for start in range(0, size_bytes, sums.part_bytes):
            stop = min(start + sums.part_bytes, size_bytes)
            copy(start, stop)
            found.append(threads.submit(sum_of, origin, start, stop))
        return tuple(one.result() for one in found) == sums.sums
