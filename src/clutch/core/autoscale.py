"""How many machines a pool should have: waiting work, idleness and bounds in, a ``ScalePlan`` out.

The number of new machines is found by placing the waiting requests on imagined empty machines with the very fitting
code the policies use, so a machine is launched only for work that will be placed on it. Machines that are starting
count as there. Nothing busy is ever terminated. A provider's listing may lag behind: machines asked for and not listed
yet are passed in as ``launching`` and count as well, so that looking twice does not launch twice.

Pure: it calls no provider and remembers nothing; ``decisions.machines`` turns the plan into facts, and
``core.outbox`` those into effects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from clutch.core.scheduling.demand import Demand
from clutch.core.scheduling.fitting import Rules, fit
from clutch.core.scheduling.headroom import Headroom
from clutch.core.scheduling.ledger import Ledger, blank_room
from clutch.core.scheduling.limits import Limits
from clutch.core.scheduling.room_index import Desk
from clutch.core.scheduling.waiting_line import turn_of
from clutch.wire.ids import NodeId
from clutch.wire.machines import StopReason
from clutch.wire.schedule import Placement
from clutch.wire.specs import Autoscale


class Standing(StrEnum):
    """How a machine stands towards its pool."""

    STARTING = "starting"  # the provider has it, its agent has not reported
    RUNNING = "running"  # its agent is a node of the pool
    DISCONNECTED = "disconnected"  # its agent was a node and is silent
    STOPPED = "stopped"  # the provider says it is off


class Machine(msgspec.Struct, frozen=True):
    """A machine as the provider lists it, with the node its agent became."""

    machine: str
    state: Standing
    since: float
    """When it entered this state."""
    node: NodeId | None = None
    idle_since: float | None = None
    """Since when its node has held nothing; None: it holds something."""


class Stop(msgspec.Struct, frozen=True):
    machine: str
    reason: StopReason


class ScalePlan(msgspec.Struct, frozen=True):
    launch: int = 0
    terminate: tuple[Stop, ...] = ()
    look_again_at: float | None = None
    """When a grace or idleness runs out next; None: not before the next event."""


def autoscale(ledger: Ledger, machines: Iterable[Machine], launching: int, now: float) -> ScalePlan:
    """What to launch and terminate now. ``launching``: machines asked for that the provider does not list yet."""
    spec = ledger.pool.autoscale
    if spec is None:
        return ScalePlan()
    machines = sorted(machines, key=lambda machine: machine.machine)
    broken = _broken(machines, spec, now)
    gone = {stop.machine for stop in broken}
    kept = [machine for machine in machines if machine.machine not in gone]
    starting = launching + sum(1 for machine in kept if machine.state is Standing.STARTING)
    present = len(kept) + launching
    room = max(spec.nodes_max - present, 0)
    need = nodes_needed(ledger, starting, room)
    launch = min(max(spec.nodes_min - present, need.new, 0), room)
    stops = [*broken]
    if not launch:
        free = [machine for machine in kept if machine.node is None or machine.node not in need.used]
        stops.extend(_over_max(free, present - spec.nodes_max))
        trimmed = {stop.machine for stop in stops}
        left = sum(1 for machine in kept if machine.machine not in trimmed) + launching
        idle = [machine for machine in free if machine.machine not in trimmed]
        stops.extend(_idle(idle, spec, now, left - spec.nodes_min))
    return ScalePlan(launch, tuple(stops), _next_look(kept, spec, now))


class Needed(NamedTuple):
    """What the waiting requests need: machines beyond those that are starting, and which present nodes."""

    new: int
    used: Mapping[NodeId, None]


def nodes_needed(ledger: Ledger, starting: int, most: int) -> Needed:
    """Really place the waiting requests, in order, on what is free, what is starting, and at most so many new nodes."""
    spec = ledger.pool.autoscale
    if spec is None or not ledger.waiting:
        return Needed(0, {})
    growth = _Growth(ledger, spec, starting, most)
    limits = Limits(ledger)
    used: dict[NodeId, None] = {}
    given_up: dict[int, None] = {}
    for request in sorted(ledger.waiting.values(), key=turn_of):
        line = ledger.lines.line_of(request.request)
        if line.number in given_up or limits.refuse(request, line.demand.slots) is not None:
            continue
        placements = growth.place(line.demand)
        if placements is None:
            given_up[line.number] = None
            continue
        limits.take(request, line.demand.slots)
        used.update(dict.fromkeys(placement.node for placement in placements))
    return Needed(growth.added - starting, used)


class _Growth:
    """The pool with imagined machines added as they are needed."""

    def __init__(self, ledger: Ledger, spec: Autoscale, starting: int, most: int) -> None:
        self.spec = spec
        self.max_subscription = ledger.pool.max_subscription
        self.rules = Rules(ledger.pool.fit)
        self.headroom = Headroom(ledger)
        self.index = ledger.index.fork()
        for holding in ledger.evictable.leaving.values():
            self.index.give(holding.placements)
        self.added = 0
        self.most = starting + most
        for _ in range(starting):
            self._add()

    def place(self, demand: Demand) -> tuple[Placement, ...] | None:
        """Placements for a demand, on as few new machines as it needs; None, and none added, if none would help."""
        before = self.added
        while True:
            placements = fit(self.index, demand, self.rules) if self.headroom.allows(demand) else None
            if placements is not None:
                self.index.take(placements)
                self.headroom.take(demand)
                return placements
            if self.added == self.most or demand.only is not None:
                break
            self._add()
        while self.added > before:
            self.added -= 1
            self.index.drop(blank_room(self.spec, self.added).node)
            self.headroom.add(-self.spec.slots_per_node)
        return None

    def _add(self) -> None:
        self.index.put(Desk(blank_room(self.spec, self.added), self.max_subscription))
        self.headroom.add(self.spec.slots_per_node)
        self.added += 1


def _broken(machines: list[Machine], spec: Autoscale, now: float) -> list[Stop]:
    """Machines that are no use: off, never reported, silent for too long. A silent one may hold work: it is lost."""
    found = []
    for machine in machines:
        age = now - machine.since
        if machine.state is Standing.STOPPED:
            found.append(Stop(machine.machine, StopReason.STOPPED))
        elif machine.state is Standing.STARTING and age >= spec.starting_s:
            found.append(Stop(machine.machine, StopReason.NEVER_CAME))
        elif machine.state is Standing.DISCONNECTED and age >= spec.disconnected_s and machine.idle_since is not None:
            found.append(Stop(machine.machine, StopReason.DISCONNECTED))
    return found


def _over_max(machines: list[Machine], excess: int) -> list[Stop]:
    """Too many: those still starting first (newest first), then idle ones (longest idle first). Never a busy one."""
    if excess <= 0:
        return []
    starting = sorted((m for m in machines if m.state is Standing.STARTING), key=lambda m: (-m.since, m.machine))
    idle = _idle_ones(machines)
    return [Stop(machine.machine, StopReason.OVER_MAX) for machine in (starting + idle)[:excess]]


def _idle(machines: list[Machine], spec: Autoscale, now: float, spare: int) -> list[Stop]:
    ripe = [m for m in _idle_ones(machines) if m.idle_since is not None and now - m.idle_since >= spec.idle_s]
    return [Stop(machine.machine, StopReason.IDLE) for machine in ripe[: max(spare, 0)]]


def _idle_ones(machines: list[Machine]) -> list[Machine]:
    idle = [m for m in machines if m.state is Standing.RUNNING and m.idle_since is not None]
    return sorted(idle, key=lambda machine: (machine.idle_since, machine.machine))


def _next_look(machines: list[Machine], spec: Autoscale, now: float) -> float | None:
    moments = []
    for machine in machines:
        if machine.state is Standing.STARTING:
            moments.append(machine.since + spec.starting_s)
        elif machine.state is Standing.DISCONNECTED:
            moments.append(machine.since + spec.disconnected_s)
        elif machine.idle_since is not None:
            moments.append(machine.idle_since + spec.idle_s)
    return min((moment for moment in moments if moment > now), default=None)
