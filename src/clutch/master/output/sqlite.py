"""Output in a SQLite file of its own, beside the journal's: the embedded default."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from clutch.backends.journal.sqlite_file import speaking_of
from clutch.master.output.records import Aged, Kind, Segment, Span, StreamChange, StreamState
from clutch.master.output.sqlite_file import Reader, Writer
from clutch.wire.ids import Fence, MemberId, TaskId

P = ParamSpec("P")
T = TypeVar("T")


class SqliteOutputStore:
    """Use ``open``. One writer thread, one reader thread; the event loop never waits for the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._write_thread = ThreadPoolExecutor(1, thread_name_prefix="output-writer")
        self._read_thread = ThreadPoolExecutor(1, thread_name_prefix="output-reader")
        self._closed = False
        self._writer: Writer
        self._reader: Reader

    @classmethod
    async def open(cls, path: Path | str, *, max_bytes: int | None = None) -> SqliteOutputStore:
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

    async def states(self, incarnations: Sequence[tuple[MemberId, Fence]]) -> list[StreamState]:
        return await self._read(self._reader.states, incarnations)

    async def streams(self, task: TaskId) -> list[StreamState]:
        return await self._read(self._reader.streams, task)

    async def write(self, changes: Sequence[StreamChange]) -> list[int]:
        ids = await self._write(self._writer.write, changes)
        if any(segment.kind is Kind.REMOVED for change in changes for segment in change.puts):
            await self._write(self._writer.shrink)
        return ids

    async def segments(self, span: Span) -> list[Segment]:
        return await self._read(self._reader.segments, span)

    async def oldest(self, after: tuple[float, int, int], limit: int) -> list[Aged]:
        return await self._read(self._reader.oldest, after, limit)

    async def size_bytes(self) -> int:
        return await self._read(self._reader.size_bytes)

    async def forget(self, task: TaskId) -> int:
        gone = await self._write(self._writer.disown, task)
        while await self._write(self._writer.sweep):
            await self._write(self._writer.shrink)
        return gone

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
