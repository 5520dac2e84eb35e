"""The output lane's reader: pages of lines, following, exact bytes. Many streams become one by time.

Decoding and cutting run in threads, regular expressions in processes; the event loop only merges. Memory is bounded by
the number of streams read together and by one page, however much there is to read.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import msgspec
from msgspec.structs import replace

from clutch.master.output import cursors
from clutch.master.output.base import OutputStore
from clutch.master.output.bell import Bell
from clutch.master.output.cutting import Bounds
from clutch.master.output.packing import unpack
from clutch.master.output.patterns import Patterns
from clutch.master.output.records import SEGMENT_BYTES, Key, Span, StreamState, checked_key
from clutch.master.output.sieve import Sieve, check
from clutch.master.output.sources import Backwards, Forwards, Shared, Source
from clutch.wire.errors import BadRequest, NotFound, TooLarge
from clutch.wire.ids import TaskId
from clutch.wire.output import PAGE_MAX_LINES, STREAMS_MAX, OutputLine, OutputPage, OutputQuery

_FAR = 2**62
_BREATH_LINES = 500


class ReaderSettings(msgspec.Struct, frozen=True):
    """The bounds of a reader."""

    search_s: float = 5.0
    """A page is answered after this time with what was found."""
    held_max_bytes: int = 16 * 2**20
    """Of lines read ahead, over all streams of one reading."""
    recheck_s: float = 15.0
    """A follower that nobody wakes looks again after this time."""
    threads: int = 2
    workers: int = 2
    """Processes that match regular expressions,"""
    allowed_s: int = 2
    """and the time that each may take for a piece of output."""


class Family(Protocol):
    """Tasks whose output is read as one, by time. The query names what they have in common: their bell's name."""

    async def tasks(self) -> Sequence[TaskId]:
        """Those there are now."""
        ...

    def has_ended(self) -> bool:
        """Whether no more will come, neither tasks nor output."""
        ...


class OutputReader:
    """The reading half of the lane. ``has_ended`` tells whether a task has ended, so that no more output will come."""

    def __init__(
        self,
        store: OutputStore,
        bell: Bell,
        has_ended: Callable[[TaskId], bool],
        settings: ReaderSettings | None = None,
    ) -> None:
        self.store = store
        self.settings = settings or ReaderSettings()
        self._bell = bell
        self._has_ended = has_ended
        self._threads = ThreadPoolExecutor(self.settings.threads, thread_name_prefix="output-lines")
        self._patterns = Patterns(self.settings.workers, self.settings.allowed_s)

    async def close(self) -> None:
        await self._patterns.close()
        self._threads.shutdown()

    # -- pages ---------------------------------------------------------------------------------------------------

    async def page(self, query: OutputQuery, family: Family | None = None) -> OutputPage:
        """Up to ``limit`` lines: the first after ``after``, or, with ``tail`` or ``before``, the last before that."""
        check(query)
        bound = query.tail or query.head
        wanted = min(query.limit, bound) if bound else query.limit
        page = await (await self._begin(query, wanted, family)).next(wanted, self.settings.search_s)
        return replace(page, more=False) if bound and len(page.lines) >= bound else page

    async def _begin(self, query: OutputQuery, wanted: int, family: Family | None) -> Reading:
        """The streams that a query asks for, each at its place."""
        low = cursors.read(query.after) if query.after else {}
        high = cursors.read(query.before) if query.before else None
        ended = self._is_over(query, family)  # before looking: what is written until then is seen
        tasks = (query.task,) if family is None else await family.tasks()
        states = [state for state in await self.store.streams(*tasks) if _is_asked_for(query, state)]
        if len(states) > STREAMS_MAX:
            raise TooLarge(
                f"{len(states)} streams match, at most {STREAMS_MAX} are read together",
                object=str(query.task),
                next_step="Name one task or trial, a role, ranks, an epoch, or a time from which on.",
            )
        held = max(min(self.settings.held_max_bytes // max(len(states), 1), 2 * SEGMENT_BYTES), 4_096)
        shared = Shared(self.store, query, Sieve(query), self._patterns, self._threads, Bounds(held, wanted))
        make = Backwards if query.tail or (query.before and not query.after) else Forwards
        return Reading(
            [
                make(shared, state, low.get(state.id, 0), _FAR if high is None else high.get(state.id, 0), ended)
                for state in states
            ]
        )

    def _is_over(self, query: OutputQuery, family: Family | None) -> bool:
        return self._has_ended(query.task) if family is None else family.has_ended()

    # -- all of it -----------------------------------------------------------------------------------------------

    async def pages(self, query: OutputQuery, family: Family | None = None) -> AsyncIterator[OutputPage]:
        """Pages from the first to the last that there is now. With ``tail`` it is one page."""
        check(query)
        search_s = self.settings.search_s
        if query.tail:
            reading = await self._begin(query, query.tail, family)
            parts = [await reading.next(query.tail, search_s)]
            while parts[-1].more and (left := query.tail - sum(len(part.lines) for part in parts)) > 0:
                parts.append(await reading.next(left, search_s))
            lines = tuple(line for part in reversed(parts) for line in part.lines)
            yield OutputPage(lines, parts[0].after, parts[-1].before, False)
            return
        left, more = query.head or _FAR, True
        reading = await self._begin(query, min(left, PAGE_MAX_LINES), family)
        while more and left > 0:
            page = await reading.next(min(query.limit, left), search_s)
            left -= len(page.lines)
            more = page.more
            yield page

    async def lines(self, query: OutputQuery) -> AsyncIterator[OutputLine]:
        """Every line that the query asks for, as of now."""
        async for page in self.pages(query):
            for line in page.lines:
                yield line

    async def follow_pages(self, query: OutputQuery, family: Family | None = None) -> AsyncIterator[OutputPage]:
        """Pages as they come, none of them empty, until the task or family has ended and everything was given.

        A cursor of the last page that arrived takes up the thread where it broke.
        """
        left = query.head
        loop = asyncio.get_running_loop()
        shown: dict[Key, tuple[int, int]] = {}
        with self._bell.heard(query.task) as rung:
            while True:
                rung.clear()
                began = loop.time()
                ended = self._is_over(query, family)
                async for page in self.pages(query, family):
                    query = _behind(query, page)
                    fresh = _fresh(page, shown)
                    if fresh.lines:
                        yield fresh
                    left -= sum(not line.partial for line in fresh.lines)
                if ended or (query.head and left <= 0):
                    return
                query = replace(query, head=left) if query.head else query
                # Whoever prints without pause is read half of the time at most; the other half is everybody else's.
                await asyncio.sleep(min(loop.time() - began, 0.5))
                try:
                    async with asyncio.timeout(self.settings.recheck_s):
                        await rung.wait()
                except TimeoutError:
                    continue

    async def follow(self, query: OutputQuery) -> AsyncIterator[OutputLine]:
        """Every line that the query asks for, and those to come, until the task has ended."""
        async for page in self.follow_pages(query):
            for line in page.lines:
                yield line

    async def raw(self, key: Key, start: int = 0, stop: int | None = None) -> AsyncIterator[bytes]:
        """The exact bytes of a stretch of a stream. ``NotFound`` where some of it is gone or not there yet."""
        if start < 0 or (stop is not None and stop < start):
            raise BadRequest(f"no stream has bytes {start} to {stop}", object=str(key))
        states = {state.key: state for state in await self.store.states([(key.member, key.fence)])}
        state = states.get(checked_key(key), StreamState(*key))
        end = state.committed if stop is None else stop
        if end > state.committed:
            raise NotFound(
                f"the stream has {state.committed} bytes so far", object=str(key), next_step="Ask for fewer, or wait."
            )
        loop = asyncio.get_running_loop()
        while start < end:
            rows = await self.store.segments(Span(state.id, start, end))
            for row in rows:
                if row.kind.is_gap:
                    why = f"bytes {max(row.start, start)} to {row.end} are gone"
                    raise NotFound(why, object=str(key), next_step="Ask for the bytes before or behind them.")
                data, _ = await loop.run_in_executor(self._threads, unpack, row)
                yield data[max(start - row.start, 0) : end - row.start]
                start = row.end


class Reading:
    """Streams that are read together, by time, page after page."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._heap = [(source.key, place) for place, source in enumerate(sources) if not source.exhausted]
        heapq.heapify(self._heap)

    async def next(self, wanted: int, search_s: float) -> OutputPage:
        """Up to so many lines; fewer, with more to come, when the search takes longer than it may."""
        before = {source.state.id: source.cursor for source in self._sources}
        lines = await self._merge(wanted, search_s)
        after = {source.state.id: source.cursor for source in self._sources}
        if any(source.is_backwards for source in self._sources):
            lines.reverse()
            before, after = after, {source.state.id: source.newest for source in self._sources}
        return OutputPage(tuple(lines), _cursor(after), _cursor(before), bool(self._heap))

    async def _merge(self, wanted: int, search_s: float) -> list[OutputLine]:
        loop = asyncio.get_running_loop()
        until = loop.time() + search_s
        heap = self._heap
        lines: list[OutputLine] = []
        while heap and len(lines) < wanted:
            place = heap[0][1]
            source = self._sources[place]
            if source.lines:
                lines.append(source.lines.popleft())
            else:
                await source.step()
            if source.lines or not source.exhausted:
                heapq.heapreplace(heap, (source.key, place))
            else:
                heapq.heappop(heap)
            if not source.lines and loop.time() > until:
                break
            if len(lines) % _BREATH_LINES == 0:
                await asyncio.sleep(0)  # everybody else's turn
        return lines


def _is_asked_for(query: OutputQuery, state: StreamState) -> bool:
    return (
        state.committed > 0
        and (not query.role or state.member.role == query.role)
        and (not query.ranks or state.member.rank in query.ranks)
        and (not query.epochs or state.fence.epoch in query.epochs)
        and (not query.streams or state.stream in query.streams)
        and (query.since is None or state.last_at >= query.since)
        and (query.until is None or state.first_at < query.until)
    )


def _cursor(positions: dict[int, int]) -> str:
    return cursors.written({stream: position for stream, position in positions.items() if position})


def _behind(query: OutputQuery, page: OutputPage) -> OutputQuery:
    return replace(query, after=page.after, before="", tail=0)


def _fresh(page: OutputPage, shown: dict[Key, tuple[int, int]]) -> OutputPage:
    """The page without lines under way that were given just so before."""
    lines = []
    for line in page.lines:
        key = Key(line.member, line.fence, line.stream)
        if line.partial:
            if shown.get(key) == (line.start, line.end):
                continue
            shown[key] = (line.start, line.end)
        else:
            shown.pop(key, None)
        lines.append(line)
    return replace(page, lines=tuple(lines))
