"""Workloads: what their controllers are told, and how their wishes become facts."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from clutch.core import controller as c
from clutch.core.decisions import tasks
from clutch.core.state import State
from clutch.wire import events as e
from clutch.wire import facts as f
from clutch.wire.errors import BadRequest, Conflict

Facts = Iterator[f.Fact]


def open_controller(state: State, event: e.OpenController, now: float, rng: Random) -> Facts:
    brain = state.controllers.get(event.kind)
    if brain is None:
        known = ", ".join(sorted(state.controllers)) or "none"
        raise BadRequest(
            f"no workload is of kind {event.kind!r}", object=event.controller, next_step=f"Kinds: {known}."
        )
    if event.controller in state.workloads:
        raise Conflict("a workload with this id exists", object=event.controller, next_step="Choose another id.")
    brain.open(event.controller, event.spec)  # raises before anything is decided if the spec is not one
    yield f.ControllerOpened(event.controller, event.kind, event.spec)
    yield from tell(state, event.controller, c.Opened(), now, rng)


def tell_controller(state: State, event: e.TellController, now: float, rng: Random) -> Facts:
    state.workload(event.controller)
    yield from tell(state, event.controller, c.Told(event.payload), now, rng)


def alarm_due(state: State, controller: str, now: float, rng: Random) -> Facts:
    yield f.ControllerAlarmed(controller, 0.0)
    yield from tell(state, controller, c.Woken(), now, rng)


def tell(state: State, controller: str, happening: c.Happening, now: float, rng: Random) -> Facts:
    """Ask the controller what follows, and carry out its wishes in order."""
    workload = state.workloads.get(controller)
    if workload is None:
        return
    brain = state.controllers[workload.kind]
    cause = f"controller:{controller}"
    for wish in brain.decide(workload.own, happening, now, rng):
        match wish:
            case c.Create(task, spec):
                yield from tasks.submit(state, e.Submit(cause=cause, task=task, spec=spec, controller=controller), now)
            case c.Stop(task, reason):
                if task in state.tasks:
                    yield from tasks.cancel(state, e.Cancel(cause=cause, task=task, reason=reason), now)
            case c.SetCount(task, role, count):
                if task in state.tasks:
                    yield from tasks.resize(state, e.Resize(cause=cause, task=task, role=role, count=count), now)
            case c.Note(payload):
                yield f.ControllerNoted(controller, payload)
            case c.Wake(at):
                yield f.ControllerAlarmed(controller, at)
            case c.Close(detail):
                yield f.ControllerClosed(controller, detail)
                return
