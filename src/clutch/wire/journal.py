"""What the journal keeps: rows of facts, changes to views, effects that wait in the outbox, and who leads.

One ``Batch`` is one transaction: all of it is durable or none of it happened.
"""

from __future__ import annotations

import zlib

import msgspec

from clutch.wire.ids import Term
from clutch.wire.views import View


class Row(msgspec.Struct, frozen=True):
    """One fact at its place. ``payload`` is the fact in msgpack; ``kind`` and ``version`` say how to read it."""

    index: int
    term: Term
    at: float
    cause: str
    kind: str
    version: int
    payload: bytes

    def checksum(self, previous: int) -> int:
        """CRC-32 over the row and its predecessor's checksum: a changed, missing or swapped row is noticed.

        ``at + 0.0`` makes 5 and 5.0, and the two zeroes, one number, as every store does.
        """
        head = f"{self.index}|{self.term}|{self.at + 0.0!r}|{self.cause}|{self.kind}|{self.version}|".encode()
        return zlib.crc32(self.payload, zlib.crc32(head, previous))


class Gone(msgspec.Struct, frozen=True):
    """A view row that no longer exists."""

    table: str
    key: str


class OutboxItem(msgspec.Struct, frozen=True):
    """An effect that must happen at least once: a webhook, a cloud call. ``token`` makes it idempotent."""

    token: str
    kind: str
    due_at: float
    payload: bytes


class Batch(msgspec.Struct, frozen=True):
    """What one turn of the loop makes durable."""

    rows: tuple[Row, ...]
    views: tuple[View | Gone, ...] = ()
    outbox: tuple[OutboxItem, ...] = ()
    delivered: tuple[str, ...] = ()
    """Tokens of outbox items that are done and may be forgotten."""


class Snapshot(msgspec.Struct, frozen=True):
    """The whole live state after ``index``. Start is this plus the rows behind it."""

    index: int
    version: int
    payload: bytes

    def checksum(self) -> int:
        return zlib.crc32(self.payload, zlib.crc32(f"{self.index}|{self.version}|".encode()))


class Origin(msgspec.Struct, frozen=True):
    """Where a copy of a journal begins and ends, so that its chain of checksums goes on unbroken in the target."""

    generation: int
    term: Term
    base_index: int
    """Rows up to this one were forgotten behind a snapshot; 0 when none were."""
    base_checksum: int
    last_index: int
    last_checksum: int


class Chunk(msgspec.Struct, frozen=True):
    """A piece of a journal under copy, small enough to hold in memory. Rows of successive chunks are in order."""

    snapshot: Snapshot | None = None
    rows: tuple[Row, ...] = ()
    views: tuple[View, ...] = ()
    outbox: tuple[OutboxItem, ...] = ()


class Leadership(msgspec.Struct, frozen=True):
    """The right to append. Another holder's take-over makes it void."""

    generation: int
    """Raised by restoring a backup; prefixes every fence."""
    term: Term
    holder: str
    last_index: int
    """Of the last row in the journal, whoever wrote it."""
