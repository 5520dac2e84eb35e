"""The one door in: ``decide(state, event, now, rng) -> facts``.

``decide`` is a generator. The caller folds each fact before asking for the next one, so that a decision sees what it
has decided so far (see ``decisions``). It raises only before its first fact: a refused event changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from clutch.core import controller as c
from clutch.core.allocation import Allocation
from clutch.core.deadlines import Due
from clutch.core.decisions import allocations, cluster, controllers, leases, machines, members, tasks
from clutch.core.decisions.controllers import News
from clutch.core.state import State
from clutch.wire import events as e
from clutch.wire import facts as f
from clutch.wire.ids import LeaseId, MemberId, NodeId, TaskId

Facts = Iterator[f.Fact]

HANDLERS: dict[type[e.Event], Callable[[State, Any, float], Facts]] = {
    e.BeginTerm: cluster.begin_term,
    e.PutPool: cluster.put_pool,
    e.SetQuota: cluster.set_quota,
    e.RemoveQuota: cluster.remove_quota,
    e.Reported: cluster.reported,
    e.Silent: cluster.silent,
    e.DrainNode: cluster.drain,
    e.OpenNode: cluster.open_node,
    e.DisableSlots: cluster.disable_slots,
    e.RemoveNode: cluster.remove_node,
    e.MachineUp: machines.machine_up,
    e.LaunchFailed: machines.launch_failed,
    e.MachineDown: machines.machine_down,
    e.MachinesListed: machines.machines_listed,
    e.Submit: tasks.submit,
    e.Pause: tasks.pause,
    e.Resume: tasks.resume,
    e.Cancel: tasks.cancel,
    e.Kill: tasks.kill,
    e.Resize: tasks.resize,
    e.SetPriority: tasks.set_priority,
    e.ExcludeNode: tasks.exclude_node,
    e.AckLeave: allocations.ack_leave,
    e.DeclareFinished: allocations.declare_finished,
    e.CommitCheckpoint: allocations.commit_checkpoint,
    e.ReachLanes: allocations.reach_lanes,
    e.AskLease: leases.ask,
    e.WithdrawLease: leases.withdraw,
    e.IdleLease: leases.idle,
    e.ReuseLease: leases.reuse,
    e.SettleEffect: controllers.settle_effect,
}

HAPPENINGS_MAX = 10_000
"""How much controllers may be told after one event."""

CONTROLLER_HANDLERS: dict[type[e.Event], Callable[[State, Any, News], Facts]] = {
    e.OpenController: controllers.open_controller,
    e.TellController: controllers.tell_controller,
}


def decide(state: State, event: e.Event, now: float, rng: Random) -> Facts:
    """What follows from an event. Controllers hear of it after the event itself is decided, one after the other."""
    news: News = []
    yield from noticed(state, _decide_event(state, event, now, news), news)
    yield from told(state, news, now, rng)


def told(state: State, news: News, now: float, rng: Random) -> Facts:
    """What controllers want now that they hear all of this, and of what they bring about."""
    count = 0
    while news:
        count += 1
        if count > HAPPENINGS_MAX:  # somebody answers every answer: the cluster does not go down with it
            yield f.ControllerClosed(news[0][0], f"it wished without end: {HAPPENINGS_MAX} times after one event")
            news = [(controller, happening) for controller, happening in news if controller != news[0][0]]
            continue
        yield from noticed(state, controllers.tell(state, news, now, rng), news)


def noticed(state: State, facts: Facts, news: News) -> Facts:
    """The same facts; and what they mean to controllers goes on the list."""
    for fact in facts:
        happening = _news(state, fact)
        yield fact
        if happening is not None:
            news.append(happening)


def _decide_event(state: State, event: e.Event, now: float, news: News) -> Facts:
    if isinstance(event, e.Tick):
        return _tick(state, now, news)
    handler = HANDLERS.get(type(event))
    if handler is not None:
        return handler(state, event, now)
    return CONTROLLER_HANDLERS[type(event)](state, event, news)


def _tick(state: State, now: float, news: News) -> Facts:
    """Whatever is due. Each deadline is looked up again: an earlier one may have settled it."""
    for due, whose in state.deadlines.due(now):
        if (due, whose) not in state.deadlines:
            continue
        match due:
            case Due.SILENCE:
                yield from cluster.silence_due(state, NodeId(whose), now)
            case Due.RESIDENTS:
                yield from cluster.residents_due(state, NodeId(whose), now)
            case Due.LEAVE:
                yield from allocations.leave_due(state, TaskId(whose), now)
            case Due.MEMBER_LEAVE:
                yield from members.leave_due(state, _member(whose), now)
            case Due.FLUSH:
                yield from allocations.flush_due(state, TaskId(whose), now)
            case Due.LEASE:
                yield from leases.due(state, LeaseId(whose), now)
            case Due.REST:
                yield from allocations.rest_due(state, TaskId(whose), now)
            case Due.MEMBER_REST:
                yield from members.rest_due(state, _member(whose), now)
            case Due.ALARM:
                yield from controllers.alarm_due(state, whose, news)
            case Due.BAR:
                task, _, node = whose.rpartition("@")
                yield f.NodeBarLifted(TaskId(task), NodeId(node))


def _member(name: str) -> MemberId:
    task, _, rest = name.rpartition("/")
    role, _, rank = rest.rpartition(".")
    return MemberId(TaskId(task), role, int(rank))


def _news(state: State, fact: f.Fact) -> tuple[str, c.Happening] | None:
    """What a controller should hear of a fact that is about to be folded."""
    match fact:
        case f.TaskEnded(task, reason, detail):
            controller = state.tasks[task].controller
            return (controller, c.TaskEnded(task, reason, detail)) if controller else None
        case f.AllocationGranted(task, epoch, members) if state.tasks[task].controller:
            nodes = tuple(dict.fromkeys(placed.placement.node for placed in members))
            return state.tasks[task].controller, c.RunBegan(task, epoch, nodes)
        case f.AllocationEnded(task, epoch) if state.tasks[task].controller:
            return state.tasks[task].controller, _run_ended(state.allocations[task], fact.failures)
        case f.CheckpointCommitted(task, epoch, checkpoint, step) if state.tasks[task].controller:
            saved = c.CheckpointSaved(task, epoch, checkpoint, step, fact.size_bytes, fact.storage)
            return state.tasks[task].controller, saved
        case f.MemberWanted(member) if member in state.members:
            owner = state.tasks[member.task]
            return (owner.controller, c.MemberGone(member)) if owner.controller else None
    return None


def _run_ended(allocation: Allocation, failures: int) -> c.RunEnded:
    assert allocation.verdict is not None
    asked = allocation.leave.reason if allocation.leave is not None else None
    return c.RunEnded(allocation.task, allocation.epoch, allocation.verdict, asked, allocation.detail, failures)
