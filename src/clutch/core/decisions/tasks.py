"""Tasks: submitted, paused, resumed, cancelled, killed, resized."""

from __future__ import annotations

from collections.abc import Iterator

from clutch.core import member as members
from clutch.core.checks import MEMBERS_MAX, check_name, check_task, slots_of
from clutch.core.decisions import allocations
from clutch.core.decisions import members as member_decisions
from clutch.core.state import State
from clutch.core.task import LEAVE_REASON, WISHES, Task
from clutch.wire import events as e
from clutch.wire import facts as f
from clutch.wire.errors import BadRequest, Conflict, IllegalMove, QuotaExceeded
from clutch.wire.ids import MemberId, TaskId
from clutch.wire.outcomes import AllocationState, EndReason, TaskState, TaskWish, Verdict
from clutch.wire.schedule import PreemptReason
from clutch.wire.specs import PRIORITIES, Members, OnDeath, RoleSpec, TaskSpec

Facts = Iterator[f.Fact]


def submit(state: State, event: e.Submit, now: float) -> Facts:
    """A wish becomes durable. The same key again is the same task."""
    known = state.tasks.get(state.keys[event.key]) if event.key in state.keys else None
    if known is not None and known.spec != event.spec:
        raise Conflict(
            f"the key {event.key!r} was used for another spec",
            object=f"task {known.task}",
            next_step="Use a new key for new work.",
        )
    if event.key in state.keys:
        return
    check_name(event.task, "task")
    check_task(event.spec)
    state.pool(event.spec.pool)
    if event.task in state.tasks:
        raise Conflict("a task with this id exists", object=f"task {event.task}", next_step="Choose another id.")
    _check_quota(state, event.spec, sum(slots_of(role) for role in event.spec.roles))
    yield f.TaskSubmitted(event.task, event.spec, state.orders + 1, event.key, event.controller)


def _check_quota(state: State, spec: TaskSpec, asked: int) -> None:
    """What could not run even alone is refused now, not left waiting for ever."""
    for scope in (f"user:{spec.owner}", f"workspace:{spec.workspace}"):
        quota = state.quotas.get(scope)
        if quota is not None and asked > quota.slots:
            raise QuotaExceeded(
                f"it needs {asked} slots at once and the quota of {scope} is {quota.slots}",
                object=f"task {spec.name!r}",
                next_step="Ask for fewer slots, or ask an admin to raise the quota.",
            )


def _slots_now(task: Task, role: RoleSpec) -> int:
    """The slots a role holds while it runs at its present size."""
    return task.count(role) * role.shape.each.slots if isinstance(role.shape, Members) else role.shape.slots


def _wish(task: Task, wish: TaskWish) -> f.TaskWished:
    if wish not in WISHES[task.wish]:
        raise IllegalMove(
            f"its user already wished it to {task.wish}; that cannot become {wish}",
            object=f"task {task.task}",
            next_step="Wait for it to end, or kill it.",
        )
    return f.TaskWished(task.task, wish)


def pause(state: State, event: e.Pause, now: float) -> Facts:
    task = state.task(event.task)
    if task.wish is TaskWish.PAUSE:
        return
    yield _wish(task, TaskWish.PAUSE)
    if task.state in (TaskState.QUEUED, TaskState.RESTING):
        yield f.TaskMoved(event.task, TaskState.PAUSED)
    elif task.state is TaskState.RUNNING:
        yield from allocations.ask_leave(state, event.task, PreemptReason.PAUSED, now)


def resume(state: State, event: e.Resume, now: float) -> Facts:
    task = state.task(event.task)
    if task.wish is TaskWish.RUN:
        return
    yield _wish(task, TaskWish.RUN)
    if task.state is TaskState.PAUSED:
        yield f.TaskMoved(event.task, TaskState.QUEUED)


def cancel(state: State, event: e.Cancel, now: float) -> Facts:
    """Ask it to leave, then end it. A second, milder wish for the same end changes nothing."""
    wish = TaskWish.STOP if event.reason is PreemptReason.STOPPED else TaskWish.CANCEL
    task = state.task(event.task)
    if task.wish in (wish, TaskWish.CANCEL, TaskWish.KILL):
        return
    yield _wish(task, wish)
    if task.state is TaskState.RUNNING:
        yield from allocations.ask_leave(state, event.task, LEAVE_REASON[wish], now)
    else:
        reason = EndReason.STOPPED if wish is TaskWish.STOP else EndReason.CANCELLED
        yield f.TaskEnded(event.task, reason, f"by {event.cause}" if event.cause else "")


def kill(state: State, event: e.Kill, now: float) -> Facts:
    task = state.task(event.task)
    if task.wish is TaskWish.KILL:
        return
    yield _wish(task, TaskWish.KILL)
    detail = f"killed by {event.cause}" if event.cause else "killed"
    if task.state is TaskState.RUNNING:
        yield from allocations.end(state, event.task, Verdict.KILLED, detail, now)
    else:
        yield f.TaskEnded(event.task, EndReason.KILLED, detail)


def set_priority(state: State, event: e.SetPriority, now: float) -> Facts:
    task = state.task(event.task)
    if event.priority not in PRIORITIES:
        raise BadRequest(
            f"{event.priority} is not from 1 to 99", object=f"task {event.task}", next_step="1 is the most important."
        )
    if event.priority != (task.priority or task.spec.priority):
        yield f.PrioritySet(event.task, event.priority)


def set_max_slots(state: State, task: TaskId, max_slots: int, leave: bool, now: float) -> Facts:
    """Another bound for its group. Who leaves because of it waits in the queue again."""
    known = state.tasks[task]
    if max_slots != known.spec.max_slots:
        yield f.MaxSlotsSet(task, max_slots)
    if leave and known.state is TaskState.RUNNING:
        yield from allocations.ask_leave(state, task, PreemptReason.PREEMPTED, now)


def exclude_node(state: State, event: e.ExcludeNode, now: float) -> Facts:
    task = state.task(event.task)
    state.node(event.node)
    if event.node not in task.excluded and event.node not in task.spec.excluded_nodes:
        yield f.NodeExcluded(event.task, event.node)


# -- resizing -----------------------------------------------------------------------------------------------------


def resize(state: State, event: e.Resize, now: float) -> Facts:
    """A role gets another size: member by member where they live one by one, else by a new epoch."""
    task = state.task(event.task)
    role = task.role(event.role)
    least, most = (role.count_min, role.count_max) if role.count_max else (1, MEMBERS_MAX)
    if not isinstance(role.shape, Members) or not least <= event.count <= most:
        raise BadRequest(
            f"role {event.role} cannot have {event.count} members",
            object=f"task {event.task}",
            next_step=f"It may have {least} to {most}." if isinstance(role.shape, Members) else "Its slots are split.",
        )
    if not event.count and not any(_has_members(task, other) for other in task.spec.roles if other is not role):
        raise BadRequest(
            f"without members of role {event.role} nothing would be left of it",
            object=f"task {event.task}",
            next_step="Pause or cancel it instead.",
        )
    if event.count == task.count(role):
        return
    others = sum(_slots_now(task, other) for other in task.spec.roles if other.name != role.name)
    _check_quota(state, task.spec, others + event.count * role.shape.each.slots)
    yield f.RoleResized(event.task, event.role, event.count)
    allocation = state.allocations.get(event.task)
    if allocation is None or allocation.state not in (AllocationState.PLACED, AllocationState.RUNNING):
        return
    if role.on_death is OnDeath.END:
        yield from allocations.ask_leave(state, event.task, PreemptReason.RESIZED, now)
    else:
        yield from _resize_live(state, event.task, event.role, event.count, now)


def _has_members(task: Task, role: RoleSpec) -> bool:
    return not isinstance(role.shape, Members) or task.count(role) > 0


def _resize_live(state: State, task: TaskId, role: str, count: int, now: float) -> Facts:
    present = {m.member.rank: m for m in state.members_of(task) if m.member.role == role}
    for rank in range(count):
        member = present.get(rank)
        if member is None:
            identity = MemberId(task, role, rank)
            yield f.MemberWanted(identity, state.allocations[task].next_incarnation(identity), 0)
    for rank in sorted(present, reverse=True):
        if rank < count:
            break
        member = present[rank]
        if member.state in (*members.ABSENT, *members.GONE):
            yield f.MemberRemoved(member.member)
        else:
            yield from member_decisions.ask_leave(state, member, PreemptReason.RESIZED, now)
    yield from member_decisions.perhaps_done(state, task, now)
