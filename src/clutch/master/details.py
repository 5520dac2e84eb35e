"""Live things as people look at them: members with what their agents measured, and why something waits.

Reads the live state between two turns of the loop (``Loop.settled``) and never waits itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from clutch.core.member import ABSENT, PRESENT, Member
from clutch.core.scheduling.plan import Plan
from clutch.core.state import State
from clutch.master.monitor import Monitor
from clutch.wire.api import MemberDetail, PoolDetail, QueueEntry, WhyWaiting
from clutch.wire.errors import BrokenInvariant
from clutch.wire.ids import LeaseId, NodeId, PoolName, RequestId, TaskId
from clutch.wire.link import MemberUse
from clutch.wire.outcomes import TaskState
from clutch.wire.schedule import Placement
from clutch.wire.specs import Members, PoolSpec
from clutch.wire.views import TaskView

Plans = Mapping[PoolName, Plan]


def member_detail(state: State, member: Member, monitor: Monitor) -> MemberDetail:
    """A member with what is known of it now."""
    node = member.placement.node if member.placement is not None else ""
    slots = member.placement.slots if member.placement is not None else ()
    fence = member.fence(state.generation)
    use = use_of(state, member, monitor) or MemberUse(member.member, fence, backend="")
    exit = member.exit
    return MemberDetail(
        member=str(member.member),
        role=member.member.role,
        rank=member.member.rank,
        fence=str(fence),
        state=member.state,
        node=node,
        slots=slots,
        backend=use.backend,
        doing=use.doing or (f"{member.state}: {member.setback}" if member.state in ABSENT and member.setback else ""),
        cpu_percent=use.cpu_percent,
        memory_bytes=use.memory_bytes,
        slot_percent=_slot_percent(monitor, node, slots),
        exit_code=exit.code if exit is not None else None,
        exit_cause=exit.cause if exit is not None else "",
        exit_reason=monitor.exit_reason(member.member, fence) if exit is not None else "",
        notices=use.notices,
        ports=use.ports,
    )


def whereabouts(state: State, view: TaskView, monitor: Monitor) -> TaskView:
    """A task as lists show it: where a running one is, and with which backend, unless there is more to say of it."""
    if view.state != TaskState.RUNNING or view.detail:
        return view
    members = [m for m in state.members_of(TaskId(view.key)) if m.placement is not None]
    nodes = dict.fromkeys(m.placement.node for m in members if m.placement is not None)
    ways = dict.fromkeys(use.backend for m in members if (use := use_of(state, m, monitor)) is not None)
    words = (f"on {', '.join(nodes)}" if len(nodes) < 4 else f"on {len(nodes)} nodes") if nodes else ""
    return msgspec.structs.replace(view, detail=" with ".join(filter(None, (words, " and ".join(ways)))))


def use_of(state: State, member: Member, monitor: Monitor) -> MemberUse | None:
    """What its agent measured of this very incarnation."""
    if member.placement is None:
        return None
    return monitor.member(member.placement.node, member.member, member.fence(state.generation))


def _slot_percent(monitor: Monitor, node: str, slots: Iterable[int]) -> int:
    """How busy its devices are together; -1 where that cannot be told."""
    use = monitor.node(NodeId(node)) if node else None
    known = {each.slot: each.percent for each in use.slots} if use is not None else {}
    busy = [known[slot] for slot in slots if known.get(slot, -1) >= 0]
    return round(sum(busy) / len(busy)) if busy else -1


def members_on(state: State, node: NodeId, monitor: Monitor) -> tuple[MemberDetail, ...]:
    found = (state.members.get(member) for member in state.members_on.get(node, {}))
    return tuple(member_detail(state, member, monitor) for member in found if member is not None)


def waiting_of(state: State, plans: Plans, task: TaskId) -> WhyWaiting | None:
    """Why a task waits for its allocation; None when it does not, or the scheduler has not looked at it yet."""
    known = state.tasks.get(task)
    if known is None or known.state is not TaskState.QUEUED:
        return None
    return _why(plans.get(known.spec.pool), RequestId(task))


def _why(plan: Plan | None, request: RequestId) -> WhyWaiting | None:
    if plan is None:
        return None
    try:
        why = plan.why(request)
    except BrokenInvariant:  # it came after the plan was made, or was granted by it
        return None
    return WhyWaiting(code=why.code, detail=why.detail, position=why.position, blockers=why.blockers)


def line(state: State, plans: Plans, visible: tuple[str, ...] | None) -> Iterator[tuple[PoolName, RequestId]]:
    """Everything that waits and may be seen, by pool and place: tasks, and members and cells that wait alone."""
    for pool in sorted(plans):
        for request in plans[pool].line():
            task = state.tasks.get(task_of(state, request))
            if task is not None and (visible is None or task.spec.workspace in visible):
                yield pool, request


def task_of(state: State, request: RequestId) -> TaskId:
    """Whose request it is."""
    kind, _, lease = request.partition(":")
    if kind == "lease" and LeaseId(lease) in state.leases:
        return state.leases[LeaseId(lease)].task
    member = state.waiting_members.get(request)
    return member.task if member is not None else TaskId(request)


def queue_entry(state: State, plans: Plans, pool: PoolName, request: RequestId) -> QueueEntry | None:
    """One place in the line, with its reason; None when it has just been granted."""
    task = state.tasks[task_of(state, request)]
    why = _why(plans[pool], request)
    if why is None:
        return None
    return QueueEntry(
        task=task.task,
        name=task.spec.name,
        owner=task.spec.owner,
        workspace=task.spec.workspace,
        pool=pool,
        priority=task.priority or task.spec.priority,
        slots=_slots_wanted(state, request),
        submitted_at=task.submitted_at,
        waiting=why,
    )


def _slots_wanted(state: State, request: RequestId) -> int:
    kind, _, lease = request.partition(":")
    if kind == "lease" and LeaseId(lease) in state.leases:
        return state.leases[LeaseId(lease)].slots
    member = state.waiting_members.get(request)
    task = state.tasks[task_of(state, request)]
    if member is not None:
        shape = task.role(member.role).shape
        return shape.each.slots if isinstance(shape, Members) else 0
    return sum(
        task.count(role) * role.shape.each.slots if isinstance(role.shape, Members) else role.shape.slots
        for role in task.spec.roles
    )


def pool_detail(state: State, pool: PoolSpec) -> PoolDetail:
    """A pool with what it has and what happens in it."""
    nodes = [node for node in state.nodes.values() if node.pool == pool.name]
    held = sum(len(held.slots) for node in nodes for held in _placements_on(state, node.node))
    tasks = [task for task in state.tasks.values() if task.spec.pool == pool.name]
    return PoolDetail(
        pool=pool,
        nodes=len(nodes),
        slots=sum(len(node.capacity.slots) for node in nodes),
        slots_held=held,
        running=sum(task.state is TaskState.RUNNING for task in tasks),
        waiting=sum(task.state is TaskState.QUEUED for task in tasks),
    )


def _placements_on(state: State, node: NodeId) -> Iterator[Placement]:
    for member in state.members_on.get(node, {}):
        found = state.members.get(member)
        if found is not None and found.placement is not None and found.state in PRESENT:
            yield found.placement
    for lease in state.leases_on.get(node, {}):
        placement = state.leases[lease].placement
        if placement is not None:
            yield placement
