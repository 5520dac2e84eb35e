"""Pools' machines made real: launches and terminations performed, and what providers really have compared regularly.

What to launch and to stop is decided in the core; this only calls providers and tells the loop what they answered. A
pool whose machines nobody configured fails its launches with a reason that says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

import msgspec

from clutch.backends.machines.base import Machines
from clutch.core.machines import Machine
from clutch.core.node import HEARD
from clutch.core.state import State
from clutch.master.effects import Effect
from clutch.wire import events as e
from clutch.wire.errors import BrokenInvariant, ClutchError, NotFound, TimedOut
from clutch.wire.ids import NodeId, PoolName
from clutch.wire.journal import OutboxItem
from clutch.wire.machines import LAUNCH, TERMINATE, Order
from clutch.wire.outcomes import MachineState

_decoder = msgspec.msgpack.Decoder(Order)


class ProvisionerSettings(msgspec.Struct, frozen=True):
    cluster: str
    """Whose machines these are; everything a provider has under another name is left alone."""
    look_s: float = 30.0
    """How often a provider is asked what it really has."""
    look_soon_s: float = 5.0
    """How often while a machine's node is silent."""
    list_s: float = 60.0
    launch_s: float = 120.0
    """One launch may take so long; tried again until ``give_up_s`` have passed."""
    give_up_s: float = 300.0
    terminate_s: float = 120.0


class Told(Protocol):
    """What the provisioner needs of a master's loop."""

    state: State
    serving: asyncio.Event

    def tell(self, event: e.Event) -> None: ...


class Provisioner:
    """Every pool's provider, and the two effects that call them."""

    def __init__(self, loop: Told, pools: Mapping[PoolName, Machines], settings: ProvisionerSettings) -> None:
        self.loop = loop
        self.pools = pools
        self.settings = settings
        self.errors: dict[PoolName, ClutchError] = {}
        """Why a provider could not be asked the last time; for those who ask."""

    def effects(self) -> dict[str, Effect]:
        """What the performer must know to perform machines' items."""
        settings = self.settings
        return {
            LAUNCH: Effect(
                perform=self.launch,
                give_up=_gave_up,
                give_up_s=settings.give_up_s,
                attempt_s=settings.launch_s,
                subject=_machine,
            ),
            TERMINATE: Effect(perform=self.terminate, attempt_s=settings.terminate_s, subject=_machine),
        }

    async def launch(self, item: OutboxItem) -> e.Event:
        order = _decoder.decode(item.payload)
        instance = await self._machines(order.pool).launch(order)
        return e.MachineUp(
            cause=f"provider:{order.pool}",
            machine=order.machine,
            instance=instance.instance,
            address=instance.address,
        )

    async def terminate(self, item: OutboxItem) -> e.Event:
        order = _decoder.decode(item.payload)
        await self._machines(order.pool).terminate(order)
        return e.MachineDown(cause=f"provider:{order.pool}", machine=order.machine)

    def _machines(self, pool: PoolName) -> Machines:
        found = self.pools.get(pool)
        if found is None:
            raise NotFound(
                "nobody said where its machines come from",
                object=f"pool {pool}",
                next_step=f"Give the master a [pools.{pool}.machines], or remove the pool's autoscale.",
            )
        return found

    async def run(self) -> None:
        """Ask every provider again and again what it has, and tell the loop. Cancel it with the loop."""
        await self.loop.serving.wait()
        while True:
            for pool, machines in self.pools.items():
                await self.look(pool, machines)
            await self._pause()

    async def _pause(self) -> None:
        """Until the next look: sooner while a machine's node is silent, since its provider may know why."""
        left_s = self.settings.look_s
        while left_s > 0.0:
            step_s = min(self.settings.look_soon_s, left_s)
            await asyncio.sleep(step_s)
            left_s -= step_s
            if any(_is_silent(self.loop.state, machine) for machine in self.loop.state.machines.values()):
                return

    async def look(self, pool: PoolName, machines: Machines) -> None:
        """Ask one provider once. The index is taken first: what is decided meanwhile, the listing cannot know."""
        index = self.loop.state.index
        try:
            async with asyncio.timeout(self.settings.list_s):
                found = await machines.listing()
        except TimeoutError:
            self.errors[pool] = TimedOut(f"no answer within {self.settings.list_s:g} s", object=f"machines of {pool}")
            return
        except ClutchError as error:
            self.errors[pool] = error
            return
        except Exception as escaped:  # a provider that breaks must not take the master with it
            self.errors[pool] = BrokenInvariant(f"{type(escaped).__name__}: {escaped}", object=f"machines of {pool}")
            return
        self.errors.pop(pool, None)
        ours = tuple(i for i in found if i.cluster == self.settings.cluster and i.pool == pool)
        cause = f"provider:{pool}"
        self.loop.tell(e.MachinesListed(cause=cause, pool=pool, instances=ours, index=index, lag_s=machines.lag_s))

    async def aclose(self) -> None:
        """Release what this process holds of every provider; the machines stay."""
        for machines in self.pools.values():
            await machines.close()


def _is_silent(state: State, machine: Machine) -> bool:
    node = state.nodes.get(NodeId(machine.machine))
    return machine.state is MachineState.SERVING and node is not None and node.state not in HEARD


def _machine(item: OutboxItem) -> str:
    return f"machine:{_decoder.decode(item.payload).machine}"


def _gave_up(item: OutboxItem, error: ClutchError) -> e.Event:
    order = _decoder.decode(item.payload)
    return e.LaunchFailed(cause=f"provider:{order.pool}", machine=order.machine, detail=str(error))
