"""Machines that are only entries of a table: for the simulator, for the suite, and for tests of what stands above."""

from __future__ import annotations

from collections.abc import Callable

from clutch.backends.machines.base import terminated
from clutch.wire.ids import PoolName
from clutch.wire.machines import Instance, MachineId, Order


def _nothing(instance: Instance) -> None:
    """What happens to a machine that nobody lends a body to."""


class MemoryProvider:
    """What every client of it shares. ``boot`` and ``halt`` are called when a machine begins and ends."""

    def __init__(
        self, boot: Callable[[Instance], None] = _nothing, halt: Callable[[Instance], None] = _nothing
    ) -> None:
        self.instances: dict[MachineId, Instance] = {}
        self.boot = boot
        self.halt = halt
        self._ended: dict[MachineId, None] = {}
        self._made = 0

    def make(self, order: Order, cluster: str, pool: PoolName) -> Instance:
        if order.machine in self._ended:
            raise terminated(order)
        found = self.instances.get(order.machine)
        if found is None:
            self._made += 1
            found = Instance(order.machine, f"i-{self._made}", pool, cluster, f"memory:{self._made}")
            self.instances[order.machine] = found
            self.boot(found)
        return found

    def end(self, machine: MachineId) -> None:
        """It was asked to go."""
        self._ended[machine] = None
        self.vanish(machine)

    def vanish(self, machine: MachineId) -> None:
        """It is gone, whether anybody asked for it or not."""
        found = self.instances.pop(machine, None)
        if found is not None:
            self.halt(found)


class MemoryMachines:
    """One pool's way to a ``MemoryProvider``."""

    def __init__(self, provider: MemoryProvider, cluster: str, pool: PoolName, lag_s: float = 0.0) -> None:
        self.provider = provider
        self.cluster = cluster
        self.pool = pool
        self.lag_s = lag_s

    async def launch(self, order: Order) -> Instance:
        return self.provider.make(order, self.cluster, self.pool)

    async def terminate(self, order: Order) -> None:
        self.provider.end(order.machine)

    async def listing(self) -> list[Instance]:
        return list(self.provider.instances.values())

    async def close(self) -> None:
        """It holds nothing."""
