"""The master's loop on a virtual clock and a journal in memory: persist, then act, then answer; and take-overs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from clutch.agent.brain import Brain, Say
from clutch.backends.journal.memory import MemoryJournal, MemoryStore
from clutch.core.freezing import freeze
from clutch.master.loop import Loop, LoopSettings, restore
from clutch.testing.virtual_loop import VirtualLoop
from clutch.testing.world import World
from clutch.wire import events as e
from clutch.wire.errors import Conflict, DiskFull, NotFound, Stale, Unavailable
from clutch.wire.ids import Fence, MemberId, NodeId, PoolName, TaskId
from clutch.wire.journal import Batch
from clutch.wire.messages import Exit, Hello, Wanted
from clutch.wire.outcomes import NodeState
from clutch.wire.resources import Capacity, Resources, Slot
from clutch.wire.specs import Members, PoolSpec, RoleSpec, TaskSpec
from clutch.wire.views import TaskView

POOL = PoolName("pool")
NODE = NodeId("n")


def spec(name: str, slots: int = 1) -> TaskSpec:
    return TaskSpec(kind="trial", name=name, pool=POOL, roles=(RoleSpec("main", Members(1, Resources(slots=slots))),))


class Disk:
    """A disk that can be made to wait or to refuse."""

    def __init__(self) -> None:
        self.gate: asyncio.Event | None = None
        self.full = False
        self.waiting = 0

    async def before_commit(self, batch: Batch) -> None:
        if self.gate is not None:
            self.waiting += 1
            await self.gate.wait()
        if self.full:
            raise DiskFull("no room", object="disk")

    async def after_commit(self, batch: Batch) -> None:
        pass


class House:
    """One world, one store, any number of masters one after the other or at once, and one agent."""

    def __init__(self) -> None:
        self.world = World(1)
        self.store = MemoryStore(lambda: self.world.now)
        self.loops: list[VirtualLoop] = []
        self.brain = Brain(NODE, POOL, "s1", Capacity((Slot(0, "cuda"), Slot(1, "cuda")), 8000, 2**30))

    def master(self, name: str, **settings: Any) -> Master:
        return Master(self, name, LoopSettings(holder=name, **settings))

    def pass_time(self, seconds: float) -> None:
        self.world.run_until(self.world.now + seconds)

    def folded(self) -> bytes:
        """What another process makes of the store."""
        loop = VirtualLoop(self.world, "reader")
        self.loops.append(loop)
        task = loop.start(restore(MemoryJournal(self.store), {}))
        self.pass_time(0.0)
        return freeze(task.result()).payload


class Master:
    """A process with a loop in it, which hears what its agent says and keeps what it said itself."""

    def __init__(self, house: House, name: str, settings: LoopSettings) -> None:
        self.house = house
        self.disk = Disk()
        self.process = VirtualLoop(house.world, name)
        house.loops.append(self.process)
        self.said: list[Hello | Wanted] = []
        journal = MemoryJournal(house.store, hook=self.disk)
        made = self.process.start(self._make(journal, settings))
        house.pass_time(0.0)
        self.loop: Loop = made.result()
        self.running = self.process.start(self.loop.run())
        house.pass_time(0.0)

    async def _make(self, journal: MemoryJournal, settings: LoopSettings) -> Loop:
        return Loop(journal, self, self, {}, Random(1), settings)

    def now(self) -> float:
        return self.house.world.now

    def say(self, node: NodeId, message: Hello | Wanted) -> None:
        self.said.append(message)
        brain = self.house.brain
        effects = brain.greeted(message) if isinstance(message, Hello) else brain.ordered(message)
        reports = [effect.report for effect in effects if isinstance(effect, Say)]
        for report in reports:
            self.house.world.after(0.01, lambda report=report: self.loop.hear(report))  # type: ignore[misc]

    def ask(self, event: e.Event) -> asyncio.Task[Any]:
        return self.process.start(self.loop.ask(event))

    def does(self, event: e.Event) -> Any:
        task = self.ask(event)
        self.house.pass_time(0.0)
        return task.result()

    def beat(self) -> None:
        """The agent speaks up."""
        for effect in self.house.brain.beat():
            if isinstance(effect, Say):
                self.loop.hear(effect.report)
        self.house.pass_time(0.1)


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    for loop in house.loops:
        loop.bury()


def test_it_leads_serves_and_answers(house: House) -> None:
    one = house.master("a")
    assert one.loop.serving.is_set() and one.loop.state.term == 1
    assert one.does(e.PutPool(pool=PoolSpec(POOL))) is None
    assert one.does(e.Submit(task=TaskId("t"), spec=spec("t"), key="k")) == "t"
    assert one.does(e.Submit(task=TaskId("u"), spec=spec("t"), key="k")) == "t", "the same key is the same task"
    with pytest.raises(Conflict, match="another spec"):
        one.does(e.Submit(task=TaskId("u"), spec=spec("u"), key="k"))
    one.beat()
    assert isinstance(one.said[0], Hello)
    one.beat()
    assert one.loop.state.nodes[NODE].state is NodeState.READY
    last = one.said[-1]
    assert isinstance(last, Wanted) and [m.member.task for m in last.members] == ["t"]
    assert house.folded() == freeze(one.loop.state).payload


def test_the_name_of_an_ended_task_is_not_used_again(house: House) -> None:
    """Its fences would repeat, and a process of its first life could write into its second."""
    one = house.master("a")
    one.does(e.PutPool(pool=PoolSpec(POOL)))
    one.does(e.Submit(task=TaskId("t"), spec=spec("t")))
    one.does(e.Kill(task=TaskId("t")))
    assert TaskId("t") not in one.loop.state.tasks
    with pytest.raises(Conflict, match="has ended"):
        one.does(e.Submit(task=TaskId("t"), spec=spec("t")))


def test_an_answer_comes_after_the_commit_only(house: House) -> None:
    one = house.master("a")
    one.does(e.PutPool(pool=PoolSpec(POOL)))
    one.beat()
    one.beat()
    one.disk.gate = asyncio.Event()
    before, spoken = house.store.last_index, len(one.said)
    asked = one.ask(e.Submit(task=TaskId("t"), spec=spec("t")))
    house.pass_time(0.3)
    assert one.disk.waiting == 1
    assert not asked.done() and len(one.said) == spoken and house.store.last_index == before
    assert house.store.views("tasks") == {}
    one.disk.gate.set()
    house.pass_time(0.0)
    assert asked.result() == "t"
    assert len(one.said) == spoken + 1, "and what is wanted is said after it too"
    view = house.store.views("tasks")["t"]
    assert isinstance(view, TaskView) and view.state == "running"


def test_a_refusal_is_an_answer_too_and_harms_nobody_else(house: House) -> None:
    one = house.master("a")
    good, bad = one.ask(e.PutPool(pool=PoolSpec(POOL))), one.ask(e.Kill(task=TaskId("nobody")))
    last = one.ask(e.Submit(task=TaskId("t"), spec=spec("t")))
    house.pass_time(0.0)
    assert good.result() is None and last.result() == "t"
    with pytest.raises(NotFound):
        bad.result()
    assert house.store.commits == 2, "the term's first batch, and one for all three"


def test_a_failing_append_ends_it(house: House) -> None:
    one = house.master("a")
    one.does(e.PutPool(pool=PoolSpec(POOL)))
    before = house.folded()
    one.disk.full = True
    asked = one.ask(e.Submit(task=TaskId("t"), spec=spec("t")))
    house.pass_time(0.0)
    with pytest.raises(ExceptionGroup) as caught:
        one.running.result()
    assert caught.group_contains(DiskFull)
    assert isinstance(asked.exception(), Unavailable), "nobody was told that it is so"
    assert house.folded() == before


def test_a_full_queue_says_not_now(house: House) -> None:
    one = house.master("a", queue_max=3)
    one.disk.gate = asyncio.Event()
    first = one.ask(e.PutPool(pool=PoolSpec(POOL)))
    house.pass_time(0.0)
    waiting = [one.ask(e.Submit(task=TaskId(f"t{i}"), spec=spec(f"t{i}"))) for i in range(4)]
    house.pass_time(0.0)
    assert [task.done() for task in waiting] == [False, False, False, True]
    with pytest.raises(Unavailable) as caught:
        waiting[3].result()
    assert "3 events" in caught.value.cause
    one.beat()
    assert not one.running.done(), "a report that finds no room is dropped; it will be repeated"
    one.disk.gate.set()
    house.pass_time(0.1)
    assert first.done() and [task.result() for task in waiting[:3]] == ["t0", "t1", "t2"]


def test_it_goes_on_from_its_rows(house: House) -> None:
    one = house.master("a")
    one.does(e.PutPool(pool=PoolSpec(POOL)))
    one.does(e.Submit(task=TaskId("t"), spec=spec("t")))
    one.process.kill()
    two = house.master("a")
    assert two.loop.serving.is_set() and two.loop.state.term == 2
    assert list(two.loop.state.tasks) == ["t"]
    assert house.folded() == freeze(two.loop.state).payload


def test_it_goes_on_from_its_snapshot(house: House) -> None:
    one = house.master("a", snapshot_rows=5)
    one.does(e.PutPool(pool=PoolSpec(POOL)))
    for number in range(12):
        one.does(e.Submit(task=TaskId(f"t{number}"), spec=spec(f"t{number}")))
    snapshot = house.store.snapshot()
    assert snapshot is not None and 5 <= snapshot.index <= house.store.last_index
    assert house.store.forget(snapshot.index + 1) > 0, "so that only the snapshot can tell"
    live = freeze(one.loop.state).payload
    assert house.folded() == live
    one.process.kill()
    two = house.master("a", snapshot_rows=5)
    assert len(two.loop.state.tasks) == 12 and two.loop.state.term == 2
    assert house.folded() == freeze(two.loop.state).payload


def test_a_standby_waits_for_the_lead_to_end(house: House) -> None:
    one = house.master("a", lead_s=3.0)
    two = house.master("b", lead_s=3.0)
    house.pass_time(30.0)
    assert one.loop.serving.is_set() and not two.loop.serving.is_set(), "the first renews"
    one.process.kill()
    house.pass_time(5.0)
    assert two.loop.serving.is_set() and two.loop.state.term == 2


def test_a_master_that_slept_through_its_replacement_ends_and_says_nothing(house: House) -> None:
    one = house.master("a", lead_s=3.0)
    one.does(e.PutPool(pool=PoolSpec(POOL)))
    one.beat()
    one.beat()
    one.process.stop()
    two = house.master("b", lead_s=3.0)
    house.pass_time(5.0)
    assert two.loop.serving.is_set()
    asked = one.ask(e.Submit(task=TaskId("late"), spec=spec("late")))
    spoken = len(one.said)
    one.process.resume()
    house.pass_time(5.0)
    with pytest.raises(ExceptionGroup) as caught:
        one.running.result()
    assert caught.group_contains(Stale)
    assert isinstance(asked.exception(), Unavailable) and len(one.said) == spoken
    assert "late" not in two.loop.state.tasks
    assert house.folded() == freeze(two.loop.state).payload


def test_a_master_that_was_replaced_does_not_say_what_is_not_so(house: House) -> None:
    """It has not heard of what its successor decided: its "no such task" would be a lie."""
    one = house.master("a", lead_s=3.0)
    one.does(e.PutPool(pool=PoolSpec(POOL)))
    one.process.stop()
    two = house.master("b", lead_s=3.0)
    house.pass_time(5.0)
    two.does(e.Submit(task=TaskId("new"), spec=spec("new")))
    asked = one.ask(e.Kill(task=TaskId("new")))
    one.process.resume()
    house.pass_time(0.5)
    assert isinstance(asked.exception(), Unavailable)


def test_a_batch_under_way_when_another_takes_over_is_refused(house: House) -> None:
    one = house.master("a", lead_s=3.0)
    one.does(e.PutPool(pool=PoolSpec(POOL)))
    one.disk.gate = asyncio.Event()
    asked = one.ask(e.Submit(task=TaskId("late"), spec=spec("late")))
    house.pass_time(0.0)
    one.process.stop()
    two = house.master("b", lead_s=3.0)
    house.pass_time(5.0)
    assert two.loop.serving.is_set()
    one.process.resume()
    one.disk.gate.set()
    house.pass_time(1.0)
    with pytest.raises(ExceptionGroup) as caught:
        one.running.result()
    assert caught.group_contains(Stale)
    assert isinstance(asked.exception(), Unavailable) and "late" not in two.loop.state.tasks


def test_silence_and_repetition(house: House) -> None:
    one = house.master("a", suspect_after_s=4.0)
    one.does(e.PutPool(pool=PoolSpec(POOL)))
    one.beat()
    one.beat()
    assert one.loop.state.nodes[NODE].state is NodeState.READY
    house.pass_time(6.0)
    assert one.loop.state.nodes[NODE].state is NodeState.SUSPECT
    one.beat()
    assert one.loop.state.nodes[NODE].state is NodeState.READY


def test_time_never_runs_backwards(house: House) -> None:
    one = house.master("a")
    one.does(e.PutPool(pool=PoolSpec(POOL)))
    at = one.loop.state.at
    one.now = lambda: at - 1000.0  # type: ignore[method-assign]
    one.does(e.Submit(task=TaskId("t"), spec=spec("t")))
    assert one.loop.state.tasks[TaskId("t")].submitted_at == at


def test_before_it_serves_it_hears_nothing(house: House) -> None:
    one = house.master("a")
    two = house.master("b")
    two.beat()
    assert two.said == [] and one.loop.serving.is_set()


def test_what_the_lanes_reached_before_the_exit_counts_whoever_spoke_last(house: House) -> None:
    """Output and metrics have lanes of their own, and what an older life wrote may arrive late."""
    one = house.master("a")
    one.does(e.PutPool(pool=PoolSpec(POOL)))
    one.does(e.Submit(task=TaskId("t"), spec=spec("t")))
    one.beat()
    one.beat()
    member, fence = MemberId(TaskId("t"), "main", 0), Fence(1, 1, 1)
    house.brain.started(member, fence)
    one.beat()
    one.does(e.ReachLanes(member=member, fence=fence, metrics_sequence=0, output_offset=100))
    one.does(e.ReachLanes(member=member, fence=fence, metrics_sequence=5, output_offset=0))
    one.does(e.ReachLanes(member=member, fence=Fence(0, 9, 9), metrics_sequence=1, output_offset=1))
    house.brain.exited(member, fence, Exit(0, metrics_sequence=5, output_offset=100))
    one.beat()
    assert TaskId("t") not in one.loop.state.tasks, "it waits for what the store has already"
