"""Series of bounded size, values in formats that have no NaN, and the lane's bounds."""

import asyncio
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from clutch.master.metrics_lane.briefs import buckets_of
from clutch.master.metrics_lane.columns import Column, Timeline
from clutch.master.metrics_lane.lane import MetricsLane, MetricsSettings
from clutch.master.metrics_lane.memory import MemoryMetricsStore
from clutch.master.metrics_lane.opening import open_metrics
from clutch.master.metrics_lane.records import NAMES_MAX, SourceChange
from clutch.master.metrics_lane.series import Buckets, shape_tools
from clutch.testing.metrics_suite import FENCE, MEMBER, batch, metrics_on, point
from clutch.testing.output_suite import refused
from clutch.wire.errors import BadRequest, TimedOut, TooLarge, Unavailable
from clutch.wire.ids import MemberId, TaskId
from clutch.wire.metrics import MetricBatch, MetricPoint, MetricsQuery, Value, heard, spoken

assert shape_tools() is not None, "tests run with it installed; and no test is timed while it is imported"
NUMBERS = st.one_of(st.integers(-1_000, 1_000), st.floats(allow_nan=True), st.just("text"))


@pytest.mark.parametrize("shapes", [True, False], ids=["shaped", "even"])
@given(st.lists(st.tuples(st.integers(0, 500), NUMBERS), max_size=300), st.integers(1, 40), st.integers(-1, 501))
def test_buckets_lose_nothing_but_the_middle(
    shapes: bool, points: list[tuple[int, Value]], most: int, limit: int
) -> None:
    buckets = Buckets(most)
    for n, (step, value) in enumerate(points):
        column = Column("g", "n", Timeline((step,), (float(n),)), (value,))
        buckets.extend(buckets_of(column, 0, 1, 1, step > limit), 1)
        assert len(buckets._held) <= 4 * most + 1
    found = buckets.points(shapes)
    assert len(found) <= most + 1
    assert sum(one.count for one in found) == buckets.total == len(points)
    assert [one.step for one in found] == sorted(one.step for one in found)
    assert all(one.superseded == (one.step > limit) for one in found)
    numbers = [value for _, value in points if not isinstance(value, str) and math.isfinite(value)]
    alone = [one.value for one in found if one.count == 1 and not isinstance(one.value, str)]
    if numbers:
        lows = [one.low for one in found if one.low is not None]
        highs = [one.high for one in found if one.high is not None]
        single = [value for value in alone if math.isfinite(value)]
        assert min([*lows, *single]) == min(numbers)
        assert max([*highs, *single]) == max(numbers)
    assert all(one.low is None or math.isfinite(one.low) for one in found), "JSON can say every range"
    if points:
        last = max(range(len(points)), key=lambda n: (points[n][0], n))
        assert found[-1].step == points[last][0]
        if len(points) <= most:
            assert found[-1].at == float(last), "of one step, the last reported"


def test_shapes_keep_the_peaks_of_a_curve() -> None:
    spikes = {3_333, 7_001, 7_003}
    values = [50.0 if n in spikes else math.sin(n / 500) for n in range(10_000)]
    column = Column("g", "n", Timeline(range(10_000), [float(n) for n in range(10_000)]), values)
    buckets = Buckets(10_000)
    buckets.extend(buckets_of(column, 0, 10_000, 1, False), 10_000)
    buckets._max = 100
    shaped, even = buckets.points(), buckets.points(shapes=False)
    assert len(shaped) <= 101
    assert len(even) <= 101
    assert len([one for one in shaped if one.value == 50.0]) >= 2, "a chart of the points alone shows them"
    for found in (shaped, even):
        assert [one for one in found if one.high == 50.0 or one.value == 50.0], "and the range always does"
        assert sum(one.count for one in found) == 10_000


def test_the_choice_of_points_does_without_numpy() -> None:
    """A base install has neither numpy nor tsdownsample."""
    program = """
import sys
for name in ("numpy", "tsdownsample"):
    sys.modules[name] = None
from clutch.master.metrics_lane.columns import Column, Timeline
from clutch.master.metrics_lane.briefs import buckets_of
from clutch.master.metrics_lane.series import Buckets, shape_tools
assert shape_tools() is None
column = Column("g", "n", Timeline(range(1000), [0.0] * 1000), [float(n) for n in range(1000)])
buckets = Buckets(10)
buckets.extend(buckets_of(column, 0, 1000, 1, False), 1000)
points = buckets.points()
assert 8 <= len(points) <= 10 and points[-1].value == 999.0 and points[0].low == 0.0, points
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.5, 7, "text"])
def test_every_value_travels_through_json(value: Value) -> None:
    back = heard(msgspec.json.decode(msgspec.json.encode(spoken(value))))
    assert repr(back) == repr(value)


class StuckStore(MemoryMetricsStore):
    """Commits only when let."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.commits = 0

    async def write(self, changes: Sequence[SourceChange]) -> list[int]:
        await self.gate.wait()
        self.commits += 1
        return await super().write(changes)


async def test_the_line_is_bounded_and_commits_are_shared() -> None:
    store = StuckStore()
    lane = MetricsLane(store, MetricsSettings(waiting_max_points=100, commit_max_points=50))
    await refused(TooLarge, lane.write(MEMBER, FENCE, [batch(1, *(point(n, a=1) for n in range(200)))]))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(lane.run())
        calls = [
            group.create_task(lane.write(replace(MEMBER, rank=rank), FENCE, [batch(1, *(point(n) for n in range(9)))]))
            for rank in range(50)
        ]
        for _ in range(20):
            await asyncio.sleep(0)
        assert lane._line.waiting_size <= 100
        store.gate.set()
        assert await asyncio.gather(*calls) == [1] * 50
        running.cancel()
    assert store.commits < 25
    await refused(Unavailable, lane.write(MEMBER, FENCE, [batch(1)]))
    lane.close_threads()


async def test_a_store_that_hangs_is_not_waited_for_for_ever() -> None:
    lane = MetricsLane(StuckStore(), MetricsSettings(write_timeout_s=0.05))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(lane.run())
        await refused(TimedOut, lane.write(MEMBER, FENCE, [batch(1, point(1, a=1))]))
        running.cancel()
    lane.close_threads()


async def test_more_names_than_are_remembered() -> None:
    async with metrics_on(MemoryMetricsStore()) as lane:
        for n in range(3):
            names: dict[str, Value] = {f"{n}.{k}": k for k in range(1_000)}
            await lane.write(MEMBER, FENCE, [MetricBatch(n + 1, (MetricPoint("g", n, names, float(n)),))])
        latest = await lane.latest(MEMBER.task)
        assert len(latest) == NAMES_MAX
        assert {one.name[0] for one in latest} == {"1", "2"}, "those reported last"
        assert len(await lane.series(MetricsQuery(task=MEMBER.task))) == 3_000
        names = {f"0.{k}": 7 for k in range(10)}
        await lane.write(MEMBER, FENCE, [MetricBatch(4, (MetricPoint("g", 9, names, 9.0),))])
        summaries = {one.name: one for one in await lane.summaries(MEMBER.task)}
        assert len(summaries) == 3_000
        assert (summaries["0.5"].count, summaries["0.5"].mean, summaries["1.5"].count) == (2, 6.0, 1)


async def test_names_that_no_store_keeps() -> None:
    async with metrics_on(MemoryMetricsStore()) as lane:
        for member in (MemberId(TaskId("t"), "r", -1), MemberId(TaskId("a\0"), "r", 0), MemberId(TaskId(""), "r", 0)):
            await refused(BadRequest, lane.write(member, FENCE, [batch(1)]))
        await refused(BadRequest, lane.write(MEMBER, FENCE, [batch(1, point(2**70, a=1))]))
        await refused(BadRequest, lane.resumed(MEMBER.task, -1, 5))


async def test_open_metrics_runs_a_lane(tmp_path: Path) -> None:
    path = str(tmp_path / "metrics.db")
    async with open_metrics(path) as lane:
        assert await lane.write(MEMBER, FENCE, [batch(1, point(1, loss=0.5))]) == 1
    async with open_metrics(f"sqlite:///{path}") as lane:
        assert lane.reached(MEMBER, FENCE) == 1
        assert [one.value for one in await lane.latest(MEMBER.task)] == [0.5]
