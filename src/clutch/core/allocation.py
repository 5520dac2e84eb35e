"""An allocation: one run of a task, numbered by its epoch, from its grant until the store has caught up with it.

It may know its members' ids, why it must leave and by when, and how it went. It never knows what becomes of its task
afterwards: ``core.task.after_allocation`` decides that from the verdict and the user's wish.
"""

from __future__ import annotations

import msgspec

from clutch.core.machine import Table
from clutch.wire.ids import Epoch, Incarnation, MemberId, RequestId, TaskId
from clutch.wire.outcomes import AllocationState, Verdict
from clutch.wire.schedule import PreemptReason

TABLE = Table(
    "allocation",
    {
        AllocationState.PLACED: (AllocationState.RUNNING, AllocationState.ENDING),
        AllocationState.RUNNING: (AllocationState.LEAVING, AllocationState.ENDING),
        AllocationState.LEAVING: (AllocationState.ENDING,),
        AllocationState.ENDING: (AllocationState.FLUSHING, AllocationState.ENDED),
        AllocationState.FLUSHING: (AllocationState.ENDED,),
        AllocationState.ENDED: (),
    },
)

ENDED = (AllocationState.ENDING, AllocationState.FLUSHING, AllocationState.ENDED)
"""States in which the verdict is known."""


class Leave(msgspec.Struct, frozen=True):
    """It was asked to give everything back."""

    reason: PreemptReason
    deadline: float
    acked: bool = False


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    task: TaskId
    epoch: Epoch
    state: AllocationState
    members: tuple[MemberId, ...]
    began_at: float
    backfilled: bool = False
    leave: Leave | None = None
    finished: bool = False
    """Its program declared the work complete."""
    verdict: Verdict | None = None
    detail: str = ""
    open: bool = False
    """Members lost a peer: the verdict holds unless what the others tell says otherwise."""
    beneficiary: RequestId | None = None
    """For whom its room is meant once it has left."""
    flush_deadline: float = 0.0
    ended_at: float = 0.0
    retired: dict[str, Incarnation] = {}
    """Ranks that their role gave up, and their last incarnation: one that comes back must be a later one."""

    @property
    def name(self) -> str:
        return f"allocation {self.task}:{self.epoch}"

    def next_incarnation(self, member: MemberId) -> Incarnation:
        """For a rank that its role has not now."""
        return 1 + self.retired.get(f"{member.role}.{member.rank}", 0)


def moved(allocation: Allocation, to: AllocationState) -> Allocation:
    TABLE.move(allocation.state, to, allocation.name)
    return msgspec.structs.replace(allocation, state=to)


def clean_exit_verdict(allocation: Allocation) -> Verdict:
    """What exit 0 of all leading members means: done, unless the work only left because it was asked to."""
    if allocation.finished or allocation.leave is None or not allocation.leave.acked:
        return Verdict.DONE
    return Verdict.LEFT
