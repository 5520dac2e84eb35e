"""What a metrics store can do: eight verbs. It decides nothing.

A store is used by one writer at a time; should two masters ever write, the versions of the sources keep every batch
stored once: the later one gets ``Stale`` and looks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from clutch.master.metrics_lane.records import Chunk, ChunkSpan, SourceChange, SourceState, TaskMetrics
from clutch.wire.ids import Epoch, Fence, MemberId, TaskId


@runtime_checkable
class MetricsStore(Protocol):
    """Sources and their chunks, durable."""

    async def known(self, incarnations: Sequence[tuple[MemberId, Fence]]) -> list[SourceState]:
        """Those of these incarnations that the store knows, in any order."""
        ...

    async def newest(self, limit: int) -> list[SourceState]:
        """The incarnations that appeared last, the newest first, without their latest values."""
        ...

    async def task(self, task: TaskId) -> TaskMetrics:
        """What is known of a task."""
        ...

    async def write(self, changes: Sequence[SourceChange]) -> list[int]:
        """Commit all of it at once; returns when it is durable, with the id of each changed source.

        ``Stale`` when a source is not at the version before the one given; ``DiskFull`` and the like: nothing was
        written, and a later call may succeed.
        """
        ...

    async def resume(self, task: TaskId, epoch: Epoch, step: int) -> None:
        """Keep the step from which an epoch resumed; the first word on it counts."""
        ...

    async def chunks(self, span: ChunkSpan) -> list[Chunk]:
        """Chunks in order; ``Corrupt`` when stored bytes fail their checksum."""
        ...

    async def forget(self, task: TaskId) -> int:
        """Remove everything of a task; how many sources went."""
        ...

    async def close(self) -> None: ...
