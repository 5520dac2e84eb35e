"""The performer: at least once, one of a subject at a time, bounded, patient, and never deaf."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from clutch.master.effects import Effect, Performer, PerformerSettings
from clutch.wire.errors import BadRequest, ClutchError, Unavailable
from clutch.wire.events import Event
from clutch.wire.journal import OutboxItem

PATIENCE_S = 20.0
QUICK = PerformerSettings(at_once=3, retry_s=0.01, retry_max_s=0.05, look_s=0.05)


class Done(Event, frozen=True, tag="done"):
    token: str


class GaveUp(Event, frozen=True, tag="gave_up"):
    token: str
    why: str


class Desk:
    """A loop that folds results at once, and the outbox it keeps."""

    def __init__(self, *tokens: str) -> None:
        self.clock = self
        self.time = 1000.0
        self.serving, self.owing = asyncio.Event(), asyncio.Event()
        self.serving.set()
        self.items = {token: OutboxItem(token, "call", 1000.0, b"") for token in tokens}
        self.heard: list[Event] = []
        self.refusals: list[ClutchError] = []
        self.all_done = asyncio.Event()

    def now(self) -> float:
        return self.time

    async def pending(self, limit: int) -> list[OutboxItem]:
        return sorted(self.items.values(), key=lambda item: (item.due_at, item.token))[:limit]

    async def ask(self, event: Any) -> None:
        if self.refusals:
            raise self.refusals.pop()
        self.heard.append(event)
        self.items.pop(event.token, None)
        if not self.items:
            self.all_done.set()

    def put(self, item: OutboxItem) -> None:
        self.items[item.token] = item
        self.owing.set()


@asynccontextmanager
async def performing(desk: Desk, effect: Effect, settings: PerformerSettings = QUICK):  # type: ignore[no-untyped-def]
    performer = Performer(desk, desk, {"call": effect}, settings)
    task = asyncio.create_task(performer.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield performer
        assert not task.done(), "it performs for ever"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def effect(perform: Callable[[OutboxItem], Awaitable[Any]], **more: Any) -> Effect:
    return Effect(perform=perform, **more)


async def test_what_waits_is_performed_and_its_result_told() -> None:
    desk = Desk("a", "b")

    async def perform(item: OutboxItem) -> Event:
        return Done(token=item.token)

    async with performing(desk, effect(perform)):
        await desk.all_done.wait()
        desk.all_done.clear()
        desk.put(OutboxItem("c", "call", 1000.0, b""))
        await desk.all_done.wait()
    assert sorted(event.token for event in desk.heard) == ["a", "b", "c"]


async def test_it_waits_until_its_master_leads() -> None:
    desk = Desk("a")
    desk.serving.clear()
    began: list[str] = []

    async def perform(item: OutboxItem) -> Event:
        began.append(item.token)
        return Done(token=item.token)

    async with performing(desk, effect(perform)):
        for _ in range(50):
            await asyncio.sleep(0)
        assert began == []
        desk.serving.set()
        await desk.all_done.wait()


@pytest.mark.parametrize("failure", [Unavailable("no"), RuntimeError("ours"), TimeoutError()])
async def test_what_fails_is_tried_again(failure: Exception) -> None:
    desk = Desk("a")
    tries: list[float] = []

    async def perform(item: OutboxItem) -> Event:
        tries.append(asyncio.get_running_loop().time())
        if len(tries) < 5:
            raise failure
        return Done(token=item.token)

    async with performing(desk, effect(perform)) as performer:
        await desk.all_done.wait()
        assert performer.tries["a"].count == 4 and isinstance(performer.tries["a"].error, ClutchError)
    gaps = [later - earlier for earlier, later in pairwise(tries)]
    assert all(gap >= rest * 0.9 for gap, rest in zip(gaps, (0.01, 0.02, 0.04, 0.05), strict=True)), gaps


async def test_one_try_takes_only_so_long() -> None:
    desk = Desk("a")
    tries = 0

    async def perform(item: OutboxItem) -> Event:
        nonlocal tries
        tries += 1
        if tries == 1:
            await asyncio.Event().wait()
        return Done(token=item.token)

    async with performing(desk, effect(perform, attempt_s=0.05)):
        await desk.all_done.wait()
    assert tries == 2


async def test_a_result_that_could_not_be_told_is_performed_again() -> None:
    desk = Desk("a")
    desk.refusals = [Unavailable("the queue is full"), Unavailable("the queue is full")]
    performed = 0

    async def perform(item: OutboxItem) -> Event:
        nonlocal performed
        performed += 1
        return Done(token=item.token)

    async with performing(desk, effect(perform)):
        await desk.all_done.wait()
    assert performed == 3


def _gave_up(item: OutboxItem, error: ClutchError) -> Event:
    return GaveUp(token=item.token, why=error.cause)


async def test_a_callers_mistake_is_given_up_at_once() -> None:
    desk = Desk("a")

    async def perform(item: OutboxItem) -> Event:
        raise BadRequest("no such size", object="template")

    async with performing(desk, effect(perform, give_up=_gave_up)):
        await desk.all_done.wait()
    assert desk.heard == [GaveUp(token="a", why="no such size")]


async def test_what_fails_for_too_long_is_given_up_if_that_means_something() -> None:
    desk = Desk("a")
    tries = 0

    async def perform(item: OutboxItem) -> Event:
        nonlocal tries
        tries += 1
        desk.time += 100.0
        raise Unavailable("no room")

    async with performing(desk, effect(perform, give_up=_gave_up, give_up_s=250.0)):
        await desk.all_done.wait()
    assert (tries, desk.heard) == (3, [GaveUp(token="a", why="no room")])


async def test_what_has_no_way_to_be_given_up_is_tried_for_ever() -> None:
    desk = Desk("a")
    tries = asyncio.Semaphore(0)

    async def perform(item: OutboxItem) -> Event:
        desk.time += 1e6
        tries.release()
        raise BadRequest("never", object="x")

    async with performing(desk, effect(perform, give_up_s=1.0)):
        for _ in range(6):
            await tries.acquire()
    assert "a" in desk.items


async def test_one_subject_at_a_time_and_all_within_a_bound() -> None:
    desk = Desk(*[f"{kind}:{number}" for kind in ("launch", "terminate") for number in range(6)])
    running: dict[str, int] = {}
    most = 0

    async def perform(item: OutboxItem) -> Event:
        nonlocal most
        subject = item.token.partition(":")[2]
        running[subject] = running.get(subject, 0) + 1
        assert running[subject] == 1, "two of one subject side by side"
        most = max(most, sum(running.values()))
        await asyncio.sleep(0.005)
        running[subject] -= 1
        return Done(token=item.token)

    async with performing(desk, effect(perform, subject=lambda item: item.token.partition(":")[2])):
        await desk.all_done.wait()
    assert most == QUICK.at_once


async def test_what_hangs_does_not_hold_up_the_others() -> None:
    desk = Desk("a-hangs", "b", "c")

    async def perform(item: OutboxItem) -> Event:
        if item.token == "a-hangs":
            await asyncio.Event().wait()
        return Done(token=item.token)

    async with performing(desk, effect(perform)):
        while len(desk.items) > 1:  # noqa: ASYNC110  # the event is for all of them
            await asyncio.sleep(0)
    assert [event.token for event in desk.heard] == ["b", "c"]


async def test_what_is_due_later_waits_and_what_nobody_knows_is_left_alone() -> None:
    desk = Desk()
    desk.put(OutboxItem("later", "call", 1000.2, b""))
    desk.put(OutboxItem("strange", "another release's", 0.0, b""))
    began = asyncio.get_running_loop().time()
    told = asyncio.Event()

    async def perform(item: OutboxItem) -> Event:
        told.set()
        return Done(token=item.token)

    async with performing(desk, effect(perform)):
        for _ in range(20):
            await asyncio.sleep(0)
        assert not told.is_set()
        desk.time = 1000.3
        await told.wait()
    assert asyncio.get_running_loop().time() - began < 5.0
    assert list(desk.items) == ["strange"]
