"""The parts behind the routes: the journal's past, the feed, streams that end, and reads that wait for the disk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from clutch.backends.journal.memory import MemoryJournal, MemoryStore
from clutch.core.freezing import freeze
from clutch.master.api.errors import explain
from clutch.master.api.streaming import until_stopped
from clutch.master.events import EventFeed, EventFilter
from clutch.master.history import History
from clutch.master.loop import Loop, LoopSettings
from clutch.master.promises import promises
from clutch.master.settings import MasterSettings
from clutch.wire import events as e
from clutch.wire.errors import BadConfig, DiskFull, IllegalMove, Problem, ProblemsView, Unavailable
from clutch.wire.ids import NodeId, PoolName, TaskId
from clutch.wire.journal import Batch
from clutch.wire.messages import Hello, Refusal, Wanted
from clutch.wire.resources import Resources
from clutch.wire.specs import Members, PoolSpec, RoleSpec, TaskSpec

DEADLINE_S = 20.0
ALL = EventFilter(visible=None)


class Gate:
    """A disk that can be made to wait, or to refuse."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.entered = asyncio.Event()
        self.full = False

    async def before_commit(self, batch: Batch) -> None:
        self.entered.set()
        await self.open.wait()
        if self.full:
            raise DiskFull("no room", object="disk")

    async def after_commit(self, batch: Batch) -> None:
        pass


class House:
    def __init__(self) -> None:
        self.ticks = 1000.0
        self.gate = Gate()
        self.store = MemoryStore(time.time)
        self.journal = MemoryJournal(self.store, hook=self.gate)
        self.loop = Loop(self.journal, self, self, {}, Random(1), LoopSettings(holder="h"))
        self.feed = EventFeed(self.journal, self.loop)
        self.loop.listeners.append(self.feed.heard)

    def now(self) -> float:
        self.ticks += 1.0
        return self.ticks

    def say(self, node: NodeId, message: Hello | Wanted | Refusal) -> None:
        pass

    async def __aenter__(self) -> House:
        self.running = asyncio.create_task(self.loop.run())
        await self.loop.serving.wait()
        await self.loop.ask(e.PutPool(cause="test", pool=PoolSpec(PoolName("p"))))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.gate.open.set()
        self.running.cancel()
        await asyncio.wait([self.running])

    async def submit(self, name: str, workspace: str = "default") -> None:
        role = RoleSpec("main", Members(1, Resources()))
        spec = TaskSpec(kind="command", name=name, pool=PoolName("p"), roles=(role,), workspace=workspace, payload=b"!")
        await self.loop.ask(e.Submit(cause="api:ada", task=TaskId(name), spec=spec))


async def test_nobody_reads_what_is_not_durable() -> None:
    async with asyncio.timeout(DEADLINE_S), House() as house:
        house.gate.open.clear()
        house.gate.entered.clear()
        submitting = asyncio.create_task(house.submit("t"))
        await house.gate.entered.wait()
        assert TaskId("t") in house.loop.state.tasks, "it is decided already"
        reading = asyncio.create_task(house.loop.settled())
        done, _ = await asyncio.wait([reading], timeout=0.05)
        assert not done, "and is not shown before it is durable"
        house.gate.open.set()
        state = await reading
        assert TaskId("t") in state.tasks
        await submitting


async def test_readers_get_their_turn_while_the_loop_is_never_idle() -> None:
    async with asyncio.timeout(DEADLINE_S), House() as house:
        submitting = [asyncio.create_task(house.submit(f"t{n}")) for n in range(50)]
        seen = 0
        while not all(task.done() for task in submitting):
            state = await house.loop.settled()
            assert len(state.tasks) == len(house.store.views("tasks")), "the state is what the store has"
            seen += 1
            await asyncio.sleep(0)
        assert seen


async def test_a_master_whose_disk_failed_shows_nothing_more() -> None:
    async with asyncio.timeout(DEADLINE_S), House() as house:
        house.gate.full = True
        with pytest.raises(Unavailable):
            await house.submit("t")
        await asyncio.wait([house.running])
        with pytest.raises(Unavailable):
            await house.loop.settled()


async def test_the_past_is_found_by_its_time_and_forgotten_with_its_rows() -> None:
    async with asyncio.timeout(DEADLINE_S), House() as house:
        for n in range(30):
            await house.submit(f"t{n}")
        await house.loop.ask(e.Kill(cause="api:eve", task=TaskId("t7")))
        last = house.loop.state.index
        history = History(house.journal, last)
        rows = await house.journal.read(0)
        for row in rows:
            assert await history.before(row.at) == min(other.index for other in rows if other.at == row.at) - 1
        submitted = next(row for row in rows if b"t7" in row.payload)
        spec = await history.spec("t7", submitted.at)
        assert spec is not None and spec.name == "t7" and spec.payload == b"!"
        story = await history.story("t7", submitted.at, float("inf"))
        assert len(story) == 3 and "task submitted" in story[0] and "<- api:eve" in story[-1]

        await house.journal.save_snapshot(freeze(house.loop.state))
        await house.journal.forget(20)
        assert await history.first() == 19
        assert await history.spec("t7", submitted.at) is None
        assert any("api:eve" in line for line in await history.story("t7", submitted.at, float("inf")))
        page = await house.feed.page(ALL, 0, 1000)
        assert page.items[-1].index == last


async def test_the_feed_goes_on_from_any_row_and_keeps_workspaces_apart() -> None:
    async with asyncio.timeout(DEADLINE_S), House() as house:
        await house.submit("mine", "lab")
        await house.submit("other", "home")
        everything = await house.feed.page(ALL, 0, 1000)
        assert [view.index for view in everything.items] == list(range(1, house.loop.state.index + 1))
        lab = EventFilter(visible=("lab",))
        assert [view.object for view in (await house.feed.page(lab, 0, 10)).items] == ["mine"]
        first = await house.feed.page(ALL, 0, 2)
        assert (first.seen, first.more) == (2, True)
        following = house.feed.follow(EventFilter(visible=None, kinds=("task_ended",)), 0)
        waiting = asyncio.ensure_future(anext(following))
        await house.loop.ask(e.Kill(cause="api:ada", task=TaskId("mine")))
        assert [view.object for view in (await waiting).items] == ["mine"]
        await following.aclose()  # type: ignore[attr-defined]
        fresh = EventFeed(house.journal, house.loop)
        assert (await fresh.page(ALL, 0, 1000)).items[: len(everything.items)] == everything.items, "from the journal"


async def test_streams_beat_and_end_with_the_master() -> None:
    async def silent() -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()

    async with asyncio.timeout(DEADLINE_S):
        stopping = asyncio.Event()
        found: list[int | None] = []
        async for item in until_stopped(silent(), stopping, beat_s=0.01):
            found.append(item)
            if len(found) == 3:
                stopping.set()
        assert found == [1, None, None]

        async def failing() -> AsyncIterator[int]:
            yield 1
            raise DiskFull("no room")

        with pytest.raises(DiskFull):
            async for _ in until_stopped(failing(), asyncio.Event()):
                pass


def test_errors_in_words_that_any_encoder_takes() -> None:
    status, view = explain(IllegalMove("no such arrow", object="task \ud800", story=("it was born", "it ended")))
    assert status == 409 and "it was born; it ended" in view.cause and view.object == "task ?"
    assert explain(RuntimeError("hunter2"), "GET /x")[1].cause == "this is a bug of Clutch"
    assert explain(RecursionError())[0] == 400


def test_every_problem_of_a_configuration_is_told_however_many_there_are() -> None:
    told = [Problem(f"a.{n}", f"{n} is too small \ud800", "Write a larger one. " * 10) for n in range(100)]
    status, view = explain(BadConfig(problems=tuple(told), object="configuration"))
    assert status == 400 and isinstance(view, ProblemsView)
    assert [one.path for one in view.problems] == [one.path for one in told]
    assert view.problems[99].problem == "99 is too small ?"
    read = BadConfig(view.cause)  # as who only knows ErrorView reads it
    assert [(one.path, one.problem) for one in read.problems] == [(one.path, one.problem) for one in view.problems]
    assert len(explain(BadConfig(problems=(Problem("a", "x" * 100_000),)))[1].cause) < 2_000


def test_promises_say_what_the_settings_allow(tmp_path: Path) -> None:
    here = promises(MasterSettings(data=tmp_path))
    assert "not the loss of this machine" in here["P1"] and "only this machine" in here["P7"]
    settings = MasterSettings(data=tmp_path, db="postgresql://h/d", blobs="s3://b", host="0.0.0.0", tls_cert="c")
    there = promises(settings)
    assert "survives the loss of this machine" in there["P1"] and "takes over" in there["P5"]
    assert "with TLS" in there["P7"] and "0.0.0.0" in there["P7"]
