"""Where a member stands, read from the live state: may it still speak, who are its peers, must it leave.

Pure questions. ``Standing`` is made for one call and thrown away; a call that waits makes a new one when it wakes.
"""

from __future__ import annotations

import msgspec

from clutch.core.allocation import Allocation
from clutch.core.barriers import Seat
from clutch.core.decisions.fences import allocation_of
from clutch.core.member import Member
from clutch.core.state import State
from clutch.core.task import Task
from clutch.wire.errors import NotAllowed
from clutch.wire.ids import Fence, MemberId, NodeId
from clutch.wire.push import Preemption, RunInfo
from clutch.wire.resources import Resources
from clutch.wire.schedule import Placement
from clutch.wire.specs import Members


class Speaker(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who speaks like a member and holds nothing of the cluster: a run that goes on elsewhere."""

    task: Task
    allocation: Allocation
    member: Member


class Standing:
    """A member that may speak now. ``Stale`` for one whose incarnation is over.

    ``guest`` is who speaks instead of a member of an allocation, if somebody does.
    """

    def __init__(self, state: State, member: MemberId, fence: Fence, guest: Speaker | None = None) -> None:
        if guest is None:
            allocation = allocation_of(state, member.task, member, fence)
            guest = Speaker(task=state.tasks[member.task], allocation=allocation, member=state.members[member])
            self.is_guest = False
        else:
            self.is_guest = True
        self.allocation: Allocation = guest.allocation
        self.task: Task = guest.task
        self.member: Member = guest.member
        self.fence = fence
        self._state = state

    @property
    def seat(self) -> Seat:
        return (self.member.member.role, self.member.member.rank)

    @property
    def seats(self) -> tuple[Seat, ...]:
        """Everybody of the allocation, in the order of ranks."""
        return tuple((member.role, member.rank) for member in self.allocation.members)

    @property
    def rank(self) -> int:
        return self.allocation.members.index(self.member.member)

    def node_of(self, seat: Seat) -> NodeId:
        """Where that member of the allocation is; empty while it has no place."""
        member = self._state.members.get(MemberId(self.task.task, *seat))
        return member.placement.node if member is not None and member.placement is not None else NodeId("")

    def preemption(self, now: float) -> Preemption:
        """Whether it must leave: with its whole allocation, or alone."""
        leave = self.allocation.leave
        if leave is not None:
            reason, deadline, acked = leave.reason, leave.deadline, leave.acked
        elif self.member.leave_reason is not None:
            reason, deadline, acked = self.member.leave_reason, self.member.deadline, False
        else:
            return Preemption(asked=False)
        return Preemption(
            asked=True, reason=reason, deadline=deadline, remaining_s=max(0.0, deadline - now), acknowledged=acked
        )

    def info(self, now: float) -> RunInfo:
        spec, member = self.task.spec, self.member.member
        placement = self.member.placement
        slots = placement.slots if placement is not None else ()
        return RunInfo(
            task=member.task,
            name=spec.name,
            kind=spec.kind,
            workspace=spec.workspace,
            owner=spec.owner,
            pool=spec.pool,
            role=member.role,
            role_rank=member.rank,
            rank=self.rank,
            size=len(self.allocation.members),
            node=placement.node if placement is not None else "",
            slots=slots,
            resources=self._resources(placement),
            epoch=self.allocation.epoch,
            incarnation=self.member.incarnation,
            restarts=self.task.failures,
            checkpoint=self.task.checkpoint,
            checkpoint_step=self.task.step,
            leave_within_s=spec.leave_within_s,
            preemption=self.preemption(now),
        )

    def _resources(self, placement: Placement | None) -> Resources:
        """What it asks for; where the wish left something open, what it got."""
        shape = self.task.role(self.member.member.role).shape
        if isinstance(shape, Members):
            each = shape.each
            return each if placement is None else msgspec.structs.replace(each, kind=placement.kind)
        slots = len(placement.slots) if placement is not None else 0
        return Resources(
            slots=slots,
            kind=shape.kind if placement is None else placement.kind,
            millicpus=shape.millicpus_per_slot * slots,
            memory_bytes=shape.memory_bytes_per_slot * slots,
        )


def require_member(member: MemberId | None, fence: Fence | None) -> tuple[MemberId, Fence]:
    """Who calls, if it is a member."""
    if member is None or fence is None:
        raise NotAllowed("only a member of a task may say this", object="run", next_step="Use a member's own token.")
    return member, fence
