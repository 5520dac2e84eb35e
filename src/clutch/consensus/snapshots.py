"""Snapshot files: their format, how they are kept, and how they travel in pieces.

A file is ``head | body | trailer``: the head says what the snapshot stands for and which keys were applied lately, the
body is the application's bytes (opaque), the trailer a checksum of everything before it. A snapshot under its final
name is whole and durable; one that does not check is refused, never installed.

A stream is go-back-n: the sender keeps a few chunks under way, the receiver says up to where it has everything, and
whatever is lost or out of order is sent again from there.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable, Iterator

import msgspec

from clutch.consensus.files import Files
from clutch.consensus.keys import KeyWindow, WindowState
from clutch.wire.errors import Corrupt, TooNew
from clutch.wire.raft import Entry, RaftId, SnapshotChunk, SnapshotMeta

VERSION = 1
MAGIC = b"CLS" + bytes([VERSION])
_HEAD = struct.Struct("<4sII")
_TRAILER = struct.Struct("<I4s")
_NAME = re.compile(r"^\d{16}-\d{10}\.snap$")
INCOMING = "incoming.part"
OUTGOING = "saving.part"
_READ_BYTES = 1 << 20


class SnapshotHead(msgspec.Struct, frozen=True, array_like=True):
    meta: SnapshotMeta
    keys: WindowState


class SnapshotPlan(msgspec.Struct, frozen=True):
    """All that is needed to write a snapshot's head, so that it can be done away from the member's loop."""

    meta: SnapshotMeta
    keys_before: WindowState
    entries: list[Entry]
    key_window: int

    def head(self) -> SnapshotHead:
        window = KeyWindow(self.key_window, self.keys_before)
        window.fold(self.entries)
        return SnapshotHead(self.meta, window.state())


def file_name(meta: SnapshotMeta) -> str:
    return f"{meta.index:016d}-{meta.term:010d}.snap"


def encode_head(head: SnapshotHead) -> bytes:
    payload = msgspec.msgpack.encode(head)
    return _HEAD.pack(MAGIC, len(payload), zlib.crc32(payload)) + payload


def write(files: Files, head: SnapshotHead, body: Iterable[bytes]) -> str:
    """Save a snapshot durably and return its name."""
    files.create(OUTGOING, 0)
    offset = checksum = 0
    for piece in _with_head(head, body):
        files.write(OUTGOING, offset, piece)
        offset += len(piece)
        checksum = zlib.crc32(piece, checksum)
    files.write(OUTGOING, offset, _TRAILER.pack(checksum, MAGIC))
    files.sync(OUTGOING)
    name = file_name(head.meta)
    files.rename(OUTGOING, name)
    return name


def _with_head(head: SnapshotHead, body: Iterable[bytes]) -> Iterator[bytes]:
    yield encode_head(head)
    yield from body


def read_head(files: Files, name: str) -> tuple[SnapshotHead, int]:
    """What a snapshot stands for and where its body begins. Raises Corrupt or TooNew."""
    start = files.read(name, 0, _HEAD.size)
    if len(start) < _HEAD.size:
        raise Corrupt("the snapshot is cut short", object=name)
    magic, length, checksum = _HEAD.unpack(start)
    if magic[:3] == MAGIC[:3] and magic[3] > VERSION:
        raise TooNew(f"written in format {magic[3]}, this release reads {VERSION}", object=name)
    payload = files.read(name, _HEAD.size, length)
    if magic != MAGIC or len(payload) != length or zlib.crc32(payload) != checksum:
        raise Corrupt("the snapshot's head fails its checksum", object=name)
    try:
        return msgspec.msgpack.decode(payload, type=SnapshotHead), _HEAD.size + length
    except msgspec.MsgspecError as error:
        raise Corrupt(f"the snapshot's head does not decode: {error}", object=name) from error


def verify(files: Files, name: str) -> None:
    """Read the whole file against its trailer. Raises Corrupt."""
    total = files.size(name)
    covered = total - _TRAILER.size
    checksum = offset = 0
    while offset < covered:
        piece = files.read(name, offset, min(_READ_BYTES, covered - offset))
        if not piece:
            break
        checksum = zlib.crc32(piece, checksum)
        offset += len(piece)
    trailer = files.read(name, covered, _TRAILER.size) if covered > 0 else b""
    if trailer != _TRAILER.pack(checksum, MAGIC):
        raise Corrupt("the snapshot fails its checksum", object=name)


def body(files: Files, name: str) -> bytes:
    """The application's bytes, all at once."""
    _, offset = read_head(files, name)
    return files.read(name, offset, files.size(name) - offset - _TRAILER.size)


def prune(files: Files, current: SnapshotMeta, in_use: tuple[str, ...] = ()) -> None:
    """Remove snapshots older than the current one. A newer one may just have been saved and not be noted yet."""
    keep = file_name(current)
    for name in files.names():
        if _NAME.match(name) and name < keep and name not in in_use:
            files.remove(name)


def clear(files: Files, current: SnapshotMeta) -> None:
    """At start, when nothing is under way: keep the current snapshot only."""
    for name in files.names():
        if (_NAME.match(name) and name != file_name(current)) or name in (OUTGOING, INCOMING):
            files.remove(name)


class Outgoing:
    """A snapshot on its way to one follower."""

    def __init__(self, peer: RaftId, meta: SnapshotMeta, total: int, now: int) -> None:
        self.peer = peer
        self.meta = meta
        self.name = file_name(meta)
        self.total = total
        self.acknowledged = 0
        self.sent = 0
        self.heard_at = now

    def next_piece(self, chunk_bytes: int, window: int) -> tuple[int, int] | None:
        """(offset, size) of what may be sent now."""
        if self.sent >= self.total or self.sent - self.acknowledged >= chunk_bytes * window:
            return None
        offset = self.sent
        size = min(chunk_bytes, self.total - offset)
        self.sent += size
        return offset, size

    def on_acknowledged(self, offset: int, now: int) -> None:
        if offset > self.acknowledged:
            self.acknowledged = offset
            self.heard_at = now
        self.sent = max(self.sent, self.acknowledged)

    def go_back(self) -> None:
        self.sent = self.acknowledged


class Incoming:
    """A snapshot on its way here. One at a time; a newer one takes its place."""

    def __init__(self, files: Files, chunk: SnapshotChunk) -> None:
        self.meta = chunk.snapshot
        self.sender = chunk.sender
        self.term = chunk.term
        self.total = chunk.total
        self.received = 0
        self._checksum = 0
        self._files = files
        self._trailer = b""
        files.create(INCOMING, 0)

    @property
    def complete(self) -> bool:
        return self.received == self.total

    def take(self, chunk: SnapshotChunk) -> None:
        """Write the piece if it is the next one; anything else is ignored and asked for again."""
        if chunk.offset != self.received or self.received + len(chunk.data) > self.total:
            return
        self._files.write(INCOMING, self.received, chunk.data)
        covered = max(0, min(len(chunk.data), self.total - _TRAILER.size - self.received))
        self._checksum = zlib.crc32(memoryview(chunk.data)[:covered], self._checksum)
        self._trailer += chunk.data[covered:]
        self.received += len(chunk.data)

    def check(self) -> None:
        """Raises Corrupt if what arrived is not what was saved, or not what was announced."""
        if self._trailer != _TRAILER.pack(self._checksum, MAGIC):
            raise Corrupt("the received snapshot fails its checksum", object=str(self.meta.index))
        head, _ = read_head(self._files, INCOMING)
        if head.meta != self.meta:
            raise Corrupt("the received snapshot is another one than announced", object=str(self.meta.index))

    def keep(self) -> str:
        """Give the durable file its final name."""
        name = file_name(self.meta)
        self._files.rename(INCOMING, name)
        return name
