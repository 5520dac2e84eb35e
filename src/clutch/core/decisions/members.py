"""Members: exited, lost, asked to leave, wanted again."""

from __future__ import annotations

from collections.abc import Iterator

from clutch.core import allocation as allocation_machine
from clutch.core import member as machine
from clutch.core.decisions import allocations, leases
from clutch.core.member import Member
from clutch.core.patience import rest_s, setbacks_after
from clutch.core.state import State
from clutch.core.task import leads
from clutch.core.verdicts import told
from clutch.wire import facts as f
from clutch.wire.containers import SIGTERM
from clutch.wire.ids import MemberId, TaskId
from clutch.wire.messages import INFRASTRUCTURE, Exit, ExitCause
from clutch.wire.outcomes import AllocationState, MemberState, NodeState, Verdict
from clutch.wire.schedule import PreemptReason
from clutch.wire.specs import OnDeath

Facts = Iterator[f.Fact]

TERMINATED = (-SIGTERM, 128 + SIGTERM)
"""How a program that knows nothing of us ends when it is asked to leave; the second through a shell."""


BARRED_S = 120.0
"""So long a node that lacked a task's data is not tried again for it."""


def exited(state: State, member: Member, exit: Exit, now: float) -> Facts:
    """Its shim says how it ended."""
    yield f.MemberExited(member.member, member.fence(state.generation), exit)
    yield from leases.reclaim_of_member(state, member.member, "its member has exited", now)
    if exit.code == 0 and exit.cause is ExitCause.OWN:
        yield from _left_cleanly(state, member, now)
        return
    detail = told(member, exit)
    if exit.cause is ExitCause.OWN and exit.code in TERMINATED:
        allocation = state.allocations[member.member.task]
        if allocation.state is AllocationState.LEAVING:
            yield from _terminated(state, member, detail, now)
            return
        if member.leave_reason is not None and allocation.state not in allocation_machine.ENDED:
            yield from _left_alone(state, member, now)
            return
    if exit.cause is ExitCause.NO_DATA and member.placement is not None:
        yield f.NodeBarred(member.member.task, member.placement.node, now + BARRED_S, exit.reason)
    if exit.cause is ExitCause.REFUSED and not state.tasks[member.member.task].final:
        yield f.RestartsForbidden(member.member.task)  # what was asked for cannot be started, here or elsewhere
    ours = exit.cause in (*INFRASTRUCTURE, ExitCause.ENDED, ExitCause.PEER_LOST)
    yield from _died(state, member, Verdict.INFRASTRUCTURE if ours else Verdict.FAILED, detail, now)


def _terminated(state: State, member: Member, detail: str, now: float) -> Facts:
    """A plain command died of the signal that asked it to leave: it has not failed. The others keep their window."""
    task = member.member.task
    if all(m.state in machine.GONE for m in state.members_of(task)):
        allocation = state.allocations[task]
        acked = allocation.leave is not None and allocation.leave.acked
        verdict = allocation_machine.clean_exit_verdict(allocation) if acked else Verdict.EVICTED
        yield from allocations.end(state, task, verdict, detail, now)
    else:
        yield from perhaps_done(state, task, now)


def lost(state: State, member: Member, detail: str, now: float) -> Facts:
    """Nobody will ever say how it ended. From here on its fence is refused."""
    yield f.MemberLost(member.member, member.fence(state.generation), detail)
    assert member.placement is not None
    unreachable = state.nodes[member.placement.node].state in (NodeState.LOST, NodeState.SUSPECT)
    if unreachable:
        yield from leases.lost_with_member(state, member.member)
    else:
        yield from leases.reclaim_of_member(state, member.member, detail, now)
    yield from _died(state, member, Verdict.INFRASTRUCTURE, f"{member.member}: {detail}", now)


def _left_cleanly(state: State, member: Member, now: float) -> Facts:
    task = member.member.task
    allocation = state.allocations[task]
    if allocation.state in allocation_machine.ENDED:
        yield from allocations.settle(state, task, now)
    elif member.leave_reason is not None and allocation.state is not AllocationState.LEAVING:
        yield from _left_alone(state, member, now)
    else:
        yield from allocations.ran(state, task)
        yield from perhaps_done(state, task, now)


def perhaps_done(state: State, task: TaskId, now: float) -> Facts:
    """When the last of those who decide has gone, and none of them will start again, the allocation is through."""
    spec = state.tasks[task]
    leaders = [m for m in state.members_of(task) if leads(spec.role(m.member.role))]
    deciding = leaders or list(state.members_of(task))
    if deciding and all(m.state in machine.GONE for m in deciding):
        verdict = allocation_machine.clean_exit_verdict(state.allocations[task])
        yield from allocations.end(state, task, verdict, "", now)


def _died(state: State, member: Member, verdict: Verdict, detail: str, now: float) -> Facts:
    """It did not end well: its role says what that means for the others."""
    task = member.member.task
    allocation = state.allocations[task]
    spec = state.tasks[task].spec
    role = state.tasks[task].role(member.member.role)
    if allocation.state in allocation_machine.ENDED:
        yield from allocations.settle(state, task, now)
    elif role.on_death is OnDeath.END:
        yield from allocations.end(state, task, verdict, detail, now)
    elif allocation.state is AllocationState.LEAVING:
        if all(m.state in machine.GONE for m in state.members_of(task)):
            acked = allocation.leave is not None and allocation.leave.acked
            left = allocation_machine.clean_exit_verdict(allocation) if acked else verdict
            yield from allocations.end(state, task, left, detail, now)
    elif member.leave_reason is not None:
        yield from _left_alone(state, member, now)
    else:
        failures = member.failures + (verdict is Verdict.FAILED)
        if failures > spec.max_restarts:
            yield from allocations.end(state, task, Verdict.FAILED, detail, now)
        else:
            setbacks, rest_until = 0, 0.0
            if verdict is Verdict.INFRASTRUCTURE:
                setbacks = setbacks_after(member.setbacks, now - member.placed_at)
                rest_until = now + rest_s(setbacks) if rest_s(setbacks) else 0.0
            yield f.MemberWanted(member.member, member.incarnation + 1, failures, setbacks, rest_until)
            yield from allocations.ran(state, task)


def rest_due(state: State, member: MemberId, now: float) -> Facts:
    """It has rested long enough."""
    yield f.MemberRested(member)


def _left_alone(state: State, member: Member, now: float) -> Facts:
    """A member that was asked to leave by itself has gone: it starts again elsewhere, unless its role is smaller now.

    The role's size decides, not the reason it was given: the role may have been resized again meanwhile.
    """
    identity = member.member
    task = state.tasks[identity.task]
    if identity.rank < task.count(task.role(identity.role)):
        yield f.MemberWanted(identity, member.incarnation + 1, member.failures)
        yield from allocations.ran(state, identity.task)
    else:
        yield f.MemberRemoved(identity)
        yield from allocations.ran(state, identity.task)
        yield from perhaps_done(state, identity.task, now)


def ask_leave(state: State, member: Member, reason: PreemptReason, now: float) -> Facts:
    if machine.TABLE.allows(member.state, MemberState.LEAVING):
        deadline = now + state.tasks[member.member.task].spec.leave_within_s
        yield f.MemberLeaveAsked(member.member, reason, deadline)
        yield from allocations.ran(state, member.member.task)


def leave_due(state: State, member: MemberId, now: float) -> Facts:
    """Its window is over: it is ended, and replaced or removed when it is gone. On a lost node it is gone already."""
    yield f.MemberEnding(member)
    ending = state.members[member]
    assert ending.placement is not None
    if state.nodes[ending.placement.node].state is NodeState.LOST:
        yield from lost(state, ending, "its node is lost", now)
