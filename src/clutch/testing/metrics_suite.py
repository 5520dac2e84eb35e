"""What every metrics store must do, as checks that try to break it, alone and under a lane.

Each check takes a fresh ``MetricsGround`` and asserts. ``CHECKS`` is all that any ground can stand;
``check_full_store_changes_nothing`` needs one that can be filled, ``check_acknowledged_metrics_survive`` one whose
writer can be killed.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Protocol

from msgspec.structs import replace

from clutch.master.metrics_lane.base import MetricsStore
from clutch.master.metrics_lane.lane import MetricsLane
from clutch.master.metrics_lane.packing import points_in
from clutch.master.metrics_lane.records import PACK_ROWS, ChunkSpan, SourceChange, SourceState
from clutch.master.metrics_lane.taking import News
from clutch.testing.output_suite import refused
from clutch.wire.errors import BadRequest, Conflict, Corrupt, DiskFull, Stale, TooLarge
from clutch.wire.ids import Fence, MemberId, TaskId
from clutch.wire.metrics import TRAINING, VALIDATION, MetricBatch, MetricPoint, MetricsQuery, Value

NOW = 1_700_000_000.0
MEMBER = MemberId(TaskId("t1"), "trainer", 0)
FENCE = Fence(1, 1, 1)


class MetricsGround(Protocol):
    """Storage for one metrics store. Everything it opens is closed by whoever made the ground."""

    async def open(self) -> MetricsStore: ...

    async def damage(self, source: int, first: int) -> None:
        """Change one bit of a stored chunk."""
        ...


class KillableMetrics(MetricsGround, Protocol):
    """Storage whose writer can be killed in the middle of a write."""

    async def kill_while_writing(self) -> int:
        """Write batches as ``counted`` gives them until the writer is killed; the last acknowledged sequence."""
        ...


Check = Callable[[MetricsGround], Awaitable[None]]


@asynccontextmanager
async def metrics_on(store: MetricsStore) -> AsyncIterator[MetricsLane]:
    """A lane that runs for the length of the block; the store stays open."""
    lane = MetricsLane(store)
    await lane.begin()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(lane.run())
        try:
            yield lane
        finally:
            running.cancel()
    lane.close_threads()


def point(step: int, group: str = TRAINING, **values: Value) -> MetricPoint:
    return MetricPoint(group, step, values, NOW + step)


def batch(sequence: int, *points: MetricPoint) -> MetricBatch:
    return MetricBatch(sequence, points)


def change_of(state: SourceState, *batches: MetricBatch) -> SourceChange:
    """What a lane would write for these batches."""
    news = News(state)
    news.take(batches)
    change = news.change([])
    assert change is not None
    return change


def counted(sequence: int) -> MetricBatch:
    """A batch that says which it is."""
    count = Random(sequence).randint(1, 20)
    return batch(sequence, *(point(sequence * 100 + n, number=sequence) for n in range(count)))


async def values(lane: MetricsLane, **query: Any) -> dict[str, list[Value]]:
    found = await lane.series(MetricsQuery(task=MEMBER.task, **query))
    return {f"{one.group}/{one.name}": [point.value for point in one.points] for one in found}


# -- the store alone ----------------------------------------------------------------------------------------------


async def check_gives_back_what_it_was_given(ground: MetricsGround) -> None:
    store = await ground.open()
    assert isinstance(store, MetricsStore)
    assert await store.known([(MEMBER, FENCE)]) == []
    assert (await store.task(MEMBER.task)).sources == ()
    points = [point(-5, loss=0.5, n=2**63 - 1, note="größer 漢字"), point(7)]
    change = change_of(SourceState(MEMBER, FENCE), batch(1), batch(2, *points), batch(3))
    (source,) = await store.write([change])
    state = replace(change.state, id=source)
    await store.resume(MEMBER.task, 2, 40)
    await store.resume(MEMBER.task, 2, 99)
    await store.resume(TaskId("t2"), 3, 1)
    other = await ground.open()
    for one in (store, other):
        found = await one.task(MEMBER.task)
        assert found.sources == (state,)
        assert found.resumed == {2: 40}, "the first word counts"
        assert await one.known([(MEMBER, FENCE), (MEMBER, Fence(1, 1, 2))]) == [state]
        assert await one.newest(10) == [replace(state, latest=b"")]
        (chunk,) = await one.chunks(ChunkSpan(source))
        assert (chunk.first, chunk.last, chunk.low, chunk.high, chunk.points) == (1, 3, -5, 7, 2)
        assert points_in(chunk) == points
        assert await one.chunks(ChunkSpan(source, low=8)) == []
        assert await one.chunks(ChunkSpan(source, high=-6)) == []
        assert await one.chunks(ChunkSpan(source, first=2)) == []
        assert len(await one.chunks(ChunkSpan(source, low=7, high=7))) == 1


async def check_a_commit_is_all_or_nothing(ground: MetricsGround) -> None:
    store, rival = await ground.open(), await ground.open()
    one, two = batch(1, point(1, loss=0.5)), batch(2, point(1, loss=0.5))
    first = change_of(SourceState(MEMBER, FENCE), one)
    (source,) = await store.write([first])
    state = replace(first.state, id=source)
    await rival.write([change_of(state, two)])
    other = change_of(SourceState(replace(MEMBER, rank=1), FENCE), one)
    await refused(Stale, store.write([other, change_of(state, two)]))
    await refused(Stale, store.write([other, first]))
    assert [one.member.rank for one in (await store.task(MEMBER.task)).sources] == [0]
    assert len(await store.chunks(ChunkSpan(source))) == 2
    (second,) = await store.write([other])
    known = replace(other.state, id=second)
    await refused(Stale, store.write([change_of(known, two), change_of(state, two)]))
    assert await store.known([known.incarnation]) == [known], "nor is one that was there, when another is stale"
    assert len(await store.chunks(ChunkSpan(second))) == 1


async def check_of_two_writers_one_wins(ground: MetricsGround) -> None:
    stores = [await ground.open() for _ in range(2)]
    first = change_of(SourceState(MEMBER, FENCE), batch(1, point(1, loss=0.5)))
    (source,) = await stores[0].write([first])
    state = replace(first.state, id=source)
    for n in range(2, 22):
        change = change_of(state, batch(n, point(n, loss=0.5)))
        said = await asyncio.gather(*(store.write([change]) for store in stores), return_exceptions=True)
        assert sorted(map(type, said), key=str) == [Stale, list], said
        state = replace(change.state, id=source)
    assert [one.first for one in await stores[0].chunks(ChunkSpan(source))] == list(range(1, 22))


async def check_forgetting(ground: MetricsGround) -> None:
    store = await ground.open()
    async with metrics_on(store) as lane:
        for n in range(30):
            await lane.write(replace(MEMBER, rank=n), FENCE, [batch(1, point(1, loss=1.0))])
        await lane.write(MemberId(TaskId("t2"), "trainer", 0), FENCE, [batch(1, point(1, loss=2.0))])
        await lane.resumed(MEMBER.task, 2, 1)
        assert await lane.forget(MEMBER.task) == 30
        assert await lane.forget(MEMBER.task) == 0
        assert (await store.task(MEMBER.task)).resumed == {}
        assert lane.reached(MEMBER, FENCE) == 0
        assert await values(lane) == {}
        assert [one.value for one in await lane.latest(TaskId("t2"))] == [2.0]
        assert await lane.write(MEMBER, FENCE, [batch(1, point(1, loss=3.0))]) == 1


async def check_damage_is_told(ground: MetricsGround) -> None:
    store = await ground.open()
    async with metrics_on(store) as lane:
        for n in (1, 2):
            await lane.write(MEMBER, FENCE, [batch(n, point(n, loss=1.0))])
        await lane.write(replace(MEMBER, rank=1), FENCE, [batch(1, point(1, loss=1.0))])
    ((source, *_),) = [(await store.known([(MEMBER, FENCE)]))]
    await ground.damage(source.id, 2)
    async with metrics_on(await ground.open()) as lane:
        await refused(Corrupt, lane.series(MetricsQuery(task=MEMBER.task)))
        assert len(await lane.series(MetricsQuery(task=MEMBER.task, ranks=(1,)))) == 1
        assert await lane.write(MEMBER, FENCE, [batch(3, point(3, loss=1.0))]) == 3


# -- under a lane -------------------------------------------------------------------------------------------------


async def check_exactly_once_by_sequence(ground: MetricsGround) -> None:
    async with metrics_on(await ground.open()) as lane:
        assert lane.reached(MEMBER, FENCE) == 0
        one, two, three = (batch(n, point(n, loss=float(n))) for n in (1, 2, 3))
        assert await lane.write(MEMBER, FENCE, []) == 0
        assert await lane.write(MEMBER, FENCE, [one]) == 1
        assert await lane.write(MEMBER, FENCE, [one]) == 1
        assert await lane.write(MEMBER, FENCE, [one, two]) == 2
        error = await refused(Conflict, lane.write(MEMBER, FENCE, [three, batch(5, point(5, loss=5.0))]))
        assert "batch 4" in error.next_step, "behind what the same call brought"
        error = await refused(Conflict, lane.write(MEMBER, FENCE, [batch(4)]))
        assert "batch 3" in error.next_step
        assert (await lane.opened(MEMBER, FENCE)).sequence == lane.reached(MEMBER, FENCE) == 2
        assert await values(lane) == {"training/loss": [1.0, 2.0]}, "nothing of a refused call is written"
        assert await lane.write(MEMBER, FENCE, [three, batch(4)]) == 4
        assert await lane.write(MEMBER, Fence(1, 1, 2), [one]) == 1, "each incarnation counts for itself"
        await refused(BadRequest, lane.write(MEMBER, FENCE, [batch(0)]))
        await refused(BadRequest, lane.write(MEMBER, FENCE, [batch(5, MetricPoint("", 1, {}, NOW))]))
        await refused(BadRequest, lane.write(MEMBER, FENCE, [batch(5, MetricPoint("g", 1, {}, math.nan))]))
        await refused(TooLarge, lane.write(MEMBER, FENCE, [batch(5, point(1, text="x" * 2_000))]))
    async with metrics_on(await ground.open()) as lane:
        assert lane.reached(MEMBER, FENCE) == 4, "a new master knows at once"
        assert await lane.write(MEMBER, FENCE, [batch(5)]) == 5


async def check_every_value_survives(ground: MetricsGround) -> None:
    given: list[Value] = [
        0.1, -0.0, 1e-320, math.inf, -math.inf, math.nan, 0, -(2**63), 2**63 - 1, 2**80, "text", "Ünïcode 🦜", "",
        "NaN", "-Infinity",
    ]  # fmt: skip
    expected: list[Value] = [*given[:9], float(2**80), *given[10:13], math.nan, -math.inf]
    async with metrics_on(await ground.open()) as lane:
        await lane.write(MEMBER, FENCE, [batch(1, *(point(n, v=value) for n, value in enumerate(given)))])
        found = (await values(lane))["training/v"]
        assert [(type(one), repr(one)) for one in found] == [(type(one), repr(one)) for one in expected]


async def check_batches_are_packed(ground: MetricsGround) -> None:
    store = await ground.open()
    async with metrics_on(store) as lane:
        for n in range(1, 3 * PACK_ROWS):
            await lane.write(MEMBER, FENCE, [counted(n)])
        (source,) = await store.known([(MEMBER, FENCE)])
        chunks = await store.chunks(ChunkSpan(source.id, limit=1_000))
        assert len(chunks) < PACK_ROWS + 5
        assert [one.last + 1 for one in chunks[:-1]] == [one.first for one in chunks[1:]]
        expected = [n for n in range(1, 3 * PACK_ROWS) for _ in counted(n).points]
        assert (await values(lane))["training/number"] == expected
        some = await lane.series(MetricsQuery(task=MEMBER.task, first_step=7_000, last_step=7_099))
        assert [point.value for point in some[0].points] == [70] * len(counted(70).points)


async def check_questions(ground: MetricsGround) -> None:
    async with metrics_on(await ground.open()) as lane:
        for rank in range(3):
            member = replace(MEMBER, rank=rank)
            points = [point(step, loss=rank + step / 10, lr=0.1) for step in range(10)]
            await lane.write(member, FENCE, [batch(1, *points), batch(2, point(9, VALIDATION, accuracy=0.5))])
        assert len(await lane.series(MetricsQuery(task=MEMBER.task))) == 9
        assert await values(lane, group=VALIDATION, ranks=(1,)) == {"validation/accuracy": [0.5]}
        assert await values(lane, names=("loss",), ranks=(2,), first_step=8) == {"training/loss": [2.8, 2.9]}
        assert await values(lane, role="nobody") == await values(lane, epochs=(2,)) == {}
        latest = await lane.latest(MEMBER.task)
        assert [(one.group, one.name, one.step) for one in latest] == [
            ("training", "loss", 9),
            ("training", "lr", 9),
            ("validation", "accuracy", 9),
        ]
        assert [one.name for one in await lane.latest(MEMBER.task, VALIDATION)] == ["accuracy"]
        await refused(BadRequest, lane.series(MetricsQuery(task=MEMBER.task, points_max=-1)))


async def check_downsampling_keeps_range_and_end(ground: MetricsGround) -> None:
    async with metrics_on(await ground.open()) as lane:
        for sequence, start in enumerate(range(0, 30_000, 3_000), 1):
            points = [point(step, loss=1_000.0 if step == 12_345 else step % 7) for step in range(start, start + 3_000)]
            await lane.write(MEMBER, FENCE, [MetricBatch(sequence, tuple(points))])
        (series,) = await lane.series(MetricsQuery(task=MEMBER.task, points_max=100))
        assert series.total == 30_000
        assert 80 <= len(series.points) <= 100
        assert sum(one.count for one in series.points) == 30_000
        assert [one.step for one in series.points] == sorted(one.step for one in series.points)
        assert (series.points[-1].step, series.points[-1].value) == (29_999, 29_999 % 7)
        (spike,) = [one for one in series.points if one.high == 1_000.0]
        assert spike.low == 0
        assert max(one.count for one in series.points) <= 3 * 30_000 / 100, "no part is shown much coarser"
        (whole,) = await lane.series(MetricsQuery(task=MEMBER.task))
        assert len(whole.points) == 30_000


async def check_what_a_successor_did_again_is_superseded(ground: MetricsGround) -> None:
    async with metrics_on(await ground.open()) as lane:
        first, second, third = (Fence(1, epoch, 1) for epoch in (1, 2, 3))
        await lane.write(MEMBER, first, [batch(1, *(point(n, loss=100 + n, only=n) for n in range(10)))])
        await lane.resumed(MEMBER.task, 2, 6)
        await lane.write(MEMBER, second, [batch(1, *(point(n, loss=200 + n) for n in range(7, 12)))])
        await lane.resumed(MEMBER.task, 3, 8)
        await lane.write(MEMBER, third, [batch(1, point(9, loss=309))])
        await lane.write(MEMBER, first, [batch(2, point(10, loss=110))])
        found = await lane.series(MetricsQuery(task=MEMBER.task, names=("loss",)))
        marked = {one.epoch: [point.step for point in one.points if point.superseded] for one in found}
        assert marked == {1: [7, 8, 9, 10], 2: [9, 10, 11], 3: []}
        valid = await lane.series(MetricsQuery(task=MEMBER.task, names=("loss",), superseded=False))
        steps = sorted(point.step for one in valid for point in one.points)
        assert steps == [*range(7), 7, 8, 9], "every step once"
        latest = {one.name: (one.epoch, one.step, one.value) for one in await lane.latest(MEMBER.task)}
        assert latest == {"loss": (3, 9, 309), "only": (1, 6, 6)}


async def check_summaries_are_those_of_the_points(ground: MetricsGround) -> None:
    """Over loose rows, columns and packed chunks, two members, and with what is not a finite number."""
    chance = Random(5)
    said: list[tuple[int, Value]] = []
    async with metrics_on(await ground.open()) as lane:
        for rank, count in ((0, PACK_ROWS + 10), (1, 3)):
            for n in range(1, count):
                odd: Value = chance.choice((math.nan, math.inf, -math.inf, "text", 2**62, -3))
                numbers: list[Value] = [odd if chance.random() < 0.05 else chance.random() for _ in range(n % 40)]
                points = [point(n * 100 + k, loss=value) for k, value in enumerate(numbers)]
                await lane.write(replace(MEMBER, rank=rank), FENCE, [batch(n, *points)])
                said += [(one.step, one.values["loss"]) for one in points]
        (found,) = await lane.summaries(MEMBER.task)
        finite = [value for _, value in said if not isinstance(value, str) and math.isfinite(value)]
        assert (found.group, found.name, found.count) == (TRAINING, "loss", len(said))
        assert (found.first_step, found.last_step) == (min(said)[0], max(step for step, _ in said))
        assert (found.low, found.high) == (min(finite), max(finite))
        assert found.mean is not None and math.isclose(found.mean, math.fsum(finite) / len(finite), rel_tol=1e-9)
        last = [value for step, value in said if step == found.last_step]
        assert repr(found.last) == repr(last[0])
    async with metrics_on(await ground.open()) as lane:
        assert repr(await lane.summaries(MEMBER.task)) == repr([found]), "a new master knows the same"
        assert await lane.summaries(MEMBER.task, VALIDATION) == []
        await lane.forget(MEMBER.task)
        assert await lane.summaries(MEMBER.task) == []


async def check_summaries_know_nothing_of_what_is_superseded(ground: MetricsGround) -> None:
    first, second = Fence(1, 1, 1), Fence(1, 2, 1)
    async with metrics_on(await ground.open()) as lane:
        whole = [point(n, loss=float(n), old=n) for n in range(3_000)]
        for sequence, start in enumerate(range(0, 3_000, 500), 1):
            await lane.write(MEMBER, first, [MetricBatch(sequence, tuple(whole[start : start + 500]))])
        assert [one.count for one in await lane.summaries(MEMBER.task)] == [3_000, 3_000]
        await lane.resumed(MEMBER.task, 2, 1_234)
        loss, old = await lane.summaries(MEMBER.task)
        assert (loss.count, loss.last_step, loss.last, loss.high, loss.mean) == (1_235, 1_234, 1_234.0, 1_234.0, 617.0)
        await lane.write(MEMBER, second, [batch(1, *(point(n, loss=-1.0) for n in range(1_235, 1_240)))])
        loss, old = await lane.summaries(MEMBER.task)
        assert (loss.count, loss.first_step, loss.last_step, loss.last, loss.low) == (1_240, 0, 1_239, -1.0, -1.0)
        assert (old.count, old.last) == (1_235, 1_234)
        await lane.write(MEMBER, first, [batch(7, point(1_200, loss=5_000.0), point(5_000, loss=9_000.0))])
        (loss, _) = await lane.summaries(MEMBER.task)
        assert (loss.count, loss.high, loss.last_step) == (1_241, 5_000.0, 1_239), "a late word counts up to there"


async def check_every_point_by_pages(ground: MetricsGround) -> None:
    """Small pages, while more comes and is packed: each point once, nothing missing of what was there at the start."""
    async with metrics_on(await ground.open()) as lane:
        expected = []
        for n in range(1, 30):
            points = [point(n * 1_000 + k, loss=float(k), size=k) for k in range(n * 3)]
            await lane.write(MEMBER, FENCE, [batch(n, *points)])
            await lane.write(replace(MEMBER, rank=1), FENCE, [batch(n, point(n, VALIDATION, accuracy=n / 2))])
            expected += [("loss", one.step) for one in points] + [("size", one.step) for one in points]
            expected.append(("accuracy", n))
        found: list[tuple[str, int]] = []
        after, sequence = "", 29
        while True:
            page = await lane.exact(MetricsQuery(task=MEMBER.task), after, 100)
            found += [(one.name, point.step) for one in page.items for point in one.points]
            if not page.next:
                break
            after, sequence = page.next, sequence + 1
            more = [point(sequence * 10_000 + k, loss=0.5) for k in range(2_000)]
            await lane.write(MEMBER, FENCE, [MetricBatch(sequence, tuple(more))])
        assert len(found) == len(set(found)), "no point twice"
        assert set(expected) <= set(found)
        some = MetricsQuery(task=MEMBER.task, names=("size",), first_step=5_003, last_step=6_002)
        (one,) = (await lane.exact(some)).items
        assert [each.step for each in one.points] == [*range(5_003, 5_015), 6_000, 6_001, 6_002]
        assert [type(each.value) for each in one.points] == [int] * 15
        for cursor in ("x", "1.2", "1.2.x", "1.2.3.4", "-1.0.0", "1.9" + "9" * 30 + ".0"):
            await refused(BadRequest, lane.exact(some, cursor))
        await refused(BadRequest, lane.exact(some, "", 0))


async def check_a_metric_of_many_tasks(ground: MetricsGround) -> None:
    async with metrics_on(await ground.open()) as lane:
        tasks = [TaskId(f"trial.{n}") for n in range(20)]
        for n, task in enumerate(tasks):
            points = [point(step, loss=float(n), other=1.0) for step in range(500)]
            await lane.write(MemberId(task, "main", 0), FENCE, [batch(1, *points)])
        found = await lane.series_many([*tasks, TaskId("nobody")], TRAINING, "loss", 10)
        assert [one.member.task for one in found] == tasks
        assert all(one.total == 500 and 8 <= len(one.points) <= 11 for one in found)
        assert [one.points[-1].value for one in found] == [float(n) for n in range(20)]
        known = await lane.summaries_many(tasks, TRAINING)
        assert [known[task][0].mean for task in tasks] == [float(n) for n in range(20)]


async def check_reductions_and_bodies_are_read_apart(ground: MetricsGround) -> None:
    store = await ground.open()
    async with metrics_on(store) as lane:
        await lane.write(MEMBER, FENCE, [batch(1, *(point(n, loss=float(n)) for n in range(1_000)))])
        await lane.write(MEMBER, FENCE, [batch(2, point(1_000, loss=0.5))])
    (source,) = await store.known([(MEMBER, FENCE)])
    large, small = await store.chunks(ChunkSpan(source.id, briefs=True))
    assert large.brief and not large.body, "a chart does not read points"
    assert small.body and not small.brief, "a few points have no reductions"
    large, small = await store.chunks(ChunkSpan(source.id))
    assert large.body and small.body and not large.brief
    assert points_in(large)[7] == point(7, loss=7.0), "columns can be points again"


async def check_what_was_reported_last(ground: MetricsGround) -> None:
    store = await ground.open()
    quiet = replace(MEMBER, rank=1)
    async with metrics_on(store) as lane:
        for n in range(1, 301):
            one, other = point(n, loss=1.0), point(n, VALIDATION, accuracy=n / 2, note="good")
            await lane.write(MEMBER, FENCE, [batch(n, one, other)])
        await lane.write(MEMBER, Fence(1, 2, 1), [batch(1, *(point(n, loss=1.0, lr=0.1) for n in range(10_000)))])
        points = [point(n, VALIDATION, accuracy=0.25) for n in range(100)]
        await lane.write(MEMBER, Fence(1, 2, 1), [batch(2, *points, *(point(n, loss=1.0) for n in range(9_000)))])
        await lane.write(quiet, FENCE, [batch(1, point(1, loss=1.0))])
        first, second = await lane.last_reported(MEMBER.task, VALIDATION)
        assert [one.fence.epoch for one, _ in (first, second)] == [1, 2], "and nobody who never reported such"
        assert first[1][-1] == point(300, VALIDATION, accuracy=150.0, note="good")
        assert 1 <= len(first[1]) < 300, "only the last chunks are read"
        assert second[1] == points
        assert (
            await lane.last_reported(MEMBER.task, "other") == await lane.last_reported(TaskId("t2"), VALIDATION) == []
        )
    last = await store.chunks(ChunkSpan(second[0].id, limit=1, newest=True))
    every = await store.chunks(ChunkSpan(first[0].id, limit=1_000))
    assert last == (await store.chunks(ChunkSpan(second[0].id)))[-1:]
    assert await store.chunks(ChunkSpan(first[0].id, limit=3, newest=True)) == every[-3:]


async def check_two_lanes_never_store_a_batch_twice(ground: MetricsGround) -> None:
    async with metrics_on(await ground.open()) as old, metrics_on(await ground.open()) as new:
        one, two, three = (batch(n, point(n, loss=float(n))) for n in (1, 2, 3))
        await old.write(MEMBER, FENCE, [one])
        await new.write(MEMBER, FENCE, [one, two])
        assert await old.write(MEMBER, FENCE, [two, three]) == 3
        assert await values(new) == {"training/loss": [1.0, 2.0, 3.0]}


async def check_many_callers_share_commits(ground: MetricsGround) -> None:
    async with metrics_on(await ground.open()) as lane:

        async def report(rank: int) -> None:
            for n in range(1, 11):
                assert await lane.write(replace(MEMBER, rank=rank), FENCE, [batch(n, point(n, loss=1.0))]) == n

        await asyncio.gather(*(report(rank) for rank in range(20)))
        found = await lane.series(MetricsQuery(task=MEMBER.task))
        assert [len(one.points) for one in found] == [10] * 20


async def check_full_store_changes_nothing(ground: MetricsGround) -> None:
    """Fill the store, be refused with nothing half-written, and go on in the same lane when there is room again."""
    async with metrics_on(await ground.open()) as lane:
        sequence = 0
        while sequence < 2_000:
            chance = Random(sequence)
            drawn: list[dict[str, Value]] = [{f"m{k}": chance.random() for k in range(10)} for _ in range(100)]
            points = [MetricPoint(TRAINING, n, one, NOW) for n, one in enumerate(drawn)]
            try:
                await lane.write(MEMBER, FENCE, [batch(sequence + 1, *points)])
            except DiskFull as error:
                assert error.object
                assert error.next_step
                break
            sequence += 1
        else:
            raise AssertionError("the disk never got full; the test proves nothing")
        assert sequence > 0, "nothing fitted at all"
        assert (await lane.opened(MEMBER, FENCE)).sequence == lane.reached(MEMBER, FENCE) == sequence
        await lane.forget(MEMBER.task)
        assert await lane.write(MEMBER, FENCE, [batch(1, point(1, loss=1.0))]) == 1


async def check_acknowledged_metrics_survive(ground: KillableMetrics) -> None:
    acknowledged = await ground.kill_while_writing()
    assert acknowledged > 0, "nothing was acknowledged before the kill; the test proves nothing"
    async with metrics_on(await ground.open()) as lane:
        reached = lane.reached(MEMBER, FENCE)
        assert reached in (acknowledged, acknowledged + 1)
        expected = [n for n in range(1, reached + 1) for _ in counted(n).points]
        assert (await values(lane))["training/number"] == expected
        assert await lane.write(MEMBER, FENCE, [counted(n) for n in range(acknowledged, reached + 3)]) == reached + 2


CHECKS: tuple[Check, ...] = (
    check_gives_back_what_it_was_given,
    check_a_commit_is_all_or_nothing,
    check_of_two_writers_one_wins,
    check_forgetting,
    check_damage_is_told,
    check_exactly_once_by_sequence,
    check_every_value_survives,
    check_batches_are_packed,
    check_questions,
    check_downsampling_keeps_range_and_end,
    check_what_a_successor_did_again_is_superseded,
    check_summaries_are_those_of_the_points,
    check_summaries_know_nothing_of_what_is_superseded,
    check_every_point_by_pages,
    check_a_metric_of_many_tasks,
    check_reductions_and_bodies_are_read_apart,
    check_what_was_reported_last,
    check_two_lanes_never_store_a_batch_twice,
    check_many_callers_share_commits,
)
