"""What every provider of machines must do, as checks that try to break it.

Each check takes a fresh ``Ground`` and asserts; ``CHECKS`` is all of them. Providers whose machines are processes run
``machines_agent.py`` as their agent, so that what an agent is told and what it leaves behind can be seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from clutch.backends.machines.base import Machines
from clutch.wire.errors import ClutchError, Conflict
from clutch.wire.ids import PoolName
from clutch.wire.machines import Instance, MachineId, Order, launch_token

POOL = PoolName("gpu")
CLUSTER = "suite"
PATIENCE_S = 30.0


class Ground(Protocol):
    """One provider with room for at least two machines. Whoever made it ends every machine on it."""

    async def open(self) -> Machines:
        """One more client of the provider, as another master would have."""
        ...

    def alive(self, machine: MachineId) -> int:
        """How many agents of this machine really run."""
        ...

    def remains(self, machine: MachineId) -> list[str]:
        """Whatever else is left of it: processes of its members, its folder."""
        ...

    def kill(self, machine: MachineId) -> None:
        """It dies by itself, without anybody having asked."""
        ...


Check = Callable[[Ground], Awaitable[None]]


def order(name: str) -> Order:
    machine = MachineId(name)
    return Order(launch_token(machine), machine, POOL)


async def refused(kind: type[ClutchError], call: Awaitable[Any]) -> ClutchError:
    """The error, which must be of this very kind and say cause and object."""
    try:
        await call
    except ClutchError as error:
        assert type(error) is kind, f"expected {kind.__name__}, got {error!r}: {error}"
        assert error.cause and error.object
        return error
    raise AssertionError(f"expected {kind.__name__}, nothing was raised")


async def until(holds: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110  # processes set no event
            await asyncio.sleep(0.02)
    assert holds(), what


async def named(machines: Machines) -> dict[MachineId, Instance]:
    return {instance.machine: instance for instance in await machines.listing()}


# -- launching ----------------------------------------------------------------------------------------------------


async def check_nothing_is_there_at_first(ground: Ground) -> None:
    assert await (await ground.open()).listing() == []


async def check_a_launched_machine_runs_and_is_listed(ground: Ground) -> None:
    machines = await ground.open()
    made = await machines.launch(order("gpu-1-7"))
    assert made.machine == "gpu-1-7" and made.instance
    assert (made.pool, made.cluster, made.running) == (POOL, CLUSTER, True)
    await until(lambda: ground.alive(made.machine) == 1, "its agent runs")
    assert (await named(machines))[made.machine].instance == made.instance


async def check_a_repeated_launch_makes_nothing_new(ground: Ground) -> None:
    machines, other = await ground.open(), await ground.open()
    made = await machines.launch(order("gpu-1-7"))
    again = [await machines.launch(order("gpu-1-7")), await other.launch(order("gpu-1-7"))]
    assert [instance.instance for instance in again] == [made.instance] * 2
    assert list(await named(other)) == ["gpu-1-7"]
    await until(lambda: ground.alive(made.machine) == 1, "one agent")


async def check_masters_that_launch_at_once_make_one_machine(ground: Ground) -> None:
    clients = [await ground.open() for _ in range(4)]
    made = await asyncio.gather(*(client.launch(order("gpu-1-8")) for client in clients))
    assert len({instance.instance for instance in made}) == 1
    await until(lambda: ground.alive(MachineId("gpu-1-8")) == 1, "one agent")
    assert list(await named(clients[0])) == ["gpu-1-8"]


async def check_machines_are_apart(ground: Ground) -> None:
    machines = await ground.open()
    first, second = await asyncio.gather(machines.launch(order("gpu-1-1")), machines.launch(order("gpu-1-2")))
    assert first.instance != second.instance
    await machines.terminate(order("gpu-1-1"))
    assert list(await named(machines)) == ["gpu-1-2"]
    await until(lambda: ground.alive(second.machine) == 1, "the other one lives")


# -- ending -------------------------------------------------------------------------------------------------------


async def check_a_terminated_machine_is_gone_with_all_that_was_on_it(ground: Ground) -> None:
    machines = await ground.open()
    made = await machines.launch(order("gpu-1-3"))
    await until(lambda: ground.alive(made.machine) == 1, "its agent runs")
    await machines.terminate(order("gpu-1-3"))
    assert ground.alive(made.machine) == 0
    assert ground.remains(made.machine) == []
    assert await machines.listing() == []


async def check_terminating_again_or_what_never_was_is_nothing(ground: Ground) -> None:
    machines, other = await ground.open(), await ground.open()
    await machines.launch(order("gpu-1-3"))
    await machines.terminate(order("gpu-1-3"))
    await other.terminate(order("gpu-1-3"))
    await other.terminate(order("gpu-1-99"))
    assert await machines.listing() == []


async def check_a_launch_after_its_termination_is_refused(ground: Ground) -> None:
    """A master that was asleep performs an order that another one has long withdrawn."""
    machines, sleeper = await ground.open(), await ground.open()
    await machines.launch(order("gpu-1-4"))
    await machines.terminate(order("gpu-1-4"))
    await refused(Conflict, sleeper.launch(order("gpu-1-4")))
    await machines.terminate(order("gpu-1-5"))
    await refused(Conflict, sleeper.launch(order("gpu-1-5")))
    assert await machines.listing() == []
    assert ground.alive(MachineId("gpu-1-4")) == ground.alive(MachineId("gpu-1-5")) == 0


async def check_another_master_may_terminate_it(ground: Ground) -> None:
    machines, other = await ground.open(), await ground.open()
    made = await machines.launch(order("gpu-1-6"))
    await other.terminate(order("gpu-1-6"))
    assert ground.alive(made.machine) == 0
    assert await machines.listing() == []


async def check_room_is_free_again(ground: Ground) -> None:
    machines = await ground.open()
    for number in range(3):
        await machines.launch(order(f"gpu-1-{number}"))
        await machines.terminate(order(f"gpu-1-{number}"))
    made = await machines.launch(order("gpu-1-9"))
    assert list(await named(machines)) == [made.machine]


# -- living on ----------------------------------------------------------------------------------------------------


async def check_machines_outlive_their_client(ground: Ground) -> None:
    machines = await ground.open()
    made = await machines.launch(order("gpu-1-2"))
    await machines.close()
    later = await ground.open()
    found = await named(later)
    assert found[made.machine].instance == made.instance and found[made.machine].running
    await later.terminate(order("gpu-1-2"))
    assert ground.alive(made.machine) == 0


async def check_one_that_died_is_not_shown_as_running(ground: Ground) -> None:
    machines = await ground.open()
    made = await machines.launch(order("gpu-1-2"))
    await until(lambda: ground.alive(made.machine) == 1, "its agent runs")
    ground.kill(made.machine)
    await until(lambda: ground.alive(made.machine) == 0, "it is dead")
    found = (await named(machines)).get(made.machine)
    assert found is None or not found.running
    await machines.terminate(order("gpu-1-2"))
    assert await machines.listing() == []
    assert ground.remains(made.machine) == []


CHECKS: tuple[Check, ...] = (
    check_nothing_is_there_at_first,
    check_a_launched_machine_runs_and_is_listed,
    check_a_repeated_launch_makes_nothing_new,
    check_masters_that_launch_at_once_make_one_machine,
    check_machines_are_apart,
    check_a_terminated_machine_is_gone_with_all_that_was_on_it,
    check_terminating_again_or_what_never_was_is_nothing,
    check_a_launch_after_its_termination_is_refused,
    check_another_master_may_terminate_it,
    check_room_is_free_again,
    check_machines_outlive_their_client,
    check_one_that_died_is_not_shown_as_running,
)
