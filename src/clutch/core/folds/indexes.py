"""What several folds do alike: putting things in their place, keeping ledgers and look-ups in step with them."""

from __future__ import annotations

import msgspec

from clutch.core import lease as leases
from clutch.core import member as members
from clutch.core import task as tasks
from clutch.core.allocation import Allocation
from clutch.core.deadlines import Due
from clutch.core.member import Member
from clutch.core.node import Node
from clutch.core.state import State
from clutch.core.task import Task
from clutch.wire.ids import RequestId, TaskId
from clutch.wire.outcomes import LeaseState, MemberState
from clutch.wire.schedule import Holding, Placement

replace = msgspec.structs.replace


def put_node(state: State, node: Node) -> None:
    state.nodes[node.node] = node
    state.touched.nodes[node.node] = None
    state.touched.pools[node.pool] = None
    state.ledgers[node.pool].put_room(node.room())


def put_task(state: State, task: Task) -> None:
    state.tasks[task.task] = task
    state.touched.tasks[task.task] = None


def enqueue(state: State, task: Task) -> None:
    state.ledgers[task.spec.pool].enqueue(tasks.request(task))
    state.touched.pools[task.spec.pool] = None


def withdraw(state: State, task: Task) -> None:
    state.ledgers[task.spec.pool].withdraw(RequestId(task.task))
    state.touched.pools[task.spec.pool] = None


def put_allocation(state: State, allocation: Allocation) -> None:
    state.allocations[allocation.task] = allocation
    state.touched.tasks[allocation.task] = None
    for member in allocation.members:
        touch_member(state, state.members[member])


def touch_member(state: State, member: Member) -> None:
    if member.placement is not None:
        state.touched.nodes[member.placement.node] = None


def hold(state: State, task: Task, placements: tuple[Placement, ...], at: float, *, backfilled: bool = False) -> None:
    """The task has these places from now on, in the books of its pool."""
    state.touched.pools[task.spec.pool] = None
    holding = Holding(
        request=tasks.request(task),
        placements=placements,
        since=at,
        last_victim_at=task.last_victim_at,
        backfilled=backfilled,
    )
    state.ledgers[task.spec.pool].hold(holding)


def queue_member(state: State, member: Member) -> None:
    """One member alone waits for a place from now on."""
    request = state.member_request(member)
    state.waiting_members[request.request] = member.member
    ledger = state.ledger_of(member.member.task)
    ledger.enqueue(request)
    state.touched.pools[ledger.pool.name] = None


def unqueue_member(state: State, member: Member) -> None:
    """It waits and rests no more, if it did."""
    state.deadlines.clear(Due.MEMBER_REST, str(member.member))
    request = members.request_id(member.member)
    if state.waiting_members.pop(request, None) is not None:
        ledger = state.ledger_of(member.member.task)
        ledger.withdraw(request)
        state.touched.pools[ledger.pool.name] = None


def end_member(state: State, member: Member, index: int) -> None:
    state.deadlines.clear(Due.MEMBER_LEAVE, str(member.member))
    member = members.moved(member, MemberState.ENDING)
    state.members[member.member] = replace(member, ending_index=index)
    touch_member(state, member)


def refresh_requests(state: State, task: TaskId) -> None:
    """Requests of the task's leases and waiting members are made anew: its members have moved, or its terms changed."""
    ledger = state.ledger_of(task)
    for identity in state.leases_of.get(task, {}):
        lease = state.leases[identity]
        if lease.state is LeaseState.WANTED:
            ledger.withdraw(leases.request_id(identity))
            ledger.enqueue(state.lease_request(lease))
        else:
            ledger.amend(state.lease_request(lease))
    for member in state.members_of(task):
        if member.state is MemberState.WANTED:
            request = state.member_request(member)
            ledger.withdraw(request.request)
            ledger.enqueue(request)
    state.touched.pools[ledger.pool.name] = None
