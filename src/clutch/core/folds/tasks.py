"""How tasks move on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from clutch.core import task as tasks
from clutch.core.deadlines import Due
from clutch.core.folds.indexes import (
    enqueue,
    put_task,
    refresh_requests,
    withdraw,
)
from clutch.core.recorded import Recorded
from clutch.core.state import KEYS_REMEMBERED, State
from clutch.core.task import Bar, Task, bar_name
from clutch.wire import facts as f
from clutch.wire.ids import RequestId
from clutch.wire.outcomes import TaskState

replace = msgspec.structs.replace


def _task_submitted(state: State, fact: f.TaskSubmitted, recorded: Recorded) -> None:
    task = Task(
        task=fact.task,
        spec=fact.spec,
        order=fact.order,
        submitted_at=recorded.at,
        key=fact.key,
        controller=fact.controller,
    )
    state.orders = fact.order
    if fact.key:
        state.keys[fact.key] = fact.task
        if len(state.keys) > KEYS_REMEMBERED:
            del state.keys[next(iter(state.keys))]
    put_task(state, task)
    enqueue(state, task)


def _task_wished(state: State, fact: f.TaskWished, recorded: Recorded) -> None:
    put_task(state, replace(state.tasks[fact.task], wish=fact.wish))


def _task_moved(state: State, fact: f.TaskMoved, recorded: Recorded) -> None:
    task = state.tasks[fact.task]
    tasks.TABLE.move(task.state, fact.to, f"task {task.task}")
    if task.state is TaskState.QUEUED:
        withdraw(state, task)
    state.deadlines.clear(Due.REST, fact.task)
    task = replace(task, state=fact.to, rest_until=0.0)
    put_task(state, task)
    if fact.to is TaskState.QUEUED:
        enqueue(state, task)


def _task_ended(state: State, fact: f.TaskEnded, recorded: Recorded) -> None:
    task = state.tasks.pop(fact.task)
    tasks.TABLE.move(task.state, TaskState.ENDED, f"task {task.task}")
    if task.state is TaskState.QUEUED:
        withdraw(state, task)
    state.deadlines.clear(Due.REST, fact.task)
    for bar in task.barred:
        state.deadlines.clear(Due.BAR, bar_name(fact.task, bar.node))
    state.touched.tasks.pop(task.task, None)
    state.touched.ended_tasks[task.task] = replace(
        task, state=TaskState.ENDED, reason=fact.reason, detail=fact.detail, ended_at=recorded.at
    )


def _amend(state: State, task: Task) -> None:
    """What a task asks for has changed: it keeps its place, which is its order and not its position.

    What it and its members hold already stays held, under the new terms.
    """
    if task.state is TaskState.QUEUED:
        withdraw(state, task)
        enqueue(state, task)
    ledger = state.ledgers[task.spec.pool]
    if RequestId(task.task) in ledger.holdings:
        ledger.amend(tasks.request(task))
    refresh_requests(state, task.task)


def _role_resized(state: State, fact: f.RoleResized, recorded: Recorded) -> None:
    task = state.tasks[fact.task]
    task = replace(task, counts={**task.counts, fact.role: fact.count})
    put_task(state, task)
    _amend(state, task)


def _priority_set(state: State, fact: f.PrioritySet, recorded: Recorded) -> None:
    task = replace(state.tasks[fact.task], priority=fact.priority)
    put_task(state, task)
    _amend(state, task)


def _max_slots_set(state: State, fact: f.MaxSlotsSet, recorded: Recorded) -> None:
    task = state.tasks[fact.task]
    task = replace(task, spec=replace(task.spec, max_slots=fact.max_slots))
    put_task(state, task)
    _amend(state, task)


def _node_excluded(state: State, fact: f.NodeExcluded, recorded: Recorded) -> None:
    task = state.tasks[fact.task]
    task = replace(task, excluded=(*task.excluded, fact.node))
    put_task(state, task)
    _amend(state, task)


def _node_barred(state: State, fact: f.NodeBarred, recorded: Recorded) -> None:
    task = state.tasks[fact.task]
    others = tuple(bar for bar in task.barred if bar.node != fact.node)
    since = task.lacks_since or recorded.at
    task = replace(task, barred=(*others, Bar(fact.node, fact.until, fact.detail)), lacks_since=since)
    state.deadlines.set(Due.BAR, bar_name(fact.task, fact.node), fact.until)
    put_task(state, task)
    _amend(state, task)


def _node_bar_lifted(state: State, fact: f.NodeBarLifted, recorded: Recorded) -> None:
    task = state.tasks[fact.task]
    task = replace(task, barred=tuple(bar for bar in task.barred if bar.node != fact.node))
    state.deadlines.clear(Due.BAR, bar_name(fact.task, fact.node))
    put_task(state, task)
    _amend(state, task)


def _checkpoint_committed(state: State, fact: f.CheckpointCommitted, recorded: Recorded) -> None:
    task = state.tasks[fact.task]
    put_task(state, replace(task, checkpoint=fact.checkpoint, step=fact.step, partings=0))


def _restarts_forbidden(state: State, fact: f.RestartsForbidden, recorded: Recorded) -> None:
    put_task(state, replace(state.tasks[fact.task], final=True))


HANDLERS: dict[type[f.Fact], Callable[[State, Any, Recorded], None]] = {
    f.TaskSubmitted: _task_submitted,
    f.TaskWished: _task_wished,
    f.RestartsForbidden: _restarts_forbidden,
    f.TaskMoved: _task_moved,
    f.TaskEnded: _task_ended,
    f.RoleResized: _role_resized,
    f.PrioritySet: _priority_set,
    f.MaxSlotsSet: _max_slots_set,
    f.NodeExcluded: _node_excluded,
    f.NodeBarred: _node_barred,
    f.NodeBarLifted: _node_bar_lifted,
    f.CheckpointCommitted: _checkpoint_committed,
}
