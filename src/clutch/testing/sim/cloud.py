"""The simulator's provider of machines: the memory provider with bodies, delays, a listing that lags, and faults.

A launch may fail before or after it took effect, take long, bring up a machine whose agent never starts; a machine may
vanish. Whatever a master calls here happens in the world even if that master is killed while it waits for the answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from clutch.backends.machines.memory import MemoryMachines, MemoryProvider
from clutch.testing.sim.machine import Machine
from clutch.testing.sim.plan import Fault, FaultKind
from clutch.testing.sim.users import POOL
from clutch.wire.errors import Unavailable
from clutch.wire.ids import NodeId
from clutch.wire.machines import Instance, MachineId, Order
from clutch.wire.resources import CUDA, Capacity, Slot

if TYPE_CHECKING:
    from clutch.testing.sim.cluster import Cluster

CLUSTER = "sim"
LAG_S = 3.0
SKEW_S = 4.0
"""So far apart the clocks of two masters may be; whoever compares times of both must bear it."""
MILLICPUS, MEMORY_BYTES = 16_000, 2**36


class Cloud:
    """What exists really."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.chance = cluster.world.chance("cloud")
        self.provider = MemoryProvider(self._boot, self._halt)
        self.ever: dict[MachineId, None] = {}
        self.mute_next = 0
        self.fails_until = self.slow_until = 0.0
        self._born: dict[MachineId, float] = {}
        self._died: dict[MachineId, tuple[float, Instance]] = {}

    def _boot(self, instance: Instance) -> None:
        """The provider has made one; its agent starts when it has booted."""
        self.ever[instance.machine] = None
        self._born[instance.machine] = self.world.now
        self.cluster.machine_promises.launched(instance)
        slots = tuple(Slot(index, CUDA) for index in range(self.cluster.plan.slots))
        machine = Machine(self.cluster, NodeId(instance.machine), POOL, Capacity(slots, MILLICPUS, MEMORY_BYTES))
        if self.mute_next:
            self.mute_next -= 1
            machine.mute = True
        self.cluster.machines[machine.node] = machine
        self.world.after(self.chance.uniform(0.5, 4.0), machine.start_agent)

    def _halt(self, instance: Instance) -> None:
        self._died[instance.machine] = (self.world.now, instance)
        machine = self.cluster.machines.pop(NodeId(instance.machine))
        machine.scrap()

    def listed(self) -> list[Instance]:
        """As the provider shows it: new machines late, and machines that are gone for a while yet."""
        now = self.world.now
        shown = [i for i in self.provider.instances.values() if now - self._born[i.machine] >= self._lag()]
        ghosts = [instance for at, instance in self._died.values() if now - at < self._lag()]
        return shown + ghosts

    def _lag(self) -> float:
        return self.chance.uniform(0.0, LAG_S)

    def strike(self, fault: Fault) -> bool:
        """Whether the fault could happen."""
        until = self.world.now + fault.lasts_s
        match fault.kind:
            case FaultKind.LAUNCH_FAILS:
                self.fails_until = max(self.fails_until, until)
            case FaultKind.LAUNCH_SLOW:
                self.slow_until = max(self.slow_until, until)
            case FaultKind.NEVER_REPORTS:
                self.mute_next += 1
            case FaultKind.VANISHES:
                alive = list(self.provider.instances)
                if not alive:
                    return False
                self.provider.vanish(self.chance.choice(alive))
        return True

    def mend(self) -> None:
        self.fails_until = self.slow_until = 0.0
        self.mute_next = 0


class SimMachines(MemoryMachines):
    """One master's way to the cloud."""

    def __init__(self, cloud: Cloud) -> None:
        super().__init__(cloud.provider, CLUSTER, POOL, LAG_S + SKEW_S)
        self.cloud = cloud

    async def launch(self, order: Order) -> Instance:
        cloud = self.cloud
        slow_s = cloud.chance.uniform(5.0, 30.0) if cloud.world.now < cloud.slow_until else 0.0
        await asyncio.sleep(slow_s + cloud.chance.uniform(0.05, 1.0))
        failing = cloud.world.now < cloud.fails_until
        if failing and cloud.chance.random() < 0.5:
            raise _broken("it took no order")
        instance = await super().launch(order)
        await asyncio.sleep(cloud.chance.uniform(0.01, 0.5))
        if failing:
            raise _broken("its answer was lost")
        return instance

    async def terminate(self, order: Order) -> None:
        cloud = self.cloud
        await asyncio.sleep(cloud.chance.uniform(0.05, 1.0))
        if cloud.world.now < cloud.fails_until:
            raise _broken("it took no order")
        cloud.cluster.machine_promises.terminating(order.machine)
        await super().terminate(order)
        await asyncio.sleep(cloud.chance.uniform(0.01, 0.5))

    async def listing(self) -> list[Instance]:
        await asyncio.sleep(self.cloud.chance.uniform(0.05, 0.5))
        return self.cloud.listed()


def _broken(cause: str) -> Unavailable:
    return Unavailable(cause, object="the cloud", next_step="Wait.")
