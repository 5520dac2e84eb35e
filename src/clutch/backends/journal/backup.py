"""A journal as one portable file, from any way of keeping it to any other.

The file is a magic word, a format number, then frames: length, checksum, msgpack. Each frame's checksum goes on from
the one before, so a frame that is changed, missing, doubled or swapped is noticed; the last frame says how much there
must be and holds a digest of everything before it, so a file that was cut short is noticed too.

A backup is of one moment and does not stop the leader. A restore reads the whole file once before it writes anything,
then fills the empty target in one transaction under the next generation: whatever was started before is fenced.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec.structs import asdict, replace

from clutch.backends.journal.base import Maintenance
from clutch.backends.journal.shapes import COLUMNS, view_from
from clutch.wire.errors import BadRequest, ClutchError, Conflict, Corrupt, DiskFull, NotFound, TooNew, Unavailable
from clutch.wire.journal import Chunk, Origin, OutboxItem, Row, Snapshot

MAGIC = b"CLUTCHJB"
FORMAT = 1
_START = struct.Struct(">8sH")
_FRAME = struct.Struct(">II")


class Summary(msgspec.Struct, frozen=True):
    """What a backup holds."""

    origin: Origin
    rows: int
    views: int
    outbox: int
    snapshot_index: int | None


class _Part(msgspec.Struct, frozen=True, tag="part"):
    """A chunk whose views say their table and carry their fields by name, so that views may gain fields."""

    snapshot: Snapshot | None
    rows: tuple[Row, ...]
    views: list[tuple[str, dict[str, Any]]]
    outbox: tuple[OutboxItem, ...]


class _Begin(msgspec.Struct, frozen=True, tag="begin"):
    origin: Origin


class _End(msgspec.Struct, frozen=True, tag="end"):
    summary: Summary
    digest: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Begin | _Part | _End).decode


class _Count:
    """Adds up what passes by."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.rows = self.views = self.outbox = 0
        self.snapshot_index: int | None = None

    def add(self, chunk: Chunk) -> None:
        self.rows += len(chunk.rows)
        self.views += len(chunk.views)
        self.outbox += len(chunk.outbox)
        if chunk.snapshot is not None:
            self.snapshot_index = chunk.snapshot.index

    def summary(self) -> Summary:
        return Summary(self.origin, self.rows, self.views, self.outbox, self.snapshot_index)


class _Writer:
    """Writes beside the target; ``finish`` puts the whole file in its place at once."""

    def __init__(self, path: Path, origin: Origin) -> None:
        self._path = path
        self._partial = path.with_name(path.name + ".partial")
        self._count = _Count(origin)
        self._checksum = 0
        self._digest = hashlib.blake2b(digest_size=16)
        if path.exists():
            raise Conflict("the file exists", object=str(path), next_step="Name another file, or remove this one.")
        with _speaking_of(path):
            self._file: BinaryIO = self._partial.open("wb")
            self._partial.chmod(0o600)
            self._put(_START.pack(MAGIC, FORMAT))
            self._frame(_Begin(origin))

    def _put(self, data: bytes) -> None:
        self._digest.update(data)
        self._file.write(data)

    def _frame(self, content: _Begin | _Part | _End) -> None:
        payload = _encode(content)
        self._checksum = zlib.crc32(payload, self._checksum)
        self._put(_FRAME.pack(len(payload), self._checksum) + payload)

    def add(self, chunk: Chunk) -> None:
        self._count.add(chunk)
        views = [(view.table, asdict(view)) for view in chunk.views]
        with _speaking_of(self._path):
            self._frame(_Part(chunk.snapshot, chunk.rows, views, chunk.outbox))

    def finish(self) -> Summary:
        summary = self._count.summary()
        with _speaking_of(self._path):
            self._frame(_End(summary, self._digest.digest()))
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._partial.rename(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        return summary

    def abandon(self) -> None:
        try:
            self._file.close()
        except OSError:
            pass  # what could not be written is thrown away with the rest
        finally:
            self._partial.unlink(missing_ok=True)


@contextmanager
def _speaking_of(path: Path) -> Iterator[None]:
    """What the file system says, as one of our errors."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound("there is no such file or folder", object=str(path), next_step="Check the path.") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            step = "Free space, or name another disk."
            raise DiskFull("the disk is full", object=str(path), next_step=step) from error
        raise Unavailable(error.strerror or str(error), object=str(path), next_step="Check the path.") from error


async def backup(journal: Maintenance, path: Path) -> Summary:
    """Copy a journal, which may be in use, into a new file."""
    async with journal.export() as (origin, chunks):
        writer = await asyncio.to_thread(_Writer, path, origin)
        try:
            async for chunk in chunks:
                await asyncio.to_thread(writer.add, chunk)
            return await asyncio.to_thread(writer.finish)
        except BaseException:
            writer.abandon()
            raise


async def restore(journal: Maintenance, path: Path) -> Summary:
    """Fill an empty journal from a file, under the next generation. Raises before anything is changed."""
    summary = await asyncio.to_thread(inspect_backup, path)
    origin = replace(summary.origin, generation=summary.origin.generation + 1)
    await journal.adopt(origin, _chunks(path))
    return replace(summary, origin=origin)


def inspect_backup(path: Path) -> Summary:
    """What the file holds, after checking all of it."""
    count: _Count | None = None
    for content in _contents(path):
        if isinstance(content, _Begin):
            count = _Count(content.origin)
        elif isinstance(content, _Part) and count is not None:
            count.add(_chunk(content, path))
        elif isinstance(content, _End) and count is not None and content.summary == count.summary():
            return content.summary
        else:
            break
    raise _damaged(path, "its parts do not add up")


def _chunks(path: Path) -> Iterator[Chunk]:
    for content in _contents(path):
        if isinstance(content, _Part):
            yield _chunk(content, path)


def _chunk(part: _Part, path: Path) -> Chunk:
    views = []
    for table, values in part.views:
        unknown = sorted(set(values) - set(COLUMNS.get(table, {})))
        if unknown:
            raise TooNew(
                f"view {table} has fields this release does not know: {', '.join(unknown)}",
                object=str(path),
                next_step="Restore with a release at least as new as the one that wrote it; nothing was changed.",
            )
        views.append(view_from(table, values))
    return Chunk(part.snapshot, part.rows, tuple(views), part.outbox)


def _contents(path: Path) -> Iterator[_Begin | _Part | _End]:
    """Each checked frame; ends after the last one, or raises."""
    with _speaking_of(path), path.open("rb") as file:
        size = path.stat().st_size
        start = file.read(_START.size)
        _check_start(start, path)
        digest = hashlib.blake2b(start, digest_size=16)
        checksum = 0
        while len(head := file.read(_FRAME.size)) == _FRAME.size:
            length, kept = _FRAME.unpack(head)
            payload = file.read(length) if length <= size else b""
            if len(payload) != length:
                raise _damaged(path, "it is cut short")
            checksum = zlib.crc32(payload, checksum)
            if checksum != kept:
                raise _damaged(path, "a part fails its checksum")
            try:
                content = _decode(payload)
            except msgspec.DecodeError as error:
                raise _damaged(path, f"a part does not decode: {error}") from error
            if isinstance(content, _End):
                if content.digest != digest.digest() or file.read(1):
                    raise _damaged(path, "its digest is wrong")
                yield content
                return
            digest.update(head + payload)
            yield content
        raise _damaged(path, "it is cut short")


def _check_start(start: bytes, path: Path) -> None:
    if not start.startswith(MAGIC) and not MAGIC.startswith(start):
        raise BadRequest("this is not a backup of a journal", object=str(path), next_step="Name a file that is one.")
    if len(start) < _START.size:
        raise _damaged(path, "it is cut short")
    _, number = _START.unpack(start)
    if number > FORMAT:
        raise TooNew(
            f"the backup has format {number}, this release reads formats up to {FORMAT}",
            object=str(path),
            next_step="Restore with a release at least as new as the one that wrote it; nothing was changed.",
        )


def _damaged(path: Path, what: str) -> ClutchError:
    return Corrupt(
        f"the backup is damaged: {what}", object=str(path), next_step="Use another backup; nothing was changed."
    )
