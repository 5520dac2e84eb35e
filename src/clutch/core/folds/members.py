"""How members move on, and with them what they hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from clutch.core import member as members
from clutch.core.deadlines import Due
from clutch.core.folds.indexes import (
    end_member,
    hold,
    put_allocation,
    queue_member,
    refresh_requests,
    touch_member,
    unqueue_member,
)
from clutch.core.member import Member
from clutch.core.recorded import Recorded
from clutch.core.state import State
from clutch.core.verdicts import setback_of
from clutch.wire import facts as f
from clutch.wire.ids import RequestId
from clutch.wire.messages import MemberStatus
from clutch.wire.outcomes import MemberState

replace = msgspec.structs.replace


def _member_observed(state: State, fact: f.MemberObserved, recorded: Recorded) -> None:
    member = replace(state.members[fact.member], observed=True)
    to = MemberState.RUNNING if fact.status is MemberStatus.RUNNING else MemberState.STARTING
    if members.TABLE.allows(member.state, to):
        member = members.moved(member, to)
    state.members[fact.member] = member
    state.touched.tasks[fact.member.task] = None


def _member_exited(state: State, fact: f.MemberExited, recorded: Recorded) -> None:
    member = replace(state.members[fact.member], exit=fact.exit)
    _member_gone(state, member, MemberState.EXITED)


def _member_lost(state: State, fact: f.MemberLost, recorded: Recorded) -> None:
    _member_gone(state, state.members[fact.member], MemberState.LOST)


def _member_gone(state: State, member: Member, to: MemberState) -> None:
    state.deadlines.clear(Due.MEMBER_LEAVE, str(member.member))
    state.members[member.member] = members.moved(member, to)
    state.touched.tasks[member.member.task] = None
    touch_member(state, member)
    assert member.placement is not None
    del state.members_on[member.placement.node][member.member]
    task = state.tasks[member.member.task]
    role_rank = (member.member.role, member.member.rank)
    state.ledgers[task.spec.pool].release_part(RequestId(task.task), (role_rank,))
    state.touched.pools[task.spec.pool] = None
    refresh_requests(state, task.task)


def _member_wanted(state: State, fact: f.MemberWanted, recorded: Recorded) -> None:
    known = state.members.get(fact.member)
    to = MemberState.RESTING if fact.rest_until else MemberState.WANTED
    if known is not None:
        members.TABLE.move(known.state, to, f"member {fact.member}")
    allocation = state.allocations[fact.member.task]
    member = Member(
        member=fact.member,
        epoch=allocation.epoch,
        incarnation=fact.incarnation,
        state=to,
        failures=fact.failures,
        setbacks=fact.setbacks,
        setback=setback_of(known) if known is not None and fact.setbacks else "",
        rest_until=fact.rest_until,
    )
    state.members[fact.member] = member
    if known is None:
        ids = (*allocation.members, fact.member)
        state.allocations[fact.member.task] = replace(allocation, members=ids)
    if to is MemberState.RESTING:
        state.deadlines.set(Due.MEMBER_REST, str(fact.member), fact.rest_until)
    else:
        queue_member(state, member)
    state.touched.tasks[fact.member.task] = None


def _member_rested(state: State, fact: f.MemberRested, recorded: Recorded) -> None:
    state.deadlines.clear(Due.MEMBER_REST, str(fact.member))
    member = members.moved(state.members[fact.member], MemberState.WANTED)
    state.members[fact.member] = member
    queue_member(state, member)
    state.touched.tasks[fact.member.task] = None


def _member_granted(state: State, fact: f.MemberGranted, recorded: Recorded) -> None:
    member = state.members[fact.member]
    unqueue_member(state, member)
    placement = fact.placed.placement
    member = members.moved(member, MemberState.PLACED)
    state.members[fact.member] = replace(
        member, placement=placement, lease_number=fact.placed.lease_number, placed_at=recorded.at
    )
    state.members_on.setdefault(placement.node, {})[fact.member] = None
    task = state.tasks[fact.member.task]
    ledger = state.ledgers[task.spec.pool]
    if RequestId(task.task) in ledger.holdings:
        ledger.extend(RequestId(task.task), (placement,))
    else:
        backfilled = state.allocations[task.task].backfilled
        hold(state, task, (placement,), recorded.at, backfilled=backfilled)
    state.touched.nodes[placement.node] = None
    state.touched.tasks[task.task] = None
    refresh_requests(state, task.task)


def _member_leave_asked(state: State, fact: f.MemberLeaveAsked, recorded: Recorded) -> None:
    member = members.moved(state.members[fact.member], MemberState.LEAVING)
    state.members[fact.member] = replace(member, leave_reason=fact.reason, deadline=fact.deadline)
    state.deadlines.set(Due.MEMBER_LEAVE, str(fact.member), fact.deadline)
    touch_member(state, member)


def _member_ending(state: State, fact: f.MemberEnding, recorded: Recorded) -> None:
    end_member(state, state.members[fact.member], recorded.index)


def _member_removed(state: State, fact: f.MemberRemoved, recorded: Recorded) -> None:
    member = state.members.pop(fact.member)
    unqueue_member(state, member)
    allocation = state.allocations[fact.member.task]
    kept = tuple(m for m in allocation.members if m != fact.member)
    retired = {**allocation.retired, f"{fact.member.role}.{fact.member.rank}": member.incarnation}
    put_allocation(state, replace(allocation, members=kept, retired=retired))


def _lanes_reached(state: State, fact: f.LanesReached, recorded: Recorded) -> None:
    state.members[fact.member] = replace(
        state.members[fact.member], metrics_reached=fact.metrics_sequence, output_reached=fact.output_offset
    )


HANDLERS: dict[type[f.Fact], Callable[[State, Any, Recorded], None]] = {
    f.MemberObserved: _member_observed,
    f.MemberExited: _member_exited,
    f.MemberLost: _member_lost,
    f.MemberWanted: _member_wanted,
    f.MemberRested: _member_rested,
    f.MemberGranted: _member_granted,
    f.MemberLeaveAsked: _member_leave_asked,
    f.MemberEnding: _member_ending,
    f.MemberRemoved: _member_removed,
    f.LanesReached: _lanes_reached,
}
