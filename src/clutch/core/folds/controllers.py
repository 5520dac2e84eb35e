"""How workloads move on: their own notes, folded by their own controllers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from clutch.core.deadlines import Due
from clutch.core.recorded import Recorded
from clutch.core.state import State, Workload
from clutch.wire import facts as f

replace = msgspec.structs.replace


def _controller_opened(state: State, fact: f.ControllerOpened, recorded: Recorded) -> None:
    own = state.controllers[fact.kind].open(fact.controller, fact.spec)
    state.workloads[fact.controller] = Workload(fact.controller, fact.kind, own)


def _controller_noted(state: State, fact: f.ControllerNoted, recorded: Recorded) -> None:
    workload = state.workloads[fact.controller]
    own = state.controllers[workload.kind].apply(workload.own, fact.note)
    state.workloads[fact.controller] = replace(workload, own=own)
    state.touched.notes.setdefault(fact.controller, []).append(fact.note)


def _controller_alarmed(state: State, fact: f.ControllerAlarmed, recorded: Recorded) -> None:
    state.workloads[fact.controller] = replace(state.workloads[fact.controller], alarm=fact.at)
    if fact.at:
        state.deadlines.set(Due.ALARM, fact.controller, fact.at)
    else:
        state.deadlines.clear(Due.ALARM, fact.controller)


def _controller_closed(state: State, fact: f.ControllerClosed, recorded: Recorded) -> None:
    state.deadlines.clear(Due.ALARM, fact.controller)
    state.touched.ended_workloads[fact.controller] = state.workloads.pop(fact.controller)


def _nothing(state: State, fact: f.Fact, recorded: Recorded) -> None:
    """The outbox remembers it."""


HANDLERS: dict[type[f.Fact], Callable[[State, Any, Recorded], None]] = {
    f.ControllerOpened: _controller_opened,
    f.ControllerNoted: _controller_noted,
    f.ControllerAlarmed: _controller_alarmed,
    f.ControllerClosed: _controller_closed,
    f.EffectOwed: _nothing,
    f.EffectSettled: _nothing,
}
