"""A real loop over a memory journal, a real performer, and a provider in memory: nothing between them is a stand-in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

import msgspec
import pytest

from clutch.backends.journal.memory import MemoryJournal, MemoryStore
from clutch.backends.machines.memory import MemoryMachines, MemoryProvider
from clutch.master.effects import Performer, PerformerSettings
from clutch.master.loop import Loop, LoopSettings
from clutch.master.provisioner import Provisioner, ProvisionerSettings
from clutch.wire import events as e
from clutch.wire.errors import Unavailable
from clutch.wire.ids import NodeId, PoolName
from clutch.wire.machines import Instance, MachineId, Order, StopReason
from clutch.wire.messages import Hello, Refusal, Wanted
from clutch.wire.outcomes import MachineState
from clutch.wire.specs import Autoscale, PoolSpec

POOL = PoolName("p")
SCALE = Autoscale(nodes_min=2, nodes_max=3, starting_s=600.0)


class Clock:
    def now(self) -> float:
        return asyncio.get_running_loop().time()


class Silence:
    def say(self, node: NodeId, message: Hello | Wanted | Refusal) -> None:
        """No agent is there."""


class Moody(MemoryMachines):
    """Does what it is told, and sometimes says that it did not; or fails before it does anything."""

    def __init__(self, provider: MemoryProvider, answers_lost: int = 0, refuses: int = 0) -> None:
        super().__init__(provider, "c", POOL)
        self.answers_lost, self.refuses = answers_lost, refuses
        self.calls = 0

    async def launch(self, order: Order) -> Instance:
        self.calls += 1
        if self.refuses:
            self.refuses -= 1
            raise Unavailable("it takes no orders", object="provider")
        made = await super().launch(order)
        if self.answers_lost:
            self.answers_lost -= 1
            raise Unavailable("the answer was lost", object="provider")
        return made


class House:
    """What outlives a master."""

    def __init__(self) -> None:
        self.store = MemoryStore(lambda: asyncio.get_running_loop().time())
        self.provider = MemoryProvider()
        self.masters = 0

    @asynccontextmanager
    async def master(self, machines: MemoryMachines | None, **more: float) -> AsyncIterator[Loop]:
        self.masters += 1
        journal = MemoryJournal(self.store)
        settings = LoopSettings(holder="m", beat_s=0.05)
        loop = Loop(journal, Clock(), Silence(), {}, Random(0), settings)
        pools = {POOL: machines} if machines is not None else {}
        provisioner = Provisioner(loop, pools, ProvisionerSettings("c", **{"look_s": 0.05, **more}))
        quick = PerformerSettings(retry_s=0.01, retry_max_s=0.05, look_s=0.1)
        performer = Performer(loop, journal, provisioner.effects(), quick)
        tasks = [asyncio.create_task(part.run()) for part in (loop, performer, provisioner)]
        try:
            async with asyncio.timeout(20.0):
                await loop.serving.wait()
                yield loop
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def put_pool(loop: Loop, scale: Autoscale = SCALE) -> None:
    await loop.ask(e.PutPool(cause="admin", pool=PoolSpec(POOL, autoscale=scale)))


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  # many things may bring it about
        await asyncio.sleep(0.005)


def states(loop: Loop) -> list[MachineState]:
    return [machine.state for machine in loop.state.machines.values()]


async def test_machines_are_launched_and_the_outbox_is_empty_again() -> None:
    house = House()
    async with house.master(MemoryMachines(house.provider, "c", POOL)) as loop:
        await put_pool(loop)
        await until(lambda: states(loop) == [MachineState.LAUNCHED] * 2 and not house.store.outbox())
        assert sorted(house.provider.instances) == sorted(loop.state.machines)


async def test_an_answer_that_is_lost_makes_no_second_machine() -> None:
    house = House()
    moody = Moody(house.provider, answers_lost=5)
    async with house.master(moody) as loop:
        await put_pool(loop)
        await until(lambda: states(loop) == [MachineState.LAUNCHED] * 2)
        assert len(house.provider.instances) == 2 and moody.calls == 7


async def test_a_master_that_dies_between_doing_and_telling_does_it_again_harmlessly() -> None:
    house = House()
    done = asyncio.Event()

    class Hangs(MemoryMachines):
        async def launch(self, order: Order) -> Instance:
            await super().launch(order)
            done.set()
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

    async with house.master(Hangs(house.provider, "c", POOL)) as loop:
        await put_pool(loop, msgspec.structs.replace(SCALE, nodes_min=1))
        await done.wait()
    assert len(house.store.outbox()) == 1, "the item waits for the next master"
    (made,) = house.provider.instances.values()
    async with house.master(MemoryMachines(house.provider, "c", POOL)) as loop:
        await until(lambda: states(loop) == [MachineState.LAUNCHED])
        assert list(house.provider.instances.values()) == [made]
        assert not house.store.outbox()


async def test_a_launch_that_fails_too_long_is_given_up_and_cleared_away() -> None:
    house = House()
    async with house.master(Moody(house.provider, refuses=10**6), give_up_s=0.1) as loop:
        await put_pool(loop, msgspec.structs.replace(SCALE, nodes_min=1))
        await until(lambda: POOL in loop.state.setbacks and loop.state.setbacks[POOL].count >= 2)
        assert house.provider.instances == {}


async def test_a_pool_whose_machines_nobody_configured_says_so() -> None:
    house = House()
    async with house.master(None) as loop:
        await put_pool(loop, msgspec.structs.replace(SCALE, nodes_min=1))
        await until(lambda: bool(loop.state.machines))
        await until(lambda: any(m.reason is StopReason.LAUNCH_FAILED for m in loop.state.machines.values()))
        machine = next(m for m in loop.state.machines.values() if m.reason is StopReason.LAUNCH_FAILED)
        assert "[pools.p.machines]" in machine.detail


@pytest.mark.parametrize("cluster", ["c", "somebody-else"])
async def test_a_stray_goes_and_what_is_somebody_elses_stays(cluster: str) -> None:
    house = House()
    stray = Order("launch:p-1-999", MachineId("p-1-999"), POOL)
    await MemoryMachines(house.provider, cluster, POOL).launch(stray)
    async with house.master(MemoryMachines(house.provider, "c", POOL)) as loop:
        await put_pool(loop)
        await until(lambda: states(loop) == [MachineState.LAUNCHED] * 2)
        if cluster == "c":
            await until(lambda: "p-1-999" not in house.provider.instances)
        await until(lambda: not house.store.outbox())
    assert ("p-1-999" in house.provider.instances) == (cluster != "c")
    assert len(house.provider.instances) == (2 if cluster == "c" else 3)


async def test_one_that_vanished_is_replaced() -> None:
    house = House()
    async with house.master(MemoryMachines(house.provider, "c", POOL)) as loop:
        await put_pool(loop)
        await until(lambda: states(loop) == [MachineState.LAUNCHED] * 2)
        lost = next(iter(house.provider.instances))
        house.provider.vanish(lost)
        await until(lambda: lost not in loop.state.machines and states(loop) == [MachineState.LAUNCHED] * 2)
        assert sorted(house.provider.instances) == sorted(loop.state.machines)


async def test_a_provider_that_cannot_be_asked_proves_nothing() -> None:
    house = House()

    class Dumb(MemoryMachines):
        async def listing(self) -> list[Instance]:
            raise Unavailable("no answer", object="provider")

    async with house.master(Dumb(house.provider, "c", POOL)) as loop:
        await put_pool(loop)
        await until(lambda: states(loop) == [MachineState.LAUNCHED] * 2)
        index = loop.state.index
        await asyncio.sleep(0.3)  # several looks
        assert loop.state.index == index
