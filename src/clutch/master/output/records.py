"""What a store keeps: one row for each stream of an incarnation, and segments that cover the stream without holes.

A *segment* is a stretch of a stream: packed bytes, a tail that is durable but not packed yet, or the note that the
bytes are gone. Rows say everything that is needed to find a line without looking at bytes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import msgspec

from clutch.wire.errors import BadRequest
from clutch.wire.ids import Fence, MemberId

STREAMS = ("stdout", "stderr")
SEGMENT_BYTES = 256 * 2**10
"""Raw bytes of a packed segment, about; never more than twice that."""
NAME_MAX = 500
TAIL_ROWS_MAX = 256
"""A tail of many small rows is packed even when it is short."""


class Key(NamedTuple):
    """One stream of one incarnation. (A named tuple, since it is looked up for every frame.)"""

    member: MemberId
    fence: Fence
    stream: str

    def __str__(self) -> str:
        return f"{self.member} {self.fence} {self.stream}"


class Kind(IntEnum):
    """What a segment is. The numbers are stored."""

    TAIL = 0
    """Bytes that will be packed together with later ones."""
    PACKED = 1
    LOST = 2
    """Bytes that never arrived."""
    REMOVED = 3
    """Bytes that retention has taken."""

    @property
    def is_gap(self) -> bool:
        return self >= Kind.LOST


class StreamState(msgspec.Struct, frozen=True):
    """How far a stream is. ``version`` grows with every change of it, ``id`` is 0 until the store knows it."""

    member: MemberId
    fence: Fence
    stream: str
    id: int = 0
    version: int = 0
    committed: int = 0
    """Every byte before this offset is durable, or noted as gone."""
    lines: int = 0
    """Newlines before ``committed``."""
    line_start: int = 0
    """Where the line that is under way began,"""
    line_at: float = 0.0
    """and when."""
    tail_start: int = 0
    tail_rows: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    done: bool = False

    @property
    def key(self) -> Key:
        return Key(self.member, self.fence, self.stream)

    @property
    def tail_bytes(self) -> int:
        return self.committed - self.tail_start


class Segment(msgspec.Struct, frozen=True):
    """Bytes ``start`` to ``end`` of a stream. ``body`` is packed (see ``packing``), and empty where only the index was
    asked for."""

    start: int
    end: int
    kind: Kind
    first_at: float
    last_at: float
    first_line: int
    """Newlines before ``start``."""
    lines: int
    """Newlines inside."""
    line_start: int
    """Where the line that is under way at ``start`` began; ``start`` itself when one begins there."""
    line_at: float
    size: int = 0
    """Stored bytes."""
    checksum: int = 0
    body: bytes = b""


class StreamChange(msgspec.Struct, frozen=True):
    """One stream's part of a commit: its new state (one version on), segments to add and to drop (by their start)."""

    state: StreamState
    puts: tuple[Segment, ...] = ()
    drops: tuple[int, ...] = ()


class Span(msgspec.Struct, frozen=True):
    """Which segments of a stream: those that touch ``start`` to ``stop``, in order, up to about ``limit_bytes`` raw
    bytes of them, or of the index alone up to ``limit_rows``. At least one, if there is any."""

    stream: int
    start: int = 0
    stop: int = 2**62
    newest_first: bool = False
    limit_bytes: int = 2 * SEGMENT_BYTES
    limit_rows: int = 1_000
    bodies: bool = True


class Aged(msgspec.Struct, frozen=True):
    """A segment as retention sees it."""

    task: str
    stream: int
    start: int
    last_at: float
    size: int


def checked_key(key: Key) -> Key:
    """The key, or ``BadRequest`` where no store could keep it."""
    member, fence = key.member, key.fence
    if key.stream not in STREAMS:
        why = f"no stream is called {key.stream!r}"
    elif not all(0 <= number < 2**31 for number in (member.rank, fence.generation, fence.epoch, fence.incarnation)):
        why = "a rank or a number of the fence is out of range"
    elif not all(part.isprintable() and 0 < len(part) <= NAME_MAX for part in (member.task, member.role)):
        why = "the name of the task or of the role cannot be stored"
    else:
        return key
    raise BadRequest(why, object=repr(key.member), next_step="Send what the member's record says.")
