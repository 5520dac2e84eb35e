"""What a node should have on it, derived from the state and never stored.

The effects that converge (start, leave, end, release) are all in here: the agent compares it with what it observes and
does the difference. It is sent again until the agent's report reflects it.
"""

from __future__ import annotations

from clutch.core import member as members
from clutch.core.member import Member
from clutch.core.node import HEARD
from clutch.core.state import State
from clutch.wire.ids import NodeId
from clutch.wire.messages import Phase, Wanted, WantedLease, WantedMember
from clutch.wire.outcomes import AllocationState


def may_be_ordered(state: State, node: NodeId) -> bool:
    """Nothing is said to a node before it has reported to this term."""
    found = state.nodes.get(node)
    return found is not None and (found.state in HEARD or bool(found.strays))


def wanted(state: State, node: NodeId) -> Wanted:
    """Everything wanted on a node as of the state's last fact, whose index numbers it."""
    on_node = (state.members[m] for m in state.members_on.get(node, {}))
    leases_on = (state.leases[lease] for lease in state.leases_on.get(node, {}))
    return Wanted(
        node=node,
        session=state.nodes[node].session,
        generation=state.generation,
        term=state.term,
        sequence=state.index,
        members=tuple(_member(state, m) for m in on_node if m.state in members.PRESENT),
        leases=tuple(
            WantedLease(
                lease=lease.lease,
                number=lease.number,
                member=lease.members[0],
                fence=state.members[lease.members[0]].fence(state.generation),
                phase=lease.phase,
                slots=lease.placement.slots if lease.placement else (),
                deadline=lease.deadline,
            )
            for lease in leases_on
            if lease.members[0] in state.members
        ),
    )


def _member(state: State, member: Member) -> WantedMember:
    task = state.tasks[member.member.task]
    allocation = state.allocations[member.member.task]
    phase, deadline, reason = member.phase, member.deadline, member.leave_reason
    if phase is Phase.RUN and allocation.state is AllocationState.LEAVING and allocation.leave is not None:
        phase, deadline, reason = Phase.LEAVE, allocation.leave.deadline, allocation.leave.reason
    return WantedMember(
        member=member.member,
        fence=member.fence(state.generation),
        phase=phase,
        slots=member.placement.slots if member.placement else (),
        lease_number=member.lease_number,
        deadline=deadline,
        reason=reason,
        checkpoint=task.checkpoint,
        payload=b"" if member.observed else task.spec.payload,  # only a start needs it, and it may be large
        millicpus=member.placement.millicpus if member.placement else 0,
        memory_bytes=member.placement.memory_bytes if member.placement else 0,
        members=len(allocation.members),
    )
