"""Allocations: asked to leave, ended, settled, concluded."""

from __future__ import annotations

from collections.abc import Iterator

from clutch.core import allocation as machine
from clutch.core import member as members
from clutch.core.decisions import leases
from clutch.core.decisions.fences import allocation_of
from clutch.core.patience import rest_s, setbacks_after
from clutch.core.state import State
from clutch.core.task import Task, after_allocation
from clutch.core.verdicts import follows, judged
from clutch.wire import events as e
from clutch.wire import facts as f
from clutch.wire.errors import BadRequest
from clutch.wire.ids import RequestId, TaskId
from clutch.wire.outcomes import AllocationState, EndReason, MemberState, NodeState, TaskState, Verdict
from clutch.wire.schedule import PreemptReason

Facts = Iterator[f.Fact]


def ran(state: State, task: TaskId) -> Facts:
    """Perhaps the last of its members is up now."""
    allocation = state.allocations[task]
    if allocation.state is AllocationState.PLACED and all(
        m.state is not MemberState.PLACED and m.state is not MemberState.STARTING for m in state.members_of(task)
    ):
        yield f.AllocationRan(task, allocation.epoch)


def ask_leave(
    state: State, task: TaskId, reason: PreemptReason, now: float, beneficiary: RequestId | None = None
) -> Facts:
    """Give it its window. What has not run yet has nothing to save and goes at once."""
    allocation = state.allocations[task]
    if allocation.state is AllocationState.PLACED:
        yield from end(state, task, Verdict.EVICTED, f"{reason} before it ran", now, beneficiary)
    elif allocation.state is AllocationState.RUNNING:
        deadline = now + state.tasks[task].spec.leave_within_s
        yield f.LeaveAsked(task, allocation.epoch, reason, deadline, beneficiary)
        if all(m.state in members.GONE for m in state.members_of(task)):
            yield from end(state, task, Verdict.EVICTED, f"{reason} while all of it waited for a place", now)


def ack_leave(state: State, event: e.AckLeave, now: float) -> Facts:
    """It has seen that it must leave. Said twice, it is the same; said when nobody asked, it means nothing."""
    allocation = allocation_of(state, event.task, event.member, event.fence)
    if allocation.leave is not None and not allocation.leave.acked and allocation.state is AllocationState.LEAVING:
        yield f.LeaveAcked(event.task, allocation.epoch)


def declare_finished(state: State, event: e.DeclareFinished, now: float) -> Facts:
    allocation = allocation_of(state, event.task, event.member, event.fence)
    if not allocation.finished:
        yield f.FinishDeclared(event.task, allocation.epoch)


def commit_checkpoint(state: State, event: e.CommitCheckpoint, now: float) -> Facts:
    """The latest whole checkpoint. One that was overtaken by a later step (a late repetition) changes nothing."""
    allocation = allocation_of(state, event.task, event.member, event.fence)
    task = state.tasks[event.task]
    if not event.checkpoint or event.step < 0:
        raise BadRequest(
            f"checkpoint {event.checkpoint!r} of step {event.step} is not one",
            object=f"task {event.task}",
            next_step="Name the checkpoint and give its step, at least 0.",
        )
    if event.checkpoint != task.checkpoint and (not task.checkpoint or event.step >= task.step):
        yield f.CheckpointCommitted(
            event.task, allocation.epoch, event.checkpoint, event.step, event.size_bytes, event.storage
        )


def leave_due(state: State, task: TaskId, now: float) -> Facts:
    yield from end(state, task, Verdict.EVICTED, "its window to leave is over", now)


def end(
    state: State, task: TaskId, verdict: Verdict, detail: str, now: float, beneficiary: RequestId | None = None
) -> Facts:
    """Its verdict is known. Whatever still runs of it is ended; what cannot be reached any more is given up."""
    allocation = state.allocations[task]
    if allocation.state in machine.ENDED:
        return
    unsure = verdict in (Verdict.INFRASTRUCTURE, Verdict.FAILED) and any(map(follows, state.members_of(task)))
    yield f.AllocationEnding(task, allocation.epoch, verdict, detail, beneficiary, open=unsure)
    for identity in allocation.members:
        member = state.members.get(identity)
        if member is None or member.state is not MemberState.ENDING or member.placement is None:
            continue
        if state.nodes[member.placement.node].state is NodeState.LOST:
            yield f.MemberLost(identity, member.fence(state.generation), "its node is lost")
    yield from leases.reclaim_all(state, task, "its task has ended", now)
    yield from leases.give_up_unreachable(state, task)
    yield from settle(state, task, now)


def settle(state: State, task: TaskId, now: float) -> Facts:
    """Move on when the last member and the last lease are gone, and then when the store has caught up."""
    allocation = state.allocations.get(task)
    if allocation is None or allocation.state not in (AllocationState.ENDING, AllocationState.FLUSHING):
        return
    gone = all(m.state in members.GONE for m in state.members_of(task))
    if not gone or state.leases_of.get(task):
        return
    if allocation.open:
        yield judged(state, task)
    if all(m.flushed for m in state.members_of(task)):
        yield from conclude(state, task, True, now)
    elif allocation.state is AllocationState.ENDING:
        deadline = now + state.tasks[task].spec.flush_deadline_s
        yield f.FlushBegan(task, allocation.epoch, deadline)


def rest_due(state: State, task: TaskId, now: float) -> Facts:
    """It has rested long enough."""
    yield f.TaskMoved(task, TaskState.QUEUED)


def flush_due(state: State, task: TaskId, now: float) -> Facts:
    yield from conclude(state, task, False, now)


def conclude(state: State, task: TaskId, flushed: bool, now: float) -> Facts:
    """The allocation is history; the exit rules say what becomes of its task."""
    allocation = state.allocations[task]
    assert allocation.verdict is not None
    after = after_allocation(state.tasks[task], allocation.verdict)
    to, setbacks, rest_until = after.to, 0, 0.0
    if allocation.verdict is Verdict.INFRASTRUCTURE:
        setbacks = setbacks_after(state.tasks[task].setbacks, now - allocation.began_at)
        if to is TaskState.QUEUED and rest_s(setbacks):
            to, rest_until = TaskState.RESTING, now + rest_s(setbacks)
    missing = lacks_for_good(state, state.tasks[task], now) if after.to is TaskState.QUEUED else ""
    if missing:
        to, rest_until = TaskState.ENDED, 0.0
    yield f.AllocationEnded(task, allocation.epoch, to, after.failures, flushed, setbacks, rest_until)
    if missing:
        yield f.TaskEnded(task, EndReason.FAILED, missing)
    if after.to is TaskState.ENDED:
        assert after.reason is not None
        detail = "" if after.reason is EndReason.DONE else allocation.detail
        yield f.TaskEnded(task, after.reason, detail)


def lacks_for_good(state: State, task: Task, now: float) -> str:
    """Why a task whose data is not there is not tried again; empty: it is.

    One that has never run was told a wrong path, as far as anybody can tell, when no node is left to try. One that has
    run gets the time that it takes to repair a share.
    """
    if not task.lacks_since or not task.barred:
        return ""
    pool = task.spec.pool
    tried = {bar.node for bar in task.barred}.union(task.excluded, task.spec.excluded_nodes)
    left = [node for node in state.nodes.values() if node.pool == pool and node.node not in tried]
    why = task.barred[-1].detail.rstrip(".")
    if not task.has_run and not left and state.pools[pool].autoscale is None:
        return f"no node of pool {pool} has what it needs: {why}."
    if now - task.lacks_since >= task.spec.data_wait_s:
        return f"what it needs was missing for more than {task.spec.data_wait_s:g} s: {why}."
    return ""


def reach_lanes(state: State, event: e.ReachLanes, now: float) -> Facts:
    """The store has more of a member's output and metrics. Only what somebody waits for becomes a fact."""
    member = state.members.get(event.member)
    if member is None or member.fence(state.generation) != event.fence or member.state is not MemberState.EXITED:
        return
    metrics = max(member.metrics_reached, event.metrics_sequence)
    output = max(member.output_reached, event.output_offset)
    if (metrics, output) == (member.metrics_reached, member.output_reached):
        return
    yield f.LanesReached(event.member, event.fence, metrics, output)
    yield from settle(state, event.member.task, now)
