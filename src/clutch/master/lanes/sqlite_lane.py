"""A lane's SQLite file as the event loop sees it: one writer thread, one reader thread, nobody waits for the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from clutch.backends.journal.sqlite_file import speaking_of
from clutch.master.lanes.sqlite_file import LaneReader, LaneWriter

P = ParamSpec("P")
T = TypeVar("T")
Writer = TypeVar("Writer", bound=LaneWriter[Any, Any])
Reader = TypeVar("Reader", bound=LaneReader)


class SqliteLane(Generic[Writer, Reader]):
    """Use ``open`` before anything else; ``write`` and ``read`` run a method of the writer's or the reader's side."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self._write_thread = ThreadPoolExecutor(1, thread_name_prefix=f"{name}-writer")
        self._read_thread = ThreadPoolExecutor(1, thread_name_prefix=f"{name}-reader")
        self._closed = False
        self._writer: Writer
        self._reader: Reader

    async def open(
        self, writer: Callable[[Path, int | None], Writer], reader: Callable[[Path], Reader], max_bytes: int | None
    ) -> None:
        """Open or create the file. It never grows beyond ``max_bytes``."""
        loop = asyncio.get_running_loop()
        try:
            self._writer = await loop.run_in_executor(self._write_thread, self._opened, writer, self.path, max_bytes)
            self._reader = await loop.run_in_executor(self._read_thread, self._opened, reader, self.path)
        except BaseException:
            await self.close()
            raise

    def _opened(self, side: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        with speaking_of(self.path):
            return side(*args, **kwargs)

    async def write(self, call: Callable[Concatenate[Writer, P], T], *args: P.args, **_: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._write_thread, call, self._writer, *args)

    async def read(self, call: Callable[Concatenate[Reader, P], T], *args: P.args, **_: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._read_thread, call, self._reader, *args)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if hasattr(self, "_reader"):
            await self.read(LaneReader.close)
        if hasattr(self, "_writer"):
            await self.write(LaneWriter.close)
        self._read_thread.shutdown()
        self._write_thread.shutdown()
