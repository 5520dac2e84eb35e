"""Every point, none joined with another, by pages: for exports.

A page goes through the sources in the order in which they appeared, and through each one's chunks. Packed chunks never
change, so a place in one can be named by a cursor; what is still loose is given as a whole, last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from clutch.master.metrics_lane.asking import Window, windows
from clutch.master.metrics_lane.base import MetricsStore
from clutch.master.metrics_lane.columns import Column
from clutch.master.metrics_lane.packing import column_in, columns_in
from clutch.master.metrics_lane.records import PACK_ROWS, Chunk, ChunkSpan
from clutch.wire.api import Page
from clutch.wire.errors import BadRequest
from clutch.wire.ids import Epoch, MemberId
from clutch.wire.metrics import EXACT_MAX_POINTS, MetricsQuery, Series, SeriesPoint

_CHUNKS = 4
Cursor = tuple[int, int, int]
"""Source, batch, and how many values of the chunk that begins with it were given."""


async def page_of(
    store: MetricsStore, threads: ThreadPoolExecutor, query: MetricsQuery, after: str, limit: int
) -> Page[Series]:
    """At least one point where there is one, about ``limit`` at most: what is loose comes as a whole."""
    if not 0 < limit <= EXACT_MAX_POINTS:
        raise BadRequest(f"a page of {limit} points, from 1 to {EXACT_MAX_POINTS}", object="metrics", path="limit")
    source, batch, given = _parsed(after)
    filling = Filling(query, limit)
    loop = asyncio.get_running_loop()
    asked = [one for one in windows(query, await store.task(query.task)) if one.source.id >= source]
    for window in asked:
        one = window.source
        batch, given = (batch, given) if one.id == source else (0, 0)
        while batch < one.loose_start:
            if filling.is_full():
                return Page(filling.series(), f"{one.id}.{batch}.{given}")
            span = ChunkSpan(one.id, batch, window.low, window.high, _CHUNKS)
            found = [chunk for chunk in await store.chunks(span) if chunk.first < one.loose_start]
            if not found:
                break
            batch, given = await loop.run_in_executor(threads, filling.add, window, found, given)
        if filling.is_full():
            return Page(filling.series(), f"{one.id}.{one.loose_start}.0")
        # What is loose may be packed before the next page is asked for, so nobody can stop in the middle of it.
        span = ChunkSpan(one.id, max(batch, one.loose_start), window.low, window.high, PACK_ROWS)
        loose = [chunk for chunk in await store.chunks(span) if chunk.first <= one.sequence]
        await loop.run_in_executor(threads, filling.add_whole, window, loose)
        if filling.is_full() and one is not asked[-1].source:
            return Page(filling.series(), f"{one.id + 1}.0.0")
    return Page(filling.series())


def _parsed(after: str) -> Cursor:
    if not after:
        return 0, 0, 0
    parts = after.split(".")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
        raise BadRequest("it is not a cursor of these metrics", object="cursor", path="after")
    source, batch, given = map(int, parts)
    return source, batch, given


class Filling:
    """A page as it fills."""

    def __init__(self, query: MetricsQuery, limit: int) -> None:
        self._query = query
        self._names = frozenset(query.names)
        self._left = limit
        self._found: dict[tuple[str, str, MemberId, Epoch], list[SeriesPoint]] = {}

    def is_full(self) -> bool:
        return self._left <= 0

    def add(self, window: Window, chunks: Sequence[Chunk], given: int) -> tuple[int, int]:
        """Take chunks behind the values that were given of the first, until the page is full; the batch, and the values
        of the chunk that begins with it, behind which to go on."""
        for chunk in chunks:
            columns, passed = columns_in(chunk), 0
            for place, name in enumerate(columns.names):
                count = columns.count(place)
                if passed + count > given and self._wants(name):
                    if self.is_full():
                        return chunk.first, max(given, passed)
                    start = max(given - passed, 0)
                    stop = min(count, start + self._left)
                    self._take(window, column_in(chunk, columns, place), start, stop)
                    if stop < count:
                        return chunk.first, passed + stop
                passed += count
            given = 0
            if self.is_full():
                return chunk.last + 1, 0
        return chunks[-1].last + 1, 0

    def add_whole(self, window: Window, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            columns = columns_in(chunk)
            for place, name in enumerate(columns.names):
                if self._wants(name):
                    self._take(window, column_in(chunk, columns, place), 0, columns.count(place))

    def _wants(self, name: tuple[str, str]) -> bool:
        query = self._query
        return (not query.group or name[0] == query.group) and (not self._names or name[1] in self._names)

    def _take(self, window: Window, column: Column, first: int, last: int) -> None:
        key = (column.group, column.name, window.source.member, window.source.fence.epoch)
        for start, stop, superseded in window.parts(column):
            start, stop = max(start, first), min(stop, last)
            if start < stop:
                points = self._found.setdefault(key, [])
                steps, ats = column.time.steps[start:stop], column.time.ats[start:stop]
                values = column.values[start:stop]
                points += [
                    SeriesPoint(step, at, value, superseded=superseded)
                    for step, at, value in zip(steps, ats, values, strict=True)
                ]
                self._left -= stop - start

    def series(self) -> tuple[Series, ...]:
        return tuple(Series(*key, tuple(points), len(points)) for key, points in self._found.items())
