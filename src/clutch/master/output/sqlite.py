"""Output in a SQLite file of its own, beside the journal's: the embedded default."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clutch.master.lanes.sqlite_lane import SqliteLane
from clutch.master.output.records import Aged, Kind, Segment, Span, StreamChange, StreamState
from clutch.master.output.sqlite_file import Reader, Writer
from clutch.wire.ids import Fence, MemberId, TaskId


class SqliteOutputStore:
    """Use ``open``. One writer thread, one reader thread; the event loop never waits for the disk."""

    def __init__(self, path: Path) -> None:
        self._lane: SqliteLane[Writer, Reader] = SqliteLane(path, "output")

    @classmethod
    async def open(cls, path: Path | str, *, max_bytes: int | None = None) -> SqliteOutputStore:
        """Open or create the file. It never grows beyond ``max_bytes``."""
        store = cls(Path(path))
        await store._lane.open(Writer, Reader, max_bytes)
        return store

    async def states(self, incarnations: Sequence[tuple[MemberId, Fence]]) -> list[StreamState]:
        return await self._lane.read(Reader.states, incarnations)

    async def streams(self, *tasks: TaskId) -> list[StreamState]:
        return await self._lane.read(Reader.streams, tasks)

    async def write(self, changes: Sequence[StreamChange]) -> list[int]:
        ids = await self._lane.write(Writer.write, changes)
        if any(segment.kind is Kind.REMOVED for change in changes for segment in change.puts):
            await self._lane.write(Writer.shrink)
        return ids

    async def segments(self, span: Span) -> list[Segment]:
        return await self._lane.read(Reader.segments, span)

    async def oldest(self, after: tuple[float, int, int], limit: int) -> list[Aged]:
        return await self._lane.read(Reader.oldest, after, limit)

    async def size_bytes(self) -> int:
        return await self._lane.read(Reader.size_bytes)

    async def forget(self, task: TaskId) -> int:
        gone = await self._lane.write(Writer.disown, task)
        while await self._lane.write(Writer.sweep):
            await self._lane.write(Writer.shrink)
        return gone

    async def close(self) -> None:
        await self._lane.close()
