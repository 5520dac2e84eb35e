"""How allocations move on: granted, leaving, ending, flushing, ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from clutch.core import allocation as allocations
from clutch.core import member as members
from clutch.core import task as tasks
from clutch.core.allocation import Allocation, Leave
from clutch.core.deadlines import Due
from clutch.core.folds.indexes import (
    end_member,
    enqueue,
    hold,
    put_allocation,
    put_task,
    touch_member,
    unqueue_member,
)
from clutch.core.member import Member
from clutch.core.recorded import Recorded
from clutch.core.state import State
from clutch.core.task import Task
from clutch.wire import facts as f
from clutch.wire.ids import MemberId, RequestId
from clutch.wire.outcomes import AllocationState, MemberState, TaskState, Verdict
from clutch.wire.schedule import PreemptReason

replace = msgspec.structs.replace


def _allocation_granted(state: State, fact: f.AllocationGranted, recorded: Recorded) -> None:
    task = state.tasks[fact.task]
    tasks.TABLE.move(task.state, TaskState.RUNNING, f"task {task.task}")
    ids = []
    for placed in fact.members:
        placement = placed.placement
        member = Member(
            member=MemberId(task.task, placement.role, placement.rank),
            epoch=fact.epoch,
            incarnation=1,
            state=MemberState.PLACED,
            placement=placement,
            lease_number=placed.lease_number,
            placed_at=recorded.at,
        )
        ids.append(member.member)
        state.members[member.member] = member
        state.members_on.setdefault(placement.node, {})[member.member] = None
    hold(state, task, tuple(p.placement for p in fact.members), recorded.at, backfilled=fact.backfilled)
    put_task(state, replace(task, state=TaskState.RUNNING, epoch=fact.epoch))
    allocation = Allocation(
        task=task.task,
        epoch=fact.epoch,
        state=AllocationState.PLACED,
        members=tuple(ids),
        began_at=recorded.at,
        backfilled=fact.backfilled,
    )
    put_allocation(state, allocation)


def _allocation_ran(state: State, fact: f.AllocationRan, recorded: Recorded) -> None:
    put_allocation(state, allocations.moved(state.allocations[fact.task], AllocationState.RUNNING))
    task = state.tasks[fact.task]
    if not task.has_run or task.lacks_since:
        put_task(state, replace(task, has_run=True, lacks_since=0.0))


def _leave_asked(state: State, fact: f.LeaveAsked, recorded: Recorded) -> None:
    allocation = allocations.moved(state.allocations[fact.task], AllocationState.LEAVING)
    leave = Leave(fact.reason, fact.deadline)
    put_allocation(state, replace(allocation, leave=leave, beneficiary=fact.beneficiary))
    state.deadlines.set(Due.LEAVE, fact.task, fact.deadline)
    _give_up_wanted(state, allocation)
    task = state.tasks[fact.task]
    if fact.reason is PreemptReason.PREEMPTED:
        task = replace(task, last_victim_at=recorded.at)
        put_task(state, task)
    _mark_leaving(state, task)


def _mark_leaving(state: State, task: Task) -> None:
    ledger = state.ledgers[task.spec.pool]
    if RequestId(task.task) in ledger.holdings:
        whom = state.allocations[task.task].beneficiary
        ledger.mark(RequestId(task.task), leaving=True, leaving_for=whom, last_victim_at=task.last_victim_at)
    state.touched.pools[task.spec.pool] = None


def _leave_acked(state: State, fact: f.LeaveAcked, recorded: Recorded) -> None:
    allocation = state.allocations[fact.task]
    assert allocation.leave is not None
    put_allocation(state, replace(allocation, leave=replace(allocation.leave, acked=True)))


def _finish_declared(state: State, fact: f.FinishDeclared, recorded: Recorded) -> None:
    put_allocation(state, replace(state.allocations[fact.task], finished=True))


def _allocation_ending(state: State, fact: f.AllocationEnding, recorded: Recorded) -> None:
    allocation = allocations.moved(state.allocations[fact.task], AllocationState.ENDING)
    beneficiary = fact.beneficiary or allocation.beneficiary
    put_allocation(
        state,
        replace(allocation, verdict=fact.verdict, detail=fact.detail, beneficiary=beneficiary, open=fact.open),
    )
    state.deadlines.clear(Due.LEAVE, fact.task)
    _mark_leaving(state, state.tasks[fact.task])
    _give_up_wanted(state, allocation)
    for identity in allocation.members:
        member = state.members[identity]
        if member.state in members.PRESENT and member.state is not MemberState.ENDING:
            end_member(state, member, recorded.index)


def _verdict_found(state: State, fact: f.VerdictFound, recorded: Recorded) -> None:
    allocation = state.allocations[fact.task]
    put_allocation(state, replace(allocation, verdict=fact.verdict, detail=fact.detail, open=False))
    put_task(state, replace(state.tasks[fact.task], partings=fact.partings))


def _give_up_wanted(state: State, allocation: Allocation) -> None:
    """Members that still wait for a place will not get one: their allocation is on its way out."""
    for identity in allocation.members:
        member = state.members[identity]
        if member.state in members.ABSENT:
            unqueue_member(state, member)
            state.members[identity] = members.moved(member, MemberState.LOST)


def _flush_began(state: State, fact: f.FlushBegan, recorded: Recorded) -> None:
    allocation = allocations.moved(state.allocations[fact.task], AllocationState.FLUSHING)
    put_allocation(state, replace(allocation, flush_deadline=fact.deadline))
    state.deadlines.set(Due.FLUSH, fact.task, fact.deadline)


def _allocation_ended(state: State, fact: f.AllocationEnded, recorded: Recorded) -> None:
    allocation = allocations.moved(state.allocations.pop(fact.task), AllocationState.ENDED)
    gone = tuple(state.members.pop(member) for member in allocation.members)
    for member in gone:
        touch_member(state, member)
    state.touched.ended_allocations[fact.task, fact.epoch] = (replace(allocation, ended_at=recorded.at), gone)
    state.deadlines.clear(Due.FLUSH, fact.task)
    hindered = allocation.verdict is Verdict.INFRASTRUCTURE
    task = replace(
        state.tasks[fact.task],
        failures=fact.failures,
        setbacks=fact.setbacks,
        setback=allocation.detail if hindered else "",
        rest_until=fact.rest_until,
    )
    if fact.to is TaskState.ENDED:  # the fact that follows in the same batch says why, and takes it out of the state
        put_task(state, task)
        return
    tasks.TABLE.move(task.state, fact.to, f"task {task.task}")
    task = replace(task, state=fact.to)
    put_task(state, task)
    if fact.to is TaskState.QUEUED:
        enqueue(state, task)
    elif fact.to is TaskState.RESTING:
        state.deadlines.set(Due.REST, fact.task, fact.rest_until)


HANDLERS: dict[type[f.Fact], Callable[[State, Any, Recorded], None]] = {
    f.AllocationGranted: _allocation_granted,
    f.AllocationRan: _allocation_ran,
    f.LeaveAsked: _leave_asked,
    f.LeaveAcked: _leave_acked,
    f.FinishDeclared: _finish_declared,
    f.AllocationEnding: _allocation_ending,
    f.VerdictFound: _verdict_found,
    f.FlushBegan: _flush_began,
    f.AllocationEnded: _allocation_ended,
}
