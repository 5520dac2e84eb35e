"""What is known of a task's metrics without reading its points.

Each source remembers it as its points come. Where a successor did part of its work again, or there were more names than
are remembered, it is worked out from the chunks' reductions when somebody asks, and kept until the source changes.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from clutch.master.metrics_lane import digests
from clutch.master.metrics_lane.asking import HIGHEST, Window, windows
from clutch.master.metrics_lane.base import MetricsStore
from clutch.master.metrics_lane.columns import Column, Timeline
from clutch.master.metrics_lane.digests import Digest, Digests, digest_of, remembered_in
from clutch.master.metrics_lane.packing import brief_in, column_in, columns_in
from clutch.master.metrics_lane.records import Chunk, TaskMetrics
from clutch.wire.experiment_api import MetricSummary
from clutch.wire.ids import Epoch, TaskId
from clutch.wire.metrics import LatestValue, MetricsQuery

WORKED_OUT_MAX = 1_000
"""Sources whose worked-out summaries are kept."""

Rank = tuple[Epoch, int, float]


class Summaries:
    """Asks a store. One per lane."""

    def __init__(self, store: MetricsStore, threads: ThreadPoolExecutor) -> None:
        self._store = store
        self._threads = threads
        self._worked_out: dict[int, tuple[int, int, Digests]] = {}
        """By source: its version, the limit, and what was found."""

    async def latest(self, task: TaskId, group: str) -> list[LatestValue]:
        """The newest value of each name: a later epoch's word counts before an earlier one's, then the higher step,
        then the later time."""
        found: dict[tuple[str, str], tuple[Rank, LatestValue]] = {}
        for window in _windows(task, await self._store.task(task)):
            remembered = remembered_in(window.source.latest).names
            names = await self._work_out(window) if _reaches_beyond(remembered, window.limit) else remembered
            member, epoch = window.source.member, window.source.fence.epoch
            for key, one in _each(names, group):
                rank = (epoch, one.step, one.at)
                if key not in found or rank >= found[key][0]:
                    found[key] = (rank, LatestValue(*key, one.value, one.step, one.at, member, epoch))
        return [found[key][1] for key in sorted(found)]

    async def of(self, task: TaskId, group: str) -> list[MetricSummary]:
        """Each metric over all members and epochs, without what is superseded."""
        found: dict[tuple[str, str], tuple[Rank, Digest, Digest]] = {}
        for window in _windows(task, await self._store.task(task)):
            for key, one in _each(await self._current(window), group):
                rank = (window.source.fence.epoch, one.step, one.at)
                if key not in found:
                    found[key] = (rank, one, one)
                    continue
                before, end, whole = found[key]
                newest, end = (rank, one) if rank >= before else (before, end)
                found[key] = (newest, end, digests.joined(whole, one))
        return [_summary(*key, end, whole) for key, (_, end, whole) in sorted(found.items(), key=lambda item: item[0])]

    async def _current(self, window: Window) -> Digests:
        remembered = remembered_in(window.source.latest)
        if remembered.whole and not _reaches_beyond(remembered.names, window.limit):
            return remembered.names
        return await self._work_out(window)

    async def _work_out(self, window: Window) -> Digests:
        source = window.source
        kept = self._worked_out.get(source.id)
        if kept is not None and kept[:2] == (source.version, window.limit):
            return kept[2]
        found: Digests = {}
        loop = asyncio.get_running_loop()
        async for chunks in window.chunks(self._store, briefs=True):
            for chunk in chunks:
                whole = chunk if not chunk.brief or window.holds(chunk) else await window.body(self._store, chunk)
                if whole is not None:
                    await loop.run_in_executor(self._threads, _add_chunk, found, window, whole)
        self._worked_out.pop(source.id, None)
        self._worked_out[source.id] = (source.version, window.limit, found)
        if len(self._worked_out) > WORKED_OUT_MAX:
            del self._worked_out[next(iter(self._worked_out))]
        return found

    def forget(self) -> None:
        self._worked_out.clear()


def _windows(task: TaskId, known: TaskMetrics) -> list[Window]:
    return windows(MetricsQuery(task=task, superseded=False), known)


def _reaches_beyond(names: Digests, limit: int) -> bool:
    return limit < HIGHEST and any(one.step > limit for group in names.values() for one in group.values())


def _each(names: Digests, group: str) -> list[tuple[tuple[str, str], Digest]]:
    return [((one, name), digest) for one in names if not group or one == group for name, digest in names[one].items()]


def _add_chunk(found: Digests, window: Window, chunk: Chunk) -> None:
    if chunk.brief:
        brief = brief_in(chunk)
        for place, name in enumerate(brief.names):
            digests.add(found, *name, brief.digest(place))
        return
    columns = columns_in(chunk)
    for place, name in enumerate(columns.names):
        column = column_in(chunk, columns, place)
        for start, stop, _ in window.parts(column):
            digests.add(found, *name, _digest(column, start, stop))


def _digest(column: Column, start: int, stop: int) -> Digest:
    time = Timeline(column.time.steps[start:stop], column.time.ats[start:stop])
    return digest_of(time.steps, time.ats, column.values[start:stop])


def _summary(group: str, name: str, end: Digest, whole: Digest) -> MetricSummary:
    return MetricSummary(
        group=group,
        name=name,
        count=whole.count,
        first_step=whole.first_step,
        last_step=max(whole.step, end.step),
        last=end.value,
        low=whole.low,
        high=whole.high,
        mean=whole.mean,
        at=end.at,
    )
