"""Workloads: what their controllers are told, and how their wishes become facts."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from clutch.core import controller as c
from clutch.core.decisions import tasks
from clutch.core.state import State
from clutch.wire import events as e
from clutch.wire import facts as f
from clutch.wire.errors import BadRequest, ClutchError, Conflict

Facts = Iterator[f.Fact]
News = list[tuple[str, c.Happening]]
"""What controllers must still be told when the present decision is through."""


def open_controller(state: State, event: e.OpenController, news: News) -> Facts:
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
    news.append((event.controller, c.Opened()))


def tell_controller(state: State, event: e.TellController, news: News) -> Facts:
    state.workload(event.controller)
    news.append((event.controller, c.Told(event.payload)))
    yield from ()


def alarm_due(state: State, controller: str, news: News) -> Facts:
    yield f.ControllerAlarmed(controller, 0.0)
    news.append((controller, c.Woken()))


def settle_effect(state: State, event: e.SettleEffect, now: float) -> Facts:
    """What was owed to the outside has happened, or never will. Said twice, it is so once: the outbox forgets it."""
    yield f.EffectSettled(event.token)


def _move(state: State, wish: c.Wish, cause: str, now: float) -> Facts:
    """What a controller may ask of a task that lives. What no longer makes sense for it changes nothing."""
    try:
        match wish:
            case c.Pause(task) if task in state.tasks:
                yield from tasks.pause(state, e.Pause(cause=cause, task=task), now)
            case c.Resume(task) if task in state.tasks:
                yield from tasks.resume(state, e.Resume(cause=cause, task=task), now)
            case c.Kill(task) if task in state.tasks:
                yield from tasks.kill(state, e.Kill(cause=cause, task=task), now)
            case c.SetPriority(task, priority) if task in state.tasks:
                yield from tasks.set_priority(state, e.SetPriority(cause=cause, task=task, priority=priority), now)
            case c.Exclude(task, node) if task in state.tasks:
                yield from tasks.exclude_node(state, e.ExcludeNode(cause=cause, task=task, node=node), now)
    except ClutchError:
        return  # it is ending already, or the node is gone; each of these refuses before its first fact


def tell(state: State, news: News, now: float, rng: Random) -> Facts:
    """Ask the first controller on the list what follows, and carry out its wishes in order.

    A task or a size that is refused at the door does not stop the others: the controller hears of it next.
    """
    controller, happening = news.pop(0)
    workload = state.workloads.get(controller)
    if workload is None:
        return
    brain = state.controllers[workload.kind]
    cause = f"controller:{controller}"
    for wish in brain.decide(workload.own, happening, now, rng):
        match wish:
            case c.Create(task, spec):
                submit = e.Submit(cause=cause, task=task, spec=spec, controller=controller)
                try:
                    yield from tasks.submit(state, submit, now)
                except ClutchError as error:
                    news.append((controller, c.Refused(task, str(error))))
            case c.Stop(task, reason):
                if task in state.tasks:
                    yield from tasks.cancel(state, e.Cancel(cause=cause, task=task, reason=reason), now)
            case c.Pause(task) | c.Resume(task) | c.Kill(task) | c.SetPriority(task) | c.Exclude(task):
                yield from _move(state, wish, cause, now)
            case c.SetMaxSlots(task, max_slots, leave):
                if task in state.tasks:
                    yield from tasks.set_max_slots(state, task, max_slots, leave, now)
            case c.ForbidRestarts(task):
                if task in state.tasks and not state.tasks[task].final:
                    yield f.RestartsForbidden(task)
            case c.Owe(token, kind, payload, due_at):
                yield f.EffectOwed(controller, token, kind, payload, due_at or now)
            case c.SetCount(task, role, count):
                resize = e.Resize(cause=cause, task=task, role=role, count=count)
                try:
                    if task in state.tasks:
                        yield from tasks.resize(state, resize, now)
                except ClutchError as error:
                    news.append((controller, c.Refused(task, str(error))))
            case c.Note(payload):
                yield f.ControllerNoted(controller, payload)
            case c.Wake(at):
                yield f.ControllerAlarmed(controller, at)
            case c.Close(detail):
                yield f.ControllerClosed(controller, detail)
                return
