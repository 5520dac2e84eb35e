"""The output lane: what tasks print is written, read, followed, kept for a while and forgotten. The door to this room.

    async with open_output(address, has_ended) as lane:     # see ``opening``
        await lane.write(frames)
        async for line in lane.follow(OutputQuery(task=task)): ...

It stands beside the decision loop and never waits for it: own writer, own readers, own file or connections.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from msgspec.structs import replace

from clutch.master.output.base import OutputStore
from clutch.master.output.bell import Bell
from clutch.master.output.reading import Family, OutputReader, ReaderSettings
from clutch.master.output.records import Key, Segment, Span, StreamChange, StreamState
from clutch.master.output.retention import Excess, taken_out
from clutch.master.output.taking import Frame
from clutch.master.output.writing import LaneSettings, OutputWriter
from clutch.wire.errors import Stale
from clutch.wire.ids import Fence, MemberId, TaskId
from clutch.wire.link import OutputCommitted
from clutch.wire.output import OutputLine, OutputPage, OutputQuery, Retained, RetentionPolicy

_AGED_ROWS = 500
Watcher = Callable[[Sequence[OutputCommitted]], Awaitable[None]]


class OutputLane:
    """``has_ended`` tells whether a task has ended, so that no more of its output will come."""

    def __init__(
        self,
        store: OutputStore,
        has_ended: Callable[[TaskId], bool],
        clock: Callable[[], float],
        *,
        writing: LaneSettings | None = None,
        reading: ReaderSettings | None = None,
    ) -> None:
        self.store = store
        self.watchers: list[Watcher] = []
        """Awaited when more is durable, and when an agent asks how far it is, before either is said: what they decide
        comes before the end of the allocation that printed it."""
        self._bell = Bell()
        self._writer = OutputWriter(store, self._bell, clock, writing)
        self._reader = OutputReader(store, self._bell, has_ended, reading)

    async def run(self) -> None:
        """Commit what comes in, until cancelled."""
        await self._writer.run()

    async def close_reader(self) -> None:
        """End the reader's threads and processes; the store is its owner's to close."""
        await self._reader.close()

    # -- writing -------------------------------------------------------------------------------------------------

    async def opened(self, member: MemberId, fence: Fence) -> OutputCommitted:
        """What the store has of an incarnation; its agent sends from there."""
        committed = await self._writer.opened(member, fence)
        await self._watched((committed,))
        return committed

    async def write(self, frames: Sequence[Frame]) -> list[OutputCommitted]:
        """How far each incarnation named in the frames is, once all of them are durable. See ``OutputWriter.write``."""
        committed = await self._writer.write(frames)
        await self._watched(committed)
        return committed

    async def _watched(self, committed: Sequence[OutputCommitted]) -> None:
        for watcher in self.watchers:
            await watcher(committed)

    def wake(self, task: TaskId) -> None:
        """Tell followers that the task has ended, so that they end too."""
        self._bell.ring((task,))

    # -- reading -------------------------------------------------------------------------------------------------

    async def page(self, query: OutputQuery, family: Family | None = None) -> OutputPage:
        """Up to ``limit`` lines, with cursors to go on from. With ``family``, of all its tasks by time."""
        return await self._reader.page(query, family)

    def lines(self, query: OutputQuery) -> AsyncIterator[OutputLine]:
        """Every line that the query asks for, as of now."""
        return self._reader.lines(query)

    def follow(self, query: OutputQuery) -> AsyncIterator[OutputLine]:
        """Every line that the query asks for, and those to come, until the task has ended."""
        return self._reader.follow(query)

    def follow_pages(self, query: OutputQuery, family: Family | None = None) -> AsyncIterator[OutputPage]:
        """The same as pages, each with the cursor from which a broken-off reader goes on."""
        return self._reader.follow_pages(query, family)

    def raw(
        self, member: MemberId, fence: Fence, stream: str, start: int = 0, stop: int | None = None
    ) -> AsyncIterator[bytes]:
        """The exact bytes of a stretch of a stream. ``NotFound`` where some of it is gone or not there yet."""
        return self._reader.raw(Key(member, fence, stream), start, stop)

    # -- upkeep --------------------------------------------------------------------------------------------------

    async def retain(self, policy: RetentionPolicy, now: float, is_live: Callable[[TaskId], bool]) -> Retained:
        """Remove what the policy does not keep, of tasks that are not live; gap records take its place."""
        excess = Excess(policy, now, await self.store.size_bytes())
        after = (float("-inf"), 0, 0)
        count, gone = 0, 0
        while aged := await self.store.oldest(after, _AGED_ROWS):
            chosen, is_enough = excess.choose(aged, is_live)
            tasks = dict.fromkeys(TaskId(one.task) for one in aged if one.stream in chosen)
            states = {state.id: state for task in tasks for state in await self.store.streams(task)}
            for stream, starts in chosen.items():
                removed = await self._remove(states[stream], starts) if stream in states else []
                count += len(removed)
                gone += sum(segment.size for segment in removed)
            if is_enough:
                break
            last = aged[-1]
            after = (last.last_at, last.stream, last.start)
        return Retained(count, gone, await self.store.size_bytes())

    async def _remove(self, state: StreamState, starts: Sequence[int]) -> list[Segment]:
        """Put gap records in the place of these segments; the segments that went."""
        async with self._writer.alone():
            low, high = max(min(starts) - 1, 0), max(starts)
            rows = await self._index(state.id, low, high + 1)
            if state.tail_rows and rows[-1].end < state.committed:
                rows += await self._index(state.id, rows[-1].end, state.committed)
            change = taken_out(state, rows, starts)
            try:
                await self.store.write([await self._with_bodies(state.id, change)])
            except Stale:
                return []  # the stream has changed meanwhile; the next pass looks at it again
        wanted = dict.fromkeys(starts)
        return [row for row in rows if row.start in wanted]

    async def _index(self, stream: int, start: int, stop: int) -> list[Segment]:
        """The index of a stretch, and the row behind it if there is one."""
        rows: list[Segment] = []
        while found := await self.store.segments(Span(stream, start, bodies=False)):
            rows += found
            if rows[-1].start >= stop:
                break
            start = found[-1].end
        behind = next((place for place, row in enumerate(rows) if row.start >= stop), len(rows) - 1)
        return rows[: behind + 1]

    async def _with_bodies(self, stream: int, change: StreamChange) -> StreamChange:
        """Rows that stay but say something else now are written anew, with their bytes."""
        puts = []
        for row in change.puts:
            if not row.kind.is_gap:
                (full,) = await self.store.segments(Span(stream, row.start, row.start + 1))
                row = replace(row, body=full.body)
            puts.append(row)
        return replace(change, puts=tuple(puts))

    async def forget(self, task: TaskId) -> int:
        """Remove everything of a task; how many streams went. What is written of it later begins anew."""
        gone = await self.store.forget(task)  # whoever writes meanwhile finds the stream changed, and looks again
        async with self._writer.alone():
            self._bell.ring((task,))
        return gone
