"""What an output store can do: eight verbs. It decides nothing; the lane says what is written, the reader what is read.

A store is used by one writer at a time. Should two masters ever write (one that does not know yet that it lost the
lead), the versions of the streams keep every byte written once: the later one gets ``Stale`` and looks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from clutch.master.output.records import Aged, Segment, Span, StreamChange, StreamState
from clutch.wire.ids import Fence, MemberId, TaskId


@runtime_checkable
class OutputStore(Protocol):
    """Streams and their segments, durable."""

    async def states(self, incarnations: Sequence[tuple[MemberId, Fence]]) -> list[StreamState]:
        """The streams of these incarnations that the store knows, in any order."""
        ...

    async def streams(self, *tasks: TaskId) -> list[StreamState]:
        """All streams of these tasks, in the order in which they first appeared."""
        ...

    async def write(self, changes: Sequence[StreamChange]) -> list[int]:
        """Commit all of it at once; returns when it is durable, with the id of each changed stream.

        ``Stale`` when a stream is not at the version before the one given; ``DiskFull`` and the like: nothing was
        written, and a later call may succeed.
        """
        ...

    async def segments(self, span: Span) -> list[Segment]:
        """The segments of a stretch of a stream; ``Corrupt`` when stored bytes fail their checksum."""
        ...

    async def oldest(self, after: tuple[float, int, int], limit: int) -> list[Aged]:
        """Segments that hold bytes, by (last_at, stream, start), those after the given one."""
        ...

    async def size_bytes(self) -> int:
        """Stored bytes of all segments."""
        ...

    async def forget(self, task: TaskId) -> int:
        """Remove everything of a task, in steps between which writes go on; how many streams went."""
        ...

    async def close(self) -> None: ...
