"""What a question means for a source: whether it is asked for, and which of its steps."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Iterator

import msgspec

from clutch.master.metrics_lane.base import MetricsStore
from clutch.master.metrics_lane.columns import Column
from clutch.master.metrics_lane.records import Chunk, ChunkSpan, SourceState, TaskMetrics
from clutch.wire.metrics import MetricsQuery

LOWEST, HIGHEST = -(2**63), 2**63 - 1
_PAGE = 256


class Window(msgspec.Struct, frozen=True):
    """The steps of one source that are asked for; beyond ``limit`` they are superseded."""

    source: SourceState
    low: int
    high: int
    limit: int

    @property
    def is_whole(self) -> bool:
        return (self.low, self.high) == (LOWEST, HIGHEST)

    def holds(self, chunk: Chunk) -> bool:
        """Whether all of a chunk is asked for, and either all or nothing of it superseded."""
        inside = self.low <= chunk.low and chunk.high <= self.high
        return inside and (chunk.high <= self.limit or chunk.low > self.limit)

    def parts(self, column: Column) -> Iterator[tuple[int, int, bool]]:
        """The places of a column that are asked for, from, to before, and whether they are superseded."""
        steps = column.time.steps
        start, stop = bisect_left(steps, self.low), bisect_right(steps, self.high)
        cut = min(max(bisect_right(steps, self.limit), start), stop)
        if start < cut:
            yield start, cut, False
        if cut < stop:
            yield cut, stop, True

    async def chunks(self, store: MetricsStore, first: int = 0, *, briefs: bool) -> AsyncIterator[list[Chunk]]:
        span = ChunkSpan(self.source.id, first, self.low, self.high, _PAGE if briefs else _PAGE // 8, briefs)
        while chunks := await store.chunks(span):
            yield chunks
            span = msgspec.structs.replace(span, first=chunks[-1].last + 1)

    async def body(self, store: MetricsStore, chunk: Chunk) -> Chunk | None:
        """A chunk that was read for its reductions, with its body; None when it is not there any more."""
        span = ChunkSpan(self.source.id, chunk.first, limit=1)
        found = await store.chunks(span)
        return found[0] if found and found[0].first == chunk.first else None


def windows(query: MetricsQuery, known: TaskMetrics) -> list[Window]:
    """The sources that a question is about, in the order in which they appeared."""
    return [_window(query, known, source) for source in known.sources if _is_asked_for(query, source)]


def _window(query: MetricsQuery, known: TaskMetrics, source: SourceState) -> Window:
    low = LOWEST if query.first_step is None else max(query.first_step, LOWEST)
    high = HIGHEST if query.last_step is None else min(query.last_step, HIGHEST)
    limit = known.limit(source.fence.epoch)
    limit = HIGHEST if limit is None else limit
    return Window(source, low, high if query.superseded else min(high, limit), limit)


def _is_asked_for(query: MetricsQuery, source: SourceState) -> bool:
    return (
        (not query.role or source.member.role == query.role)
        and (not query.ranks or source.member.rank in query.ranks)
        and (not query.epochs or source.fence.epoch in query.epochs)
    )
