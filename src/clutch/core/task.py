"""A task: a durable wish and its history, from its submission to its end.

It may know its spec, what its user wishes now, how often it failed, and its last committed checkpoint. It never knows
where it runs: that is its allocation's business.
"""

from __future__ import annotations

import msgspec

from clutch.core.machine import Table
from clutch.wire.errors import Conflict
from clutch.wire.ids import NodeId, RequestId, TaskId
from clutch.wire.outcomes import EndReason, TaskState, TaskWish, Verdict
from clutch.wire.schedule import Part, PreemptReason, Request
from clutch.wire.specs import Members, OnDeath, RoleSpec, TaskSpec

TABLE = Table(
    "task",
    {
        TaskState.QUEUED: (TaskState.RUNNING, TaskState.PAUSED, TaskState.ENDED),
        TaskState.RUNNING: (TaskState.QUEUED, TaskState.RESTING, TaskState.PAUSED, TaskState.ENDED),
        TaskState.RESTING: (TaskState.QUEUED, TaskState.PAUSED, TaskState.ENDED),
        TaskState.PAUSED: (TaskState.QUEUED, TaskState.ENDED),
        TaskState.ENDED: (),
    },
)

WISHES: dict[TaskWish, tuple[TaskWish, ...]] = {
    TaskWish.RUN: (TaskWish.PAUSE, TaskWish.STOP, TaskWish.CANCEL, TaskWish.KILL),
    TaskWish.PAUSE: (TaskWish.RUN, TaskWish.STOP, TaskWish.CANCEL, TaskWish.KILL),
    TaskWish.STOP: (TaskWish.CANCEL, TaskWish.KILL),
    TaskWish.CANCEL: (TaskWish.KILL,),
    TaskWish.KILL: (),
}
"""What a wish may become. An end once wished for can only become harsher."""

LEAVE_REASON: dict[TaskWish, PreemptReason] = {
    TaskWish.PAUSE: PreemptReason.PAUSED,
    TaskWish.STOP: PreemptReason.STOPPED,
    TaskWish.CANCEL: PreemptReason.CANCELLED,
}


class Bar(msgspec.Struct, frozen=True):
    """A node that lacks what the task needs, until when it is not tried, and what it lacks."""

    node: NodeId
    until: float
    detail: str = ""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    task: TaskId
    spec: TaskSpec
    order: int
    submitted_at: float
    state: TaskState = TaskState.QUEUED
    wish: TaskWish = TaskWish.RUN
    key: str = ""
    controller: str = ""
    epoch: int = 0
    """Of its latest allocation; 0 before the first."""
    failures: int = 0
    """How often its own program failed; infrastructure does not count."""
    setbacks: int = 0
    """How often in a row infrastructure failed it."""
    setback: str = ""
    """What infrastructure did to its latest allocation, in words; empty if that ended otherwise."""
    rest_until: float = 0.0
    partings: int = 0
    """How often its ranks have lost each other for no reason that was found, since its last checkpoint."""
    final: bool = False
    """The next failure of its program is the last, whatever its spec allows."""
    checkpoint: str = ""
    step: int = 0
    counts: dict[str, int] = {}
    """Sizes of roles that were changed after submission."""
    excluded: tuple[NodeId, ...] = ()
    barred: tuple[Bar, ...] = ()
    lacks_since: float = 0.0
    """When a node first lacked what it needs since it last ran; 0: none has."""
    has_run: bool = False
    priority: int = 0
    """0: the spec's."""
    last_victim_at: float = 0.0
    last_cell: int = 0
    """Of the latest lease it asked for."""
    reason: EndReason | None = None
    detail: str = ""
    ended_at: float = 0.0

    @property
    def trouble(self) -> str:
        """Why it does not run any more though nobody wished that; empty when it runs, or was not hindered."""
        return self.setback if self.state in (TaskState.QUEUED, TaskState.RESTING) else ""

    def role(self, name: str) -> RoleSpec:
        for role in self.spec.roles:
            if role.name == name:
                return role
        known = ", ".join(role.name for role in self.spec.roles)
        raise Conflict(f"it has no role {name!r}", object=f"task {self.task}", next_step=f"Its roles are: {known}.")

    def count(self, role: RoleSpec) -> int:
        """How many members the role should have now (a split role has as many as its placement gave it)."""
        assert isinstance(role.shape, Members)
        return self.counts.get(role.name, role.shape.count)


def bar_name(task: TaskId, node: NodeId) -> str:
    """Whose deadline a bar's end is."""
    return f"{task}@{node}"


def leads(role: RoleSpec) -> bool:
    """Whether the role's members decide when the allocation is done (the others serve it)."""
    return role.on_death is OnDeath.END


def request(task: Task) -> Request:
    """What a queued task asks the scheduler for: all its roles at their present size."""
    parts = []
    for role in task.spec.roles:
        shape = role.shape
        if isinstance(shape, Members):
            shape = Members(count=task.count(role), each=shape.each)
        parts.append(Part(role=role.name, shape=shape, spread=role.spread, subscribes=role.subscribes))
    return request_for(task, RequestId(task.task), tuple(parts))


def request_for(task: Task, identity: RequestId, parts: tuple[Part, ...]) -> Request:
    """A request that carries everything a scheduling policy must know of the task behind it."""
    spec = task.spec
    return Request(
        request=identity,
        task=task.task,
        order=task.order,
        parts=parts,
        owner=spec.owner,
        workspace=spec.workspace,
        priority=task.priority or spec.priority,
        group=spec.group or task.task,
        weight=spec.weight,
        max_slots=spec.max_slots,
        preemptible=spec.preemptible,
        leave_within_s=spec.leave_within_s,
        excluded_nodes=(*spec.excluded_nodes, *task.excluded, *(bar.node for bar in task.barred)),
    )


class Next(msgspec.Struct, frozen=True):
    """What becomes of a task when an allocation of it has ended."""

    to: TaskState
    failures: int
    reason: EndReason | None = None


END_OF_WISH: dict[TaskWish, EndReason] = {
    TaskWish.STOP: EndReason.STOPPED,
    TaskWish.CANCEL: EndReason.CANCELLED,
    TaskWish.KILL: EndReason.KILLED,
}


def after_allocation(task: Task, verdict: Verdict) -> Next:
    """The exit rules. First match wins:

    done                          -> ended, whatever was wished meanwhile: the work is complete
    somebody wished for an end    -> ended for that reason
    the program failed            -> ended when its restarts are used up; else as below, one failure more
    anything else                 -> paused if its user paused it, else queued again
    """
    if verdict is Verdict.DONE:
        return Next(TaskState.ENDED, task.failures, EndReason.DONE)
    failures = task.failures + (verdict is Verdict.FAILED)
    if task.wish in END_OF_WISH:
        return Next(TaskState.ENDED, failures, END_OF_WISH[task.wish])
    if failures > (task.failures if task.final else task.spec.max_restarts):
        return Next(TaskState.ENDED, failures, EndReason.FAILED)
    return Next(TaskState.PAUSED if task.wish is TaskWish.PAUSE else TaskState.QUEUED, failures)
