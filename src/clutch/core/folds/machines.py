"""How machines move on. A node's first report and its removal move the machine of its name, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from clutch.core import machines
from clutch.core.machines import Machine, Setbacks
from clutch.core.recorded import Recorded
from clutch.core.state import MACHINES_REMEMBERED, State
from clutch.wire import facts as f
from clutch.wire.ids import NodeId
from clutch.wire.machines import MachineId, StopReason
from clutch.wire.outcomes import MachineState

replace = msgspec.structs.replace


def _put(state: State, machine: Machine) -> None:
    state.machines[machine.machine] = machine
    state.touched.machines[machine.machine] = None
    state.touched.pools[machine.pool] = None


def _asked(state: State, fact: f.MachineAsked, recorded: Recorded) -> None:
    at = recorded.at
    _put(
        state,
        Machine(machine=fact.machine, pool=fact.pool, state=MachineState.ASKED, asked_at=at, since=at),
    )


def _launched(state: State, fact: f.MachineLaunched, recorded: Recorded) -> None:
    machine = state.machines[fact.machine]
    if machine.state is MachineState.ASKED:
        machine = machines.moved(machine, MachineState.LAUNCHED, recorded.at)
    said = replace(machine, instance=fact.instance, address=fact.address)
    _put(state, replace(said, launched_at=recorded.at, launched_index=recorded.index))
    state.setbacks.pop(machine.pool, None)


def _failed(state: State, fact: f.MachineFailed, recorded: Recorded) -> None:
    machine = machines.moved(state.machines[fact.machine], MachineState.STOPPING, recorded.at)
    _put(state, replace(machine, reason=StopReason.LAUNCH_FAILED, detail=fact.detail))
    state.setbacks[machine.pool] = Setbacks(fact.setbacks, fact.rest_until)


def _idle(state: State, fact: f.MachineIdle, recorded: Recorded) -> None:
    _put(state, replace(state.machines[fact.machine], idle_since=recorded.at if fact.idle else None))


def _stop_asked(state: State, fact: f.MachineStopAsked, recorded: Recorded) -> None:
    machine = machines.moved(state.machines[fact.machine], MachineState.STOPPING, recorded.at)
    _put(state, replace(machine, reason=fact.reason))


def _stray(state: State, fact: f.MachineStray, recorded: Recorded) -> None:
    stray = Machine(
        machine=fact.machine,
        pool=fact.pool,
        state=MachineState.STOPPING,
        asked_at=recorded.at,
        since=recorded.at,
        instance=fact.instance,
        reason=StopReason.STRAY,
    )
    state.gone_machines.pop(fact.machine, None)
    _put(state, stray)


def _gone(state: State, fact: f.MachineGone, recorded: Recorded) -> None:
    machine = machines.moved(state.machines.pop(fact.machine), MachineState.GONE, recorded.at)
    state.touched.machines.pop(fact.machine, None)
    state.touched.ended_machines[fact.machine] = replace(machine, idle_since=None, detail=fact.detail or machine.detail)
    state.touched.pools[machine.pool] = None
    state.gone_machines[fact.machine] = recorded.index
    if len(state.gone_machines) > MACHINES_REMEMBERED:
        del state.gone_machines[next(iter(state.gone_machines))]


def node_joined(state: State, node: NodeId, recorded: Recorded) -> None:
    """The agent of an awaited machine has reported."""
    machine = state.machines.get(MachineId(node))
    if machine is not None and machine.state in machines.AWAITED:
        _put(state, replace(machines.moved(machine, MachineState.SERVING, recorded.at), idle_since=recorded.at))


def node_left(state: State, node: NodeId, recorded: Recorded) -> None:
    """Its operator removed the node of a serving machine: its agent is awaited again."""
    machine = state.machines.get(MachineId(node))
    if machine is not None and machine.state is MachineState.SERVING:
        awaited = MachineState.ASKED if machine.launch_pending else MachineState.LAUNCHED
        _put(state, replace(machines.moved(machine, awaited, recorded.at), idle_since=None))


HANDLERS: dict[type[f.Fact], Callable[[State, Any, Recorded], None]] = {
    f.MachineAsked: _asked,
    f.MachineLaunched: _launched,
    f.MachineFailed: _failed,
    f.MachineIdle: _idle,
    f.MachineStopAsked: _stop_asked,
    f.MachineStray: _stray,
    f.MachineGone: _gone,
}
