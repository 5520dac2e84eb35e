"""Where a task stands, in one sentence a person understands, whatever its state. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from clutch.core.allocation import Allocation
from clutch.core.member import ABSENT, PRESENT, Member
from clutch.core.state import State
from clutch.core.task import Task
from clutch.wire.api import WhyWaiting
from clutch.wire.ids import TaskId
from clutch.wire.link import MemberUse
from clutch.wire.outcomes import AllocationState, MemberState, NodeState, TaskState, TaskWish
from clutch.wire.views import AllocationView, TaskView

Uses = Mapping[str, MemberUse]
"""By member's name: what its agent measured last."""

WISHED = {
    TaskWish.PAUSE: "its user paused it",
    TaskWish.STOP: "it was stopped",
    TaskWish.CANCEL: "it was cancelled",
    TaskWish.KILL: "it was killed",
}
ENDS = {
    "done": "It is done",
    "stopped": "It was stopped",
    "cancelled": "It was cancelled",
    "killed": "It was killed",
    "failed": "It failed",
}


def seconds(value: float) -> str:
    """A length of time as people say it."""
    whole = max(0, round(value))
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min"
    if whole < 172_800:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} days"


def of_live(
    task: Task, allocation: Allocation | None, members: list[Member], waiting: WhyWaiting | None, uses: Uses, now: float
) -> str:
    """For a task that has not ended."""
    if task.state is TaskState.PAUSED:
        return "It is paused: it waits until it is resumed."
    if task.state is TaskState.RESTING:
        left = seconds(task.rest_until - now)
        rests = f"The cluster failed it {task.setbacks} times in a row, so it rests; it is queued again in {left}."
        return f"{rests}{_trouble(task)}"
    if task.state is TaskState.QUEUED or allocation is None:
        return _queued(task, waiting)
    return _running(task, allocation, members, uses, now)


def _trouble(task: Task) -> str:
    """What was missing where, or what else kept its last run from going on."""
    if task.barred:
        return "".join(f" Not tried on {bar.node} for now: {bar.detail.rstrip('.')}." for bar in task.barred[:4])
    return f" Its last run: {task.setback.rstrip('.')}." if task.setback else ""


def _queued(task: Task, waiting: WhyWaiting | None) -> str:
    again = f" again, after run {task.epoch}" if task.epoch else ""
    if waiting is None:
        return f"It is queued{again}: the scheduler looks at it in a moment.{_trouble(task)}"
    ahead = {0: "it is next in its pool's queue", 1: "1 is ahead of it"}
    place = ahead.get(waiting.position, f"{waiting.position} are ahead of it")
    blockers = f", and waits for {', '.join(waiting.blockers)}" if waiting.blockers else ""
    return f"It is queued{again}: {waiting.detail or waiting.code}; {place}{blockers}.{_trouble(task)}"


def _running(task: Task, allocation: Allocation, members: list[Member], uses: Uses, now: float) -> str:
    nodes = list(dict.fromkeys(m.placement.node for m in members if m.placement is not None))
    where = f"on {', '.join(nodes[:4])}{' and others' if len(nodes) > 4 else ''}" if nodes else "nowhere yet"
    backends = sorted({use.backend for use in uses.values()})
    how = f" with {' and '.join(backends)}" if backends else ""
    detail = f": {allocation.detail.rstrip('.')}" if allocation.detail else ""
    over = f"Run {allocation.epoch} is over ({allocation.verdict}){detail}"
    match allocation.state:
        case AllocationState.PLACED:
            starting = f"It is starting {where}{how} (run {allocation.epoch}): {_starting(members, uses)}."
            return f"{starting}{_resting(members, now)}{_trouble(task)}"
        case AllocationState.LEAVING:
            leave = allocation.leave
            reason = f" ({leave.reason})" if leave is not None else ""
            left = seconds((leave.deadline if leave is not None else now) - now)
            acked = "and has said that it will" if leave is not None and leave.acked else "and has not answered yet"
            return f"It was asked to leave {where}{reason} within {left}, {acked}."
        case AllocationState.ENDING:
            return f"{over}; what still runs {where} is being ended."
        case AllocationState.FLUSHING:
            left = seconds(allocation.flush_deadline - now)
            return f"{over}; its last output and metrics are being stored, for at most {left}."
    up = sum(m.state is MemberState.RUNNING for m in members)
    count = f"{up} of its {len(members)} members run" if len(members) > 1 else "It runs"
    wished = f"; {WISHED[task.wish]}" if task.wish in WISHED else ""
    since = seconds(now - allocation.began_at)
    return f"{count} {where}{how} since {since} (run {allocation.epoch}){wished}.{_resting(members, now)}"


def _resting(members: list[Member], now: float) -> str:
    """Members that are wanted again and wait, each with what keeps it from running."""
    found = []
    for member in members:
        if member.state in ABSENT and member.setback:
            rests = member.state is MemberState.RESTING
            how = f"rests for {seconds(member.rest_until - now)}" if rests else "waits for a place"
            found.append(f" {member.member} {how}; before: {member.setback.rstrip('.')}.")
    return "".join(found[:3])


def awaited(state: State, task: TaskId, now: float) -> str:
    """Which silent nodes an end waits for, because what ran there may still run; as a sentence to add, or nothing."""
    allocation = state.allocations.get(task)
    if allocation is None or allocation.state is not AllocationState.ENDING:
        return ""
    left = [m for m in state.members_of(task) if m.state in PRESENT and m.placement is not None]
    silent: dict[str, float] = {}
    for node in dict.fromkeys(state.nodes.get(m.placement.node) for m in left if m.placement is not None):
        if node is not None and node.state in (NodeState.SUSPECT, NodeState.UNREPORTED):
            silent[node.node] = node.since + state.pools[node.pool].node_lost_after_s - now
    if not silent:
        return ""
    each = ", ".join(f"{name} (given up in {seconds(left_s)})" for name, left_s in list(silent.items())[:4])
    why = " Until then it is open whether this counts as a failure." if allocation.open else ""
    return f" It waits for what ran on {each}: no word comes from there.{why}"


def _starting(members: list[Member], uses: Uses) -> str:
    doing = [f"{name} is {use.doing}" for name, use in uses.items() if use.doing]
    if doing:
        return ", ".join(doing[:3])
    waiting = [m for m in members if m.state in (MemberState.PLACED, MemberState.STARTING)]
    return f"{len(waiting)} of {len(members)} members are not up yet"


def of_ended(task: TaskView, last: AllocationView | None) -> str:
    """For a task that has."""
    end = ENDS.get(task.reason, "It has ended")
    if last is None:
        return f"{end}{_detail(task.detail)}; it never ran."
    took = seconds(task.ended_at - last.began_at)
    code = f" with exit code {last.exit_code}" if last.exit_code else ""
    restarts = f" and {task.restarts} failures" if task.restarts else ""
    where = f" on {last.nodes.replace(',', ', ')}" if last.nodes else ""
    return f"{end}{code}{_detail(task.detail)}; run {last.epoch}{restarts}, the last one{where}, took {took}."


def _detail(detail: str) -> str:
    return f": {detail.rstrip('.')}" if detail else ""
