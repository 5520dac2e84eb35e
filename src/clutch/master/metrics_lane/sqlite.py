"""Metrics in a SQLite file of their own, beside the journal's: the embedded default."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clutch.master.lanes.sqlite_lane import SqliteLane
from clutch.master.metrics_lane.records import Chunk, ChunkSpan, SourceChange, SourceState, TaskMetrics
from clutch.master.metrics_lane.sqlite_file import Reader, Writer
from clutch.wire.ids import Epoch, Fence, MemberId, TaskId


class SqliteMetricsStore:
    """Use ``open``. One writer thread, one reader thread; the event loop never waits for the disk."""

    def __init__(self, path: Path) -> None:
        self._lane: SqliteLane[Writer, Reader] = SqliteLane(path, "metrics")

    @classmethod
    async def open(cls, path: Path | str, *, max_bytes: int | None = None) -> SqliteMetricsStore:
        """Open or create the file. It never grows beyond ``max_bytes``."""
        store = cls(Path(path))
        await store._lane.open(Writer, Reader, max_bytes)
        return store

    async def known(self, incarnations: Sequence[tuple[MemberId, Fence]]) -> list[SourceState]:
        return await self._lane.read(Reader.known, incarnations)

    async def newest(self, limit: int) -> list[SourceState]:
        return await self._lane.read(Reader.newest, limit)

    async def task(self, task: TaskId) -> TaskMetrics:
        return await self._lane.read(Reader.task, task)

    async def write(self, changes: Sequence[SourceChange]) -> list[int]:
        return await self._lane.write(Writer.write, changes)

    async def resume(self, task: TaskId, epoch: Epoch, step: int) -> None:
        await self._lane.write(Writer.resume, task, epoch, step)

    async def chunks(self, span: ChunkSpan) -> list[Chunk]:
        return await self._lane.read(Reader.chunks, span)

    async def forget(self, task: TaskId) -> int:
        total, more = 0, True
        while more:
            gone, more = await self._lane.write(Writer.forget_some, task)
            total += gone
        return total

    async def close(self) -> None:
        await self._lane.close()
