"""Series and latest values from a store: chunks are unpacked in threads, and a series is held as buckets from the first
point on, so memory is bounded by what was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from clutch.master.metrics_lane.base import MetricsStore
from clutch.master.metrics_lane.packing import latest_in, rows_in
from clutch.master.metrics_lane.records import Chunk, ChunkSpan, SourceState
from clutch.master.metrics_lane.series import Buckets
from clutch.wire.errors import BadRequest, TooLarge
from clutch.wire.ids import Epoch, MemberId, TaskId
from clutch.wire.metrics import SERIES_MAX_POINTS, LatestValue, MetricsQuery, Series

SERIES_MAX = 10_000
"""Series of one answer."""
HELD_MAX_POINTS = 1_000_000
"""Points of one answer; the more series, the fewer of each."""
_INTEGERS = (-(2**63), 2**63 - 1)
_LEAST_POINTS = 20

SeriesKey = tuple[str, str, MemberId, Epoch]


async def series_of(store: MetricsStore, threads: ThreadPoolExecutor, query: MetricsQuery) -> list[Series]:
    if not 0 <= query.points_max <= SERIES_MAX_POINTS:
        why = f"points_max is {query.points_max}, from 0 to {SERIES_MAX_POINTS}"
        raise BadRequest(why, object=str(query.task), path="points_max")
    known = await store.task(query.task)
    sources = [source for source in known.sources if _is_asked_for(query, source)]
    expected = len(query.names) * len(sources)
    if not query.names:
        expected = sum(len(names) for source in sources for names in latest_in(source.latest).values())
    room = max(HELD_MAX_POINTS // max(expected, 1), _LEAST_POINTS)
    points_max = min(query.points_max or SERIES_MAX_POINTS, room)
    collector = Collector(query, points_max)
    loop = asyncio.get_running_loop()
    for source in sources:
        limit = known.limit(source.fence.epoch)
        async for chunks in _chunks(store, query, source, limit):
            await loop.run_in_executor(threads, collector.add, source, limit, chunks)
    return await loop.run_in_executor(threads, collector.series)


async def _chunks(
    store: MetricsStore, query: MetricsQuery, source: SourceState, limit: int | None
) -> AsyncIterator[list[Chunk]]:
    low = _INTEGERS[0] if query.first_step is None else max(query.first_step, _INTEGERS[0])
    high = _INTEGERS[1] if query.last_step is None else min(query.last_step, _INTEGERS[1])
    if limit is not None and not query.superseded:
        high = min(high, limit)
    first = 0
    while chunks := await store.chunks(ChunkSpan(source.id, first, low, high)):
        yield chunks
        first = chunks[-1].last + 1


def _is_asked_for(query: MetricsQuery, source: SourceState) -> bool:
    return (
        (not query.role or source.member.role == query.role)
        and (not query.ranks or source.member.rank in query.ranks)
        and (not query.epochs or source.fence.epoch in query.epochs)
    )


class Collector:
    """The series of one answer as they grow."""

    def __init__(self, query: MetricsQuery, points_max: int) -> None:
        self._query = query
        self._points_max = points_max
        self._names = frozenset(query.names)
        self._found: dict[SeriesKey, Buckets] = {}

    def add(self, source: SourceState, limit: int | None, chunks: Sequence[Chunk]) -> None:
        query, names = self._query, self._names
        near: dict[tuple[str, str], Buckets] = {}
        for chunk in chunks:
            for group, step, at, values in rows_in(chunk):
                if query.group and group != query.group:
                    continue
                if query.first_step is not None and step < query.first_step:
                    continue
                if query.last_step is not None and step > query.last_step:
                    continue
                if limit is not None and step > limit and not query.superseded:
                    continue
                for name, value in values.items():
                    if names and name not in names:
                        continue
                    buckets = near.get((group, name))
                    if buckets is None:
                        key = (group, name, source.member, source.fence.epoch)
                        buckets = near[group, name] = self._buckets(key, limit)
                    buckets.add(step, at, value)

    def _buckets(self, key: SeriesKey, limit: int | None) -> Buckets:
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= SERIES_MAX:
                raise TooLarge(
                    f"more than {SERIES_MAX} series match",
                    object=str(self._query.task),
                    next_step="Name metrics, a role, ranks or an epoch.",
                )
            found = self._found[key] = Buckets(self._points_max, limit)
        return found

    def series(self) -> list[Series]:
        return [
            Series(*key, buckets.points(), buckets.total)
            for key, buckets in sorted(self._found.items(), key=lambda item: item[0])
        ]


async def latest_values(
    store: MetricsStore, threads: ThreadPoolExecutor, task: TaskId, group: str
) -> list[LatestValue]:
    """What each source remembers, the newest epoch first; where that was superseded, what stood before it."""
    known = await store.task(task)
    found: dict[tuple[str, str], LatestValue] = {}
    older: dict[tuple[str, str], None] = {}
    for source in known.sources:
        limit = known.limit(source.fence.epoch)
        for one, names in latest_in(source.latest).items():
            for name, (step, at, value) in names.items() if not group or one == group else ():
                if limit is not None and step > limit:
                    older[(one, name)] = None
                    continue
                candidate = LatestValue(one, name, value, step, at, source.member, source.fence.epoch)
                _keep(found, candidate)
    for one, name in older:
        query = MetricsQuery(task=task, group=one, names=(name,), points_max=1, superseded=False)
        for series in await series_of(store, threads, query):
            for point in series.points:
                _keep(found, LatestValue(one, name, point.value, point.step, point.at, series.member, series.epoch))
    return [found[key] for key in sorted(found)]


def _keep(found: dict[tuple[str, str], LatestValue], candidate: LatestValue) -> None:
    """A later epoch's word counts before an earlier one's, then the higher step, then the later time."""
    key = (candidate.group, candidate.name)
    present = found.get(key)
    if present is None or _rank(candidate) >= _rank(present):
        found[key] = candidate


def _rank(value: LatestValue) -> tuple[Epoch, int, float]:
    return (value.epoch, value.step, value.at)
