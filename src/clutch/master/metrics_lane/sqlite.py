"""Metrics in a SQLite file of their own, beside the journal's: the embedded default."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from clutch.backends.journal.sqlite_file import speaking_of
from clutch.master.metrics_lane.records import Chunk, ChunkSpan, SourceChange, SourceState, TaskMetrics
from clutch.master.metrics_lane.sqlite_file import Reader, Writer
from clutch.wire.ids import Epoch, Fence, MemberId, TaskId

P = ParamSpec("P")
T = TypeVar("T")


class SqliteMetricsStore:
    """Use ``open``. One writer thread, one reader thread; the event loop never waits for the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._write_thread = ThreadPoolExecutor(1, thread_name_prefix="metrics-writer")
        self._read_thread = ThreadPoolExecutor(1, thread_name_prefix="metrics-reader")
        self._closed = False
        self._writer: Writer
        self._reader: Reader

    @classmethod
    async def open(cls, path: Path | str, *, max_bytes: int | None = None) -> SqliteMetricsStore:
        """Open or create the file. It never grows beyond ``max_bytes``."""
        store = cls(Path(path))
        try:
            store._writer = await store._write(_opened, Writer, store.path, max_bytes)
            store._reader = await store._read(_opened, Reader, store.path)
        except BaseException:
            await store.close()
            raise
        return store

    async def _write(self, call: Callable[P, T], *args: P.args, **_: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._write_thread, call, *args)

    async def _read(self, call: Callable[P, T], *args: P.args, **_: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._read_thread, call, *args)

    async def known(self, incarnations: Sequence[tuple[MemberId, Fence]]) -> list[SourceState]:
        return await self._read(self._reader.known, incarnations)

    async def newest(self, limit: int) -> list[SourceState]:
        return await self._read(self._reader.newest, limit)

    async def task(self, task: TaskId) -> TaskMetrics:
        return await self._read(self._reader.task, task)

    async def write(self, changes: Sequence[SourceChange]) -> list[int]:
        return await self._write(self._writer.write, changes)

    async def resume(self, task: TaskId, epoch: Epoch, step: int) -> None:
        await self._write(self._writer.resume, task, epoch, step)

    async def chunks(self, span: ChunkSpan) -> list[Chunk]:
        return await self._read(self._reader.chunks, span)

    async def forget(self, task: TaskId) -> int:
        total, more = 0, True
        while more:
            gone, more = await self._write(self._writer.forget_some, task)
            total += gone
        return total

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if hasattr(self, "_reader"):
            await self._read(self._reader.close)
        if hasattr(self, "_writer"):
            await self._write(self._writer.close)
        self._read_thread.shutdown()
        self._write_thread.shutdown()


def _opened(kind: Callable[..., T], path: Path, *args: object) -> T:
    with speaking_of(path):
        return kind(path, *args)
