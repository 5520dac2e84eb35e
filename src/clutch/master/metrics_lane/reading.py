"""Series from a store: reductions where they are fine enough, points where they are not, unpacked in threads.

A series is held as buckets from the first point on, so memory is bounded by what was asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from clutch.master.metrics_lane.asking import Window, windows
from clutch.master.metrics_lane.base import MetricsStore
from clutch.master.metrics_lane.briefs import BUCKET, buckets_of
from clutch.master.metrics_lane.digests import remembered_in
from clutch.master.metrics_lane.packing import brief_in, column_in, columns_in, points_in
from clutch.master.metrics_lane.records import Chunk, ChunkSpan, SourceState
from clutch.master.metrics_lane.series import Buckets
from clutch.wire.errors import BadRequest, TooLarge
from clutch.wire.ids import Epoch, MemberId, TaskId
from clutch.wire.metrics import SERIES_MAX_POINTS, MetricPoint, MetricsQuery, Series

SERIES_MAX = 10_000
"""Series of one answer."""
HELD_MAX_POINTS = 1_000_000
"""Points of one answer; the more series, the fewer of each."""
_LEAST_POINTS = 20
_FINER = 2
"""A series is made from reductions if there are so many times as many as points are asked for."""
_LAST_CHUNKS = 4
_SMALLER = 2
"""So many times as many buckets as points are made from points."""

SeriesKey = tuple[str, str, MemberId, Epoch]
Name = tuple[str, str]
"""Of a group and of a metric in it."""


async def series_of(store: MetricsStore, threads: ThreadPoolExecutor, query: MetricsQuery) -> list[Series]:
    if not 0 <= query.points_max <= SERIES_MAX_POINTS:
        why = f"points_max is {query.points_max}, from 0 to {SERIES_MAX_POINTS}"
        raise BadRequest(why, object=str(query.task), path="points_max")
    asked = windows(query, await store.task(query.task))
    expected = len(query.names) * len(asked)
    if not query.names:
        expected = sum(len(names) for one in asked for names in remembered_in(one.source.latest).names.values())
    room = max(HELD_MAX_POINTS // max(expected, 1), _LEAST_POINTS)
    collector = Collector(query, min(query.points_max or SERIES_MAX_POINTS, room))
    loop = asyncio.get_running_loop()
    for window in asked:
        reading = Reading(collector, window)
        if reading.coarse:
            async for chunks in window.chunks(store, briefs=True):
                bodies = [chunk for chunk in chunks if chunk.brief and not window.holds(chunk)]
                found = {chunk.first: await window.body(store, chunk) for chunk in bodies}
                whole = [found.get(chunk.first, chunk) for chunk in chunks]
                await loop.run_in_executor(threads, reading.add_coarse, [one for one in whole if one is not None])
            reading.settle()
        if reading.is_incomplete:
            async for chunks in window.chunks(store, briefs=False):
                await loop.run_in_executor(threads, reading.add_fine, chunks)
    return await loop.run_in_executor(threads, collector.series)


async def last_points(
    store: MetricsStore, threads: ThreadPoolExecutor, task: TaskId, group: str
) -> list[tuple[SourceState, list[MetricPoint]]]:
    """The points of a group in each source's last chunks, the oldest epoch first."""
    loop = asyncio.get_running_loop()
    found = []
    for source in sorted((await store.task(task)).sources, key=lambda one: (one.fence, one.member)):
        remembered = remembered_in(source.latest)
        if remembered.whole and group not in remembered.names:
            continue
        chunks = await store.chunks(ChunkSpan(source.id, limit=_LAST_CHUNKS, newest=True))
        points = await loop.run_in_executor(threads, _points_in_all, chunks, group)
        if points:
            found.append((source, points))
    return found


def _points_in_all(chunks: Sequence[Chunk], group: str) -> list[MetricPoint]:
    return [point for chunk in chunks for point in points_in(chunk, group)]


class Collector:
    """The series of one answer as they grow."""

    def __init__(self, query: MetricsQuery, points_max: int) -> None:
        self.points_max = points_max
        self._query = query
        self._names = frozenset(query.names)
        self._found: dict[SeriesKey, Buckets] = {}

    def wants(self, name: Name) -> bool:
        group = self._query.group
        return (not group or name[0] == group) and (not self._names or name[1] in self._names)

    def names_only(self, known: Sequence[Name]) -> bool:
        """Whether nothing but these names can be meant."""
        query = self._query
        return bool(query.group) and bool(self._names) and all((query.group, name) in known for name in self._names)

    def buckets(self, name: Name, window: Window) -> Buckets:
        key = (*name, window.source.member, window.source.fence.epoch)
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= SERIES_MAX:
                raise TooLarge(
                    f"more than {SERIES_MAX} series match",
                    object=str(self._query.task),
                    next_step="Name metrics, a role, ranks or an epoch.",
                )
            found = self._found[key] = Buckets(self.points_max)
        return found

    def series(self) -> list[Series]:
        return [
            Series(*key, buckets.points(), buckets.total)
            for key, buckets in sorted(self._found.items(), key=lambda item: item[0])
        ]


class Reading:
    """One source's part of an answer: its large series from reductions first, then the others from points."""

    def __init__(self, collector: Collector, window: Window) -> None:
        self._collector = collector
        self._window = window
        self._least = _FINER * BUCKET * collector.points_max
        remembered = remembered_in(window.source.latest)
        self._counts = {
            (group, name): digest.count
            for group, names in remembered.names.items()
            for name, digest in names.items()
            if collector.wants((group, name))
        }
        self.coarse = {
            name: Buckets(collector.points_max) for name, count in self._counts.items() if count >= self._least
        }
        """Series that are made from reductions."""
        self._whole = remembered.whole

    @property
    def is_incomplete(self) -> bool:
        """Whether there may be series that are not made from reductions."""
        if len(self.coarse) < len(self._counts):
            return True
        return not self._whole and not self._collector.names_only(list(self.coarse))

    def add_coarse(self, chunks: Sequence[Chunk]) -> None:
        """Chunks with reductions, or, where they are only partly asked for, with bodies."""
        for chunk in chunks:
            if not chunk.brief or chunk.body:
                self._add_points(chunk, BUCKET, chosen=True)
                continue
            brief, superseded = brief_in(chunk), chunk.low > self._window.limit
            for place, name in enumerate(brief.names):
                if (buckets := self.coarse.get(name)) is not None:
                    buckets.extend(brief.buckets(place, superseded), brief.digest(place).count)

    def settle(self) -> None:
        """Take what there are enough reductions of; the rest is made from points."""
        for name, buckets in list(self.coarse.items()):
            if buckets.total >= self._least:
                self._collector.buckets(name, self._window).take(buckets)
            else:
                del self.coarse[name]

    def add_fine(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self._add_points(chunk, 0, chosen=False)

    def _add_points(self, chunk: Chunk, size: int, *, chosen: bool) -> None:
        """The chosen series of a chunk, or the others, in buckets of ``size``; 0 for one that suits the series."""
        window, columns = self._window, columns_in(chunk)
        for place, name in enumerate(columns.names):
            if (name in self.coarse) != chosen or not self._collector.wants(name):
                continue
            column = column_in(chunk, columns, place)
            each = size
            if not each:
                each = 1
                if window.is_whole:
                    each = max(self._counts.get(name, 0) // (_SMALLER * self._collector.points_max), 1)
            buckets = self.coarse[name] if chosen else None
            for start, stop, superseded in window.parts(column):
                if buckets is None:
                    buckets = self._collector.buckets(name, window)
                buckets.extend(buckets_of(column, start, stop, each, superseded), stop - start)
