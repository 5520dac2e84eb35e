"""Who may still write: the check that every word of a member passes first."""

from __future__ import annotations

from clutch.core import member as members
from clutch.core.allocation import Allocation
from clutch.core.state import State
from clutch.wire.errors import Stale
from clutch.wire.ids import Fence, MemberId, TaskId


def allocation_of(state: State, task: TaskId, member: MemberId, fence: Fence) -> Allocation:
    """The live allocation that this member may speak for. ``Stale`` when it is from an earlier life."""
    known = state.members.get(member)
    if (
        member.task != task
        or known is None
        or known.fence(state.generation) != fence
        or known.state not in members.PRESENT
    ):
        current = str(known.fence(state.generation)) if known is not None else "none"
        raise Stale(
            f"it writes as {fence}; the current incarnation is {current}",
            object=f"member {member}",
            next_step="Stop: another incarnation has taken over, or the task has ended.",
        )
    return state.allocations[task]
