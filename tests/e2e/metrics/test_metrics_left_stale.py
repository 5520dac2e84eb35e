"""Whom a dead member's metrics are told: those who decide, before the loop, and only while its epoch is not over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from clutch.testing.push_master import PushMaster, push_master
from clutch.wire.errors import BadRequest, Unavailable
from clutch.wire.ids import Fence, MemberId, TaskId
from clutch.wire.messages import Exit
from clutch.wire.metrics import MetricBatch, MetricPoint, MetricsQuery
from clutch.wire.outcomes import AllocationState

MEMBER = MemberId(TaskId("task"), "main", 0)
POINTS = tuple(MetricPoint("validation", step, {"loss": float(step)}, 1.0) for step in (1, 2))
LINES = b"\n".join(msgspec.json.encode(MetricBatch(n, (point,))) for n, point in enumerate(POINTS, 1))


async def until(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not look():  # noqa: ASYNC110 -- the state is looked at, nobody says that it changed
            await asyncio.sleep(0.01)


def epoch(master: PushMaster) -> int:
    allocation = master.loop.state.allocations.get(MEMBER.task)
    return allocation.epoch if allocation is not None else 0


class Told:
    """Somebody who decides upon metrics."""

    def __init__(self, master: PushMaster) -> None:
        self.batches: list[int] = []
        self.states: list[str] = []
        self.error: Exception | None = None
        self._master = master
        master.push.after_metrics.append(self)

    async def __call__(self, member: MemberId, fence: Fence, batches: tuple[MetricBatch, ...]) -> None:
        if self.error is not None:
            raise self.error
        self.batches += [batch.sequence for batch in batches]
        self.states.append(str(self._master.loop.state.allocations[member.task].state))


async def steps(master: PushMaster, epoch: int) -> list[int]:
    found = await master.services.metrics.series(MetricsQuery(task=MEMBER.task, epochs=(epoch,)))
    return [point.step for series in found for point in series.points]


def leaves(master: PushMaster, fence: Fence, sequence: int) -> None:
    brain = master.agent._brain
    assert brain is not None
    master.agent._do(brain.exited(MEMBER, fence, Exit(1, metrics_sequence=sequence)))


async def test_the_allocation_ends_when_they_are_stored_and_heard(tmp_path: Path) -> None:
    async with push_master(tmp_path / "data") as master:
        await master.submit("task")
        told, fence, state = Told(master), Fence(master.loop.state.generation, 1, 1), master.loop.state
        leaves(master, fence, 2)
        await until(lambda: state.allocations[MEMBER.task].state is AllocationState.FLUSHING)
        told.error = Unavailable("not now", object="search")
        with pytest.raises(Unavailable):  # the connection is cut and the agent says it again
            await master.push.left.take(MEMBER, fence, LINES)
        assert master.push.left.reached(MEMBER, fence) == 0 and await steps(master, 1) == [1, 2]
        assert state.allocations[MEMBER.task].state is AllocationState.FLUSHING, "stored, and not heard by all"
        told.error = None
        assert (await master.push.left.take(MEMBER, fence, LINES)).sequence == 2
        assert (told.batches, told.states) == ([1, 2], ["flushing"]), "heard before the end"
        await until(lambda: epoch(master) == 2)
        assert await steps(master, 1) == [1, 2], "stored once"


async def test_of_an_epoch_that_is_over_they_are_kept_and_nobody_decides_upon_them(tmp_path: Path) -> None:
    async with push_master(tmp_path / "data") as master:
        await master.submit("task")
        told, fence = Told(master), Fence(master.loop.state.generation, 1, 1)
        leaves(master, fence, 0)
        await until(lambda: epoch(master) == 2)
        assert (await master.push.left.take(MEMBER, fence, LINES)).sequence == 2
        assert told.batches == [] and await steps(master, 1) == [1, 2]


async def test_what_can_never_be_stored_is_refused_and_what_nobody_can_use_is_stored(tmp_path: Path) -> None:
    async with push_master(tmp_path / "data") as master:
        await master.submit("task")
        told, fence, left = Told(master), Fence(master.loop.state.generation, 1, 1), master.push.left
        for junk in (b"{", b'{"sequence":1,"points":[3]}', b'{"sequence":5,"points":[]}', b"\xff\n", b"[[[["):
            answer = await left.take(MEMBER, fence, junk)
            assert answer.refused and answer.sequence == 0, junk
        told.error = BadRequest("a metric that it does not know", object="search")
        answer = await left.take(MEMBER, fence, LINES)
        assert (answer.sequence, answer.refused) == (2, "")
        assert (await left.take(MEMBER, fence, b"")).sequence == 2, "an empty piece asks what there is"
        assert (await left.opened(MEMBER, fence)).sequence == 2
