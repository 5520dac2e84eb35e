"""The metrics lane: what tasks report is written once, in order, many callers in one commit, and read as series.

It stands beside the decision loop and never waits for it: own writer, own readers, own file or connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from clutch.master.lanes.line import Call, Line, LineBounds, LineWords
from clutch.master.metrics_lane.base import MetricsStore
from clutch.master.metrics_lane.exact import page_of
from clutch.master.metrics_lane.reading import last_points, series_of
from clutch.master.metrics_lane.records import Chunk, ChunkSpan, SourceChange, SourceState, check_incarnation
from clutch.master.metrics_lane.series import shape_tools
from clutch.master.metrics_lane.summarising import Summaries
from clutch.master.metrics_lane.taking import News, needs_loose, values_in
from clutch.wire.api import Page
from clutch.wire.errors import BadRequest, BrokenInvariant, ClutchError
from clutch.wire.experiment_api import MetricSummary
from clutch.wire.ids import Epoch, Fence, MemberId, TaskId
from clutch.wire.metrics import (
    EXACT_MAX_POINTS,
    LatestValue,
    MetricBatch,
    MetricPoint,
    MetricsCommitted,
    MetricsQuery,
    Series,
)

Incarnation = tuple[MemberId, Fence]
_AT_ONCE = 4
T = TypeVar("T")


class MetricsSettings(msgspec.Struct, frozen=True):
    """The bounds of a lane."""

    waiting_max_points: int = 200_000
    """In the line; who comes then waits for room. No call may be larger than that."""
    commit_max_points: int = 50_000
    known_max: int = 4_096
    """Incarnations whose state is remembered between commits."""
    reached_max: int = 100_000
    """Incarnations whose sequence is remembered, the newest."""
    inline_max_points: int = 200
    """A commit this small is packed on the event loop; a thread would cost more."""
    write_timeout_s: float = 60.0


class _Call(Call[int]):
    """One caller's batches; answered with the sequence up to which they are durable."""

    __slots__ = ("batches", "incarnation", "values")

    def __init__(self, incarnation: Incarnation, batches: tuple[MetricBatch, ...]) -> None:
        super().__init__(str(incarnation[0]), len(batches) + sum(len(batch.points) for batch in batches))
        self.incarnation = incarnation
        self.batches = batches
        self.values = sum(values_in(batch.points) for batch in batches)


_WORDS = LineWords(
    "metrics", "points", "Send fewer batches at a time.", "Send them again; what was stored is not stored twice."
)


class MetricsLane:
    """``begin`` once, and ``run`` must be running for ``write`` to be answered."""

    def __init__(self, store: MetricsStore, settings: MetricsSettings | None = None) -> None:
        self.store = store
        self.settings = settings or MetricsSettings()
        self._known: dict[Incarnation, SourceState] = {}
        self._reached: dict[Incarnation, int] = {}
        bounds = LineBounds(
            self.settings.waiting_max_points, self.settings.commit_max_points, self.settings.write_timeout_s
        )
        self._line: Line[_Call] = Line(_WORDS, bounds, self._commit, self._known.clear)
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="metrics")
        self._summaries = Summaries(store, self._threads)

    # -- life ----------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Learn what the store has, so that ``reached`` can tell."""
        newest = await self.store.newest(self.settings.reached_max)
        self._reached = {state.incarnation: state.sequence for state in reversed(newest)}
        self._threads.submit(shape_tools)  # nobody's first chart waits for an import

    async def run(self) -> None:
        """Commit what comes in, until cancelled."""
        await self._line.run()

    def close_threads(self) -> None:
        self._threads.shutdown()

    # -- writing -------------------------------------------------------------------------------------------------

    def reached(self, member: MemberId, fence: Fence) -> int:
        """The sequence up to which the store holds an incarnation's batches; 0 for one that never reported."""
        return self._reached.get((member, fence), 0)

    async def opened(self, member: MemberId, fence: Fence) -> MetricsCommitted:
        """What the store itself says that it has of an incarnation; the member sends from there."""
        check_incarnation(member, fence)
        async with self._line.turn:
            found = await self.store.known([(member, fence)])
            sequence = found[0].sequence if found else 0
            return MetricsCommitted(member, fence, sequence)

    async def write(self, member: MemberId, fence: Fence, batches: Iterable[MetricBatch]) -> int:
        """The sequence up to which all of it is durable.

        ``Conflict`` names the next batch when one is missing: nothing of this call was written. A stale fence is taken
        under its own epoch; what it reports beyond the step from which its successor resumed is superseded.
        """
        check_incarnation(member, fence)
        sequence: int = await self._line.ask(_Call((member, fence), tuple(batches)))
        return sequence

    async def _commit(self, group: list[_Call]) -> None:
        """What is new of these calls in one commit, and their answers."""
        await self._learn(list(dict.fromkeys(call.incarnation for call in group)))
        calls: dict[Incarnation, list[_Call]] = {}
        for call in group:
            calls.setdefault(call.incarnation, []).append(call)
        work = [(self._known[one], mine, await self._loose(self._known[one], mine)) for one, mine in calls.items()]
        if sum(call.size for call in group) <= self.settings.inline_max_points:
            changes, refused = _prepared(work)
        else:
            changes, refused = await asyncio.get_running_loop().run_in_executor(self._threads, _prepared, work)
        for call, error in refused:
            call.refuse(error)
        if changes:
            await self._write(changes)
        for call in group:
            call.give(self._known[call.incarnation].sequence)

    async def _learn(self, incarnations: Sequence[Incarnation]) -> None:
        unknown = [one for one in incarnations if one not in self._known]
        if not unknown:
            return
        if len(self._known) + len(unknown) > self.settings.known_max:
            self._known.clear()
            unknown = list(incarnations)
        found = {state.incarnation: state for state in await self.store.known(unknown)}
        self._known |= {one: found.get(one, SourceState(*one)) for one in unknown}

    async def _write(self, changes: list[SourceChange]) -> None:
        ids = await self.store.write(changes)
        for change, source in zip(changes, ids, strict=True):
            state = replace(change.state, id=source)
            self._known[state.incarnation] = state
            self._remember(state)

    def _remember(self, state: SourceState) -> None:
        self._reached.pop(state.incarnation, None)  # the last to change is the last to go
        self._reached[state.incarnation] = state.sequence
        if len(self._reached) > self.settings.reached_max:
            del self._reached[next(iter(self._reached))]

    async def _loose(self, state: SourceState, calls: list[_Call]) -> list[Chunk]:
        """The loose chunks, if what these calls bring will be packed with them."""
        if not needs_loose(state, sum(call.values for call in calls)):
            return []
        rows = await self.store.chunks(ChunkSpan(state.id, state.loose_start, limit=10_000))
        if not rows or rows[0].first != state.loose_start or rows[-1].last != state.sequence:
            raise BrokenInvariant("loose batches are missing", object=str(state.member))
        return rows

    # -- epochs, reading, upkeep ---------------------------------------------------------------------------------

    async def resumed(self, task: TaskId, epoch: Epoch, step: int) -> None:
        """Keep from which step an epoch resumed: what older ones reported beyond it is superseded."""
        if not 0 <= epoch < 2**31 or not -(2**63) <= step < 2**63:
            raise BadRequest(f"no epoch {epoch} resumes from step {step}", object=str(task))
        await self.store.resume(task, epoch, step)

    async def series(self, query: MetricsQuery) -> list[Series]:
        """The series that a query asks for, each with at most ``points_max`` points."""
        return await series_of(self.store, self._threads, query)

    async def latest(self, task: TaskId, group: str = "") -> list[LatestValue]:
        """The newest value of each metric that is not superseded, by group and name."""
        return await self._summaries.latest(task, group)

    async def exact(self, query: MetricsQuery, after: str = "", limit: int = EXACT_MAX_POINTS) -> Page[Series]:
        """Every point that a query asks for, about ``limit`` at a time; ``next`` of a page leads to the one behind it.

        A series comes in pieces, and its steps are in order within what was reported together.
        """
        return await page_of(self.store, self._threads, query, after, limit)

    async def last_reported(self, task: TaskId, group: str) -> list[tuple[SourceState, list[MetricPoint]]]:
        """Points of a group as they were reported last, for each source that has some, the oldest epoch first.

        It is at least what was committed last: all that a master may have committed without saying so, because a
        member says nothing new before it has heard. However much there is, only so many chunks are read.
        """
        return await last_points(self.store, self._threads, task, group)

    async def summaries(self, task: TaskId, group: str = "") -> list[MetricSummary]:
        """What is known of each metric that is not superseded, by group and name; no points are read for it."""
        return await self._summaries.of(task, group)

    async def summaries_many(self, tasks: Sequence[TaskId], group: str = "") -> dict[TaskId, list[MetricSummary]]:
        """The same for many tasks."""
        return dict(zip(tasks, await self.each(tasks, lambda task: self.summaries(task, group)), strict=True))

    async def series_many(
        self, tasks: Sequence[TaskId], group: str, name: str, points_max: int, *, superseded: bool = False
    ) -> list[Series]:
        """One metric of many tasks, in the order of the tasks; each series has at most ``points_max`` points."""

        def ask(task: TaskId) -> Awaitable[list[Series]]:
            query = MetricsQuery(task=task, group=group, names=(name,), points_max=points_max, superseded=superseded)
            return self.series(query)

        return [series for found in await self.each(tasks, ask) for series in found]

    async def each(self, tasks: Sequence[TaskId], ask: Callable[[TaskId], Awaitable[T]]) -> list[T]:
        """Every task's answer, a few asked for at a time."""
        turns = asyncio.Semaphore(_AT_ONCE)

        async def one(task: TaskId) -> T:
            async with turns:
                return await ask(task)

        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(one(task)) for task in tasks]
        return [task.result() for task in asked]

    async def forget(self, task: TaskId) -> int:
        """Remove everything of a task; how many incarnations went."""
        async with self._line.turn:
            gone = await self.store.forget(task)
            self._known.clear()
            self._summaries.forget()
            self._reached = {one: sequence for one, sequence in self._reached.items() if one[0].task != task}
            return gone


def _prepared(
    work: list[tuple[SourceState, list[_Call], list[Chunk]]],
) -> tuple[list[SourceChange], list[tuple[_Call, ClutchError]]]:
    """The changes that these calls make, and the calls that are refused. Run in a thread where there is much of it."""
    changes: list[SourceChange] = []
    refused: list[tuple[_Call, ClutchError]] = []
    for state, calls, loose in work:
        news = News(state)
        for call in calls:
            try:
                news.take(call.batches)
            except ClutchError as error:
                refused.append((call, error))
        change = news.change(loose)
        if change is not None:
            changes.append(change)
    return changes, refused
