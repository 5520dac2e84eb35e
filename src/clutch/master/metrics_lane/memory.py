"""Metrics in memory: for the simulator, for tests, and for a master that may forget. Nothing here waits."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from clutch.master.metrics_lane.packing import checked
from clutch.master.metrics_lane.records import (
    Chunk,
    ChunkSpan,
    SourceChange,
    SourceState,
    TaskMetrics,
    moved,
)
from clutch.wire.errors import DiskFull
from clutch.wire.ids import Epoch, Fence, MemberId, TaskId


class MetricsShelf:
    """What is stored; it outlives the stores that are opened on it. It holds at most ``capacity_bytes``."""

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.states: dict[int, SourceState] = {}
        self.chunks: dict[int, dict[int, Chunk]] = {}
        self.resumed: dict[TaskId, dict[Epoch, int]] = {}
        self.last_id = 0

    def used_bytes(self) -> int:
        return sum(len(chunk.body) + len(chunk.brief) for rows in self.chunks.values() for chunk in rows.values())


class MemoryMetricsStore:
    """One process's way to a shelf."""

    def __init__(self, shelf: MetricsShelf | None = None) -> None:
        self.shelf = shelf if shelf is not None else MetricsShelf()

    def _find(self, incarnation: tuple[MemberId, Fence]) -> SourceState | None:
        return next((one for one in self.shelf.states.values() if one.incarnation == incarnation), None)

    async def known(self, incarnations: Sequence[tuple[MemberId, Fence]]) -> list[SourceState]:
        return [state for one in incarnations if (state := self._find(one)) is not None]

    async def newest(self, limit: int) -> list[SourceState]:
        return [replace(one, latest=b"") for one in reversed(self.shelf.states.values())][:limit]

    async def task(self, task: TaskId) -> TaskMetrics:
        found = tuple(one for one in self.shelf.states.values() if one.member.task == task)
        return TaskMetrics(found, dict(self.shelf.resumed.get(task, {})))

    async def write(self, changes: Sequence[SourceChange]) -> list[int]:
        shelf = self.shelf
        for change in changes:
            present = self._find(change.state.incarnation)
            if (present.version if present else 0) != change.state.version - 1:
                raise moved(change.state)
        if shelf.capacity_bytes is not None:
            grown = sum(len(put.body) + len(put.brief) for change in changes for put in change.puts)
            if shelf.used_bytes() + grown > shelf.capacity_bytes:
                raise DiskFull("the memory store is full", object="metrics", next_step="Nothing was written.")
        return [self._change(change) for change in changes]

    def _change(self, change: SourceChange) -> int:
        shelf = self.shelf
        source = change.state.id
        if not source:
            shelf.last_id += 1
            source = shelf.last_id
            shelf.chunks[source] = {}
        shelf.states[source] = replace(change.state, id=source)
        for first in change.drops:
            del shelf.chunks[source][first]
        shelf.chunks[source] |= {put.first: put for put in change.puts}
        return source

    async def resume(self, task: TaskId, epoch: Epoch, step: int) -> None:
        self.shelf.resumed.setdefault(task, {}).setdefault(epoch, step)

    async def chunks(self, span: ChunkSpan) -> list[Chunk]:
        rows = self.shelf.chunks.get(span.source, {})
        asked = [
            rows[first]
            for first in sorted(rows)
            if first >= span.first and rows[first].low <= span.high and rows[first].high >= span.low
        ]
        asked = asked[-span.limit :] if span.newest else asked[: span.limit]
        return [checked(_part(chunk, span.briefs)) for chunk in asked]

    async def forget(self, task: TaskId) -> int:
        gone = [source for source, state in self.shelf.states.items() if state.member.task == task]
        for source in gone:
            del self.shelf.states[source], self.shelf.chunks[source]
        self.shelf.resumed.pop(task, None)
        return len(gone)

    async def close(self) -> None:
        return


def _part(chunk: Chunk, briefs: bool) -> Chunk:
    if not briefs:
        return replace(chunk, brief=b"")
    return replace(chunk, body=b"") if chunk.brief else chunk
