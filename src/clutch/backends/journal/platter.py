"""What a journal in memory is written on: a platter that several masters open, with the faults of a disk on request.

The ``MemoryStore`` is the platter. It outlives the processes that write to it: a simulated master crashes by dropping
its ``MemoryJournal``, and the next one opens the same store. Committed batches are kept as frames of encoded bytes,
each with its length and checksum, so a power cut can tear the last frame and a bit can rot in the middle, as on a disk.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Protocol

import msgspec

from clutch.backends.journal.shapes import (
    KEPT_SNAPSHOTS,
    TABLES,
    Tail,
    chain,
    changes_of,
    columns_of,
    nothing_to_start_from,
    verified,
)
from clutch.wire.errors import Corrupt
from clutch.wire.journal import Batch, OutboxItem, Row, Snapshot
from clutch.wire.views import View

_FRAME = struct.Struct(">II")
_encode = msgspec.msgpack.Encoder().encode
_decode_row = msgspec.msgpack.Decoder(Row).decode


class CommitHook(Protocol):
    """What may happen around a commit. An error raised in ``before_commit`` refuses the batch (``DiskFull``)."""

    async def before_commit(self, batch: Batch) -> None:
        """The batch has not reached the platter. Leadership is checked after this returns."""
        ...

    async def after_commit(self, batch: Batch) -> None:
        """The batch is on the platter and nobody knows yet."""
        ...


class _Head(msgspec.Struct, frozen=True, array_like=True):
    generation: int
    term: int
    holder: str
    expires_at: float
    base_index: int
    base_checksum: int
    snapshots: list[tuple[bytes, int]]


class _Wrote(msgspec.Struct, frozen=True, array_like=True):
    """One committed batch, or all that was left after rows were forgotten."""

    rows: list[msgspec.Raw]
    sums: list[int]
    put: dict[str, list[msgspec.Raw]]
    gone: dict[str, list[str]]
    waiting: list[OutboxItem]
    delivered: tuple[str, ...]


def _framed(payload: bytes) -> bytes:
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def _unframed(data: bytes) -> list[bytes]:
    """Whole frames from the start. A torn last frame is dropped; a damaged one before it is ``Corrupt``."""
    frames: list[bytes] = []
    at = 0
    while at + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, at)
        payload = data[at + _FRAME.size : at + _FRAME.size + length]
        at += _FRAME.size + length
        if at > len(data):
            break
        if zlib.crc32(payload) != checksum:
            if at == len(data):
                break
            raise Corrupt(
                f"frame {len(frames)} fails its checksum",
                object="memory journal",
                next_step="Restore the last backup (clutch restore); nothing was changed.",
            )
        frames.append(payload)
    return frames


class MemoryStore:
    """The platter: rows, views, outbox, snapshots and the leader row. ``clock`` is the store's own clock."""

    def __init__(self, clock: Callable[[], float], hook: CommitHook | None = None) -> None:
        self.clock = clock
        self.hook = hook
        self.generation = 1
        self.term = 0
        self.holder = ""
        self.expires_at = 0.0
        self.base_index = 0
        self.base_checksum = 0
        self.commits = 0
        self._rows: list[bytes] = []
        self._sums: list[int] = []
        self._frames: list[bytes] = []
        self._snapshots: list[tuple[bytes, int]] = []
        self._views: dict[str, dict[str, View]] = {table: {} for table in TABLES}
        self._outbox: dict[str, OutboxItem] = {}

    @property
    def last_index(self) -> int:
        return self.base_index + len(self._rows)

    @property
    def last_checksum(self) -> int:
        return self._sums[-1] if self._sums else self.base_checksum

    def write(self, batch: Batch) -> None:
        """Put a checked batch on the platter, whole."""
        changes = changes_of(batch)
        rows = [_encode(row) for row in batch.rows]
        sums = chain(batch.rows, self.last_checksum)
        wrote = _Wrote(
            [msgspec.Raw(row) for row in rows],
            sums,
            {table: [msgspec.Raw(_encode(view)) for view in found.values()] for table, found in changes.put.items()},
            changes.gone,
            list(changes.waiting.values()),
            changes.delivered,
        )
        self._frames.append(_framed(_encode(wrote)))
        self._rows.extend(rows)
        self._sums.extend(sums)
        for table, found in changes.put.items():
            self._views[table].update(found)
        for table, keys in changes.gone.items():
            for key in keys:
                self._views[table].pop(key, None)
        self._outbox.update(changes.waiting)
        for token in changes.delivered:
            self._outbox.pop(token, None)
        self.commits += 1

    def read(self, after: int, limit: int) -> list[Row]:
        tail = Tail(self.base_index, self.base_checksum, self.last_index)
        first = max(after - self.base_index - 1, 0)
        stored: list[tuple[Row, int]] = []
        for place in range(first, min(first + limit + 1, len(self._rows))):
            encoded = self._rows[place]
            if not encoded:
                continue
            try:
                row = _decode_row(encoded)
            except msgspec.DecodeError:
                row = Row(self.base_index + place + 1, 0, 0.0, "", "", 0, b"")
            stored.append((row, self._sums[place]))
        return verified(after, limit, tail, stored)

    def views(self, table: str) -> dict[str, View]:
        columns_of(table)
        return self._views[table]

    def outbox(self) -> list[OutboxItem]:
        return sorted(self._outbox.values(), key=lambda item: (item.due_at, item.token))

    def keep_snapshot(self, snapshot: Snapshot) -> None:
        self._snapshots.append((_encode(snapshot), snapshot.checksum()))
        self._snapshots = self._snapshots[-KEPT_SNAPSHOTS:]

    def snapshot(self) -> Snapshot | None:
        """The newest that passes its checksum."""
        for encoded, checksum in reversed(self._snapshots):
            try:
                snapshot = msgspec.msgpack.decode(encoded, type=Snapshot)
            except msgspec.DecodeError:
                continue
            if snapshot.checksum() == checksum:
                return snapshot
        if self.base_index:
            raise nothing_to_start_from(self.base_index)
        return None

    def forget(self, before: int) -> int:
        """Drop rows below ``before`` and write what is left anew, as one frame."""
        count = before - 1 - self.base_index
        if count <= 0:
            return 0
        self.base_index, self.base_checksum = before - 1, self._sums[count - 1]
        del self._rows[:count], self._sums[:count]
        kept = [pair for pair in self._snapshots if _index_of(pair[0]) >= self.base_index]
        self._snapshots = kept
        whole = _Wrote(
            [msgspec.Raw(row) for row in self._rows],
            list(self._sums),
            {table: [msgspec.Raw(_encode(view)) for view in found.values()] for table, found in self._views.items()},
            {},
            list(self._outbox.values()),
            (),
        )
        self._frames = [_framed(_encode(whole))]
        return count

    def is_empty(self) -> bool:
        return not (self.last_index or self._snapshots or self._outbox or any(self._views.values()))

    def become(self, other: MemoryStore) -> None:
        """Hold what the other holds, in one step."""
        self.__dict__.update(other.__dict__)

    def serialise(self) -> bytes:
        """The platter as bytes: one frame of leader row and snapshots, then a frame per batch."""
        head = _Head(
            self.generation,
            self.term,
            self.holder,
            self.expires_at,
            self.base_index,
            self.base_checksum,
            self._snapshots,
        )
        return b"".join([_framed(_encode(head)), *self._frames])

    @classmethod
    def from_bytes(cls, data: bytes, clock: Callable[[], float], hook: CommitHook | None = None) -> MemoryStore:
        """The platter as it is found after a power cut: a last frame that is not whole never happened."""
        store = cls(clock, hook)
        payloads = _unframed(data)
        if not payloads:
            return store
        head = msgspec.msgpack.decode(payloads[0], type=_Head)
        store.generation, store.term, store.holder = head.generation, head.term, head.holder
        store.expires_at, store._snapshots = head.expires_at, list(head.snapshots)
        store.base_index, store.base_checksum = head.base_index, head.base_checksum
        for payload in payloads[1:]:
            wrote = msgspec.msgpack.decode(payload, type=_Wrote)
            store._rows.extend(bytes(row) for row in wrote.rows)
            store._sums.extend(wrote.sums)
            for table, found in wrote.put.items():
                views = (msgspec.msgpack.decode(view, type=TABLES[table]) for view in found)
                store._views[table].update({view.key: view for view in views})
            for table, keys in wrote.gone.items():
                for key in keys:
                    store._views[table].pop(key, None)
            store._outbox.update({item.token: item for item in wrote.waiting})
            for token in wrote.delivered:
                store._outbox.pop(token, None)
            store._frames.append(_framed(payload))
            store.commits += 1
        return store

    def torn(self, cut_bytes: int) -> MemoryStore:
        """This platter after a power cut that lost its last ``cut_bytes``."""
        data = self.serialise()
        return MemoryStore.from_bytes(data[: len(data) - cut_bytes], self.clock, self.hook)

    def damage_row(self, index: int) -> None:
        """Flip the last bit of a stored row."""
        place = index - self.base_index - 1
        row = self._rows[place]
        self._rows[place] = row[:-1] + bytes([row[-1] ^ 1])

    def lose_row(self, index: int) -> None:
        """Have nothing where a row was."""
        self._rows[index - self.base_index - 1] = b""

    def damage_snapshot(self, age: int = 0) -> None:
        """Flip the last bit of a stored snapshot: the newest, or the one before it (1)."""
        encoded, checksum = self._snapshots[-1 - age]
        self._snapshots[-1 - age] = (encoded[:-1] + bytes([encoded[-1] ^ 1]), checksum)


def _index_of(encoded: bytes) -> int:
    try:
        return msgspec.msgpack.decode(encoded, type=Snapshot).index
    except msgspec.DecodeError:
        return -1
