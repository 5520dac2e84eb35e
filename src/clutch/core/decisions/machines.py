"""Machines: what a pool's provisioner asks for and gives up, and what follows from what its provider says.

``provision`` runs after the scheduler, where something changed or a grace ran out; it never calls anybody. Each launch
and each termination is a fact here, and from it an outbox item in the same transaction (``core.outbox``).

No more machines than ``nodes_max`` are ever asked for or still being stopped at once, so no more are ever paid for. A
machine is stopped for idleness only while its node holds nothing, and its node is closed by the same decision: nothing
can be placed there while the provider is being called.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

import msgspec

from clutch.core import autoscale as scaling
from clutch.core import machines
from clutch.core import node as nodes
from clutch.core.autoscale import ScalePlan, Standing, autoscale
from clutch.core.decisions import cluster
from clutch.core.machines import Machine
from clutch.core.patience import rest_s
from clutch.core.state import State
from clutch.wire import events as e
from clutch.wire import facts as f
from clutch.wire.ids import NodeId, PoolName
from clutch.wire.machines import Instance, MachineId, StopReason, launch_token, terminate_token
from clutch.wire.outcomes import MachineState, MemberState, NodeState, NodeWish
from clutch.wire.specs import Autoscale

Facts = Iterator[f.Fact]

FLUSH_LOOK_S = 1.0
"""How soon to look again at a machine that is kept only until its last output is in the store."""
NEVER_STOP_BUSY = (StopReason.IDLE, StopReason.OVER_MAX)


def provision(state: State, pools: Iterable[PoolName], now: float, plans: dict[PoolName, ScalePlan]) -> Facts:
    """What the pools' provisioners want now. ``plans`` receives each pool's plan: it says when to look again."""
    for pool in pools:
        spec = state.pools[pool].autoscale
        if spec is None:
            plans.pop(pool, None)
            continue
        plans[pool] = yield from _provision(state, pool, spec, now)


def _provision(state: State, pool: PoolName, spec: Autoscale, now: float) -> Generator[f.Fact, None, ScalePlan]:
    own = [machine for machine in state.machines.values() if machine.pool == pool]
    flushing = _flushing(state, own)
    for machine in own:
        idle = _holds_nothing(state, machine, flushing)
        if machine.state is MachineState.SERVING and (machine.idle_since is not None) != idle:
            yield f.MachineIdle(machine.machine, idle)
    listed = [_as_listed(state, state.machines[m.machine]) for m in own if m.state is not MachineState.STOPPING]
    made = autoscale(state.ledgers[pool], listed, 0, now)
    acted = False
    for stop in made.terminate:
        machine = state.machines[MachineId(stop.machine)]
        if stop.reason in NEVER_STOP_BUSY and machine.state is MachineState.SERVING and machine.idle_since is None:
            continue
        yield from ask_stop(state, machine, stop.reason)
        acted = True
    again = [made.look_again_at]
    rest_until = state.setbacks[pool].rest_until if pool in state.setbacks else now
    if made.launch and rest_until > now:
        again.append(rest_until)
    else:
        for _ in range(min(made.launch, spec.nodes_max - len(own))):
            yield _ask(state, pool)
            acted = True
    if acted:
        again.append(now)  # look at once at what is so afterwards
    if flushing:
        again.append(now + FLUSH_LOOK_S)
    return msgspec.structs.replace(made, look_again_at=min((at for at in again if at is not None), default=None))


def _ask(state: State, pool: PoolName) -> f.MachineAsked:
    """One more machine, named for the fact that asks for it: no restored backup can give the name a second time."""
    machine = MachineId(f"{pool}-{state.generation}-{state.index + 1}")
    return f.MachineAsked(machine, pool, launch_token(machine))


def ask_stop(state: State, machine: Machine, reason: StopReason) -> Facts:
    """Close its node, then have it terminated."""
    node = state.nodes.get(NodeId(machine.machine))
    if node is not None and node.wish is not NodeWish.DRAIN:
        yield f.NodeWished(node.node, NodeWish.DRAIN)
    yield f.MachineStopAsked(machine.machine, reason, terminate_token(machine.machine))


def _as_listed(state: State, machine: Machine) -> scaling.Machine:
    """The machine as ``autoscale`` sees it."""
    node = state.nodes.get(NodeId(machine.machine))
    if machine.state in machines.AWAITED or node is None:
        return scaling.Machine(machine.machine, Standing.STARTING, machine.since)
    in_touch = node.state in nodes.HEARD or bool(node.strays)
    standing = Standing.RUNNING if in_touch else Standing.DISCONNECTED
    since = machine.since if in_touch else node.since
    return scaling.Machine(machine.machine, standing, since, node.node, machine.idle_since)


def _holds_nothing(state: State, machine: Machine, flushing: dict[NodeId, None]) -> bool:
    """Nothing is placed there, nothing runs there that should not, and nothing there is still to be shipped."""
    node = state.nodes.get(NodeId(machine.machine))
    if node is None or node.strays or node.node in flushing:
        return False
    return not state.members_on.get(node.node) and not state.leases_on.get(node.node)


def _flushing(state: State, own: list[Machine]) -> dict[NodeId, None]:
    """Nodes of these machines that hold nothing but the last output of members that have exited."""
    empty = {
        NodeId(m.machine): None
        for m in own
        if m.state is MachineState.SERVING and not state.members_on.get(NodeId(m.machine))
    }
    if not empty:
        return {}
    found = (m.placement for m in state.members.values() if m.state is MemberState.EXITED and not m.flushed)
    return {placement.node: None for placement in found if placement is not None and placement.node in empty}


# -- what providers say -------------------------------------------------------------------------------------------


def machine_up(state: State, event: e.MachineUp, now: float) -> Facts:
    machine = state.machines.get(event.machine)
    if machine is not None and machine.launch_pending:
        yield f.MachineLaunched(event.machine, event.instance, event.address)


def launch_failed(state: State, event: e.LaunchFailed, now: float) -> Facts:
    """Nobody tries any more. If its agent speaks all the same, the machine is there, whatever the call said."""
    machine = state.machines.get(event.machine)
    if machine is None or not machine.launch_pending:
        return
    if machine.state is MachineState.SERVING:
        yield f.MachineLaunched(event.machine)
        return
    before = state.setbacks.get(machine.pool)
    count = (before.count if before else 0) + 1
    token = terminate_token(event.machine)
    yield f.MachineFailed(event.machine, event.detail, token, count, now + rest_s(count))


def machine_down(state: State, event: e.MachineDown, now: float) -> Facts:
    machine = state.machines.get(event.machine)
    if machine is not None and machine.state is MachineState.STOPPING:
        yield from _gone(state, machine, "", now)


def machines_listed(state: State, event: e.MachinesListed, now: float) -> Facts:
    """Compare what the provider has with what we believe. Only what the listing can know counts: a machine launched
    or gone after it was taken says nothing."""
    seen = {instance.machine: instance for instance in event.instances}
    for machine in [m for m in state.machines.values() if m.pool == event.pool]:
        if machine.launched_at is None or machine.state is MachineState.STOPPING:
            continue
        if machine.launched_index > event.index or now - machine.launched_at < event.lag_s:
            continue
        found = seen.get(machine.machine)
        if found is None:
            yield from _gone(state, machine, "its provider no longer has it", now)
        elif not found.running and _never_speaks(state, machine):
            yield from ask_stop(state, machine, StopReason.STOPPED)
    for name, instance in seen.items():
        known = name in state.machines or state.gone_machines.get(name, -1) > event.index
        if not known:
            yield from _stray(state, event.pool, instance)


def _never_speaks(state: State, machine: Machine) -> bool:
    """Whether nobody hears of it any more: it is awaited, or its node is lost. Off as well, it will not return, so that
    nothing there is worth waiting for."""
    node = state.nodes.get(NodeId(machine.machine))
    return machine.state in machines.AWAITED or (node is not None and node.state is NodeState.LOST)


def _stray(state: State, pool: PoolName, instance: Instance) -> Facts:
    """Nobody here asked for it, or not any more. If its agent is a node with work (a backup was restored that did not
    know it yet), nothing new comes there, and it goes when it is empty."""
    name = instance.machine
    node = state.nodes.get(NodeId(name))
    if node is not None and node.wish is not NodeWish.DRAIN:
        yield f.NodeWished(node.node, NodeWish.DRAIN)
    if node is None or not (state.members_on.get(node.node) or state.leases_on.get(node.node)):
        yield f.MachineStray(name, pool, instance.instance, terminate_token(name))


def _gone(state: State, machine: Machine, detail: str, now: float) -> Facts:
    """The machine is no more: nothing on it is waited for, and its node is forgotten."""
    yield f.MachineGone(machine.machine, detail)
    node = state.nodes.get(NodeId(machine.machine))
    if node is not None and node.pool == machine.pool:
        yield from cluster.give_up(state, node, f"machine {machine.machine} is gone", now)
