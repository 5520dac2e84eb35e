"""Which node, incarnation and port a proxied address means. Pure, over the live state and what agents measure."""

from __future__ import annotations

import msgspec

from clutch.core.state import State
from clutch.wire.errors import BadRequest, Conflict, NotFound
from clutch.wire.ids import Fence, MemberId, NodeId, TaskId
from clutch.wire.link import MemberUse
from clutch.wire.outcomes import MemberState
from clutch.wire.programs import program_in


class Target(msgspec.Struct, frozen=True):
    node: NodeId
    member: MemberId
    fence: Fence
    port: int


def target(state: State, task: TaskId, port: int, uses: tuple[MemberUse, ...]) -> Target:
    """Where this port of a task is now: on its first running member. ``port`` is one the program named, or the real
    number of one it left open (0)."""
    found = state.task(task)
    program = program_in(found.spec.payload)
    named = program.ports if program is not None else ()
    member = next((m for m in state.members_of(task) if m.state is MemberState.RUNNING), None)
    if member is None or member.placement is None:
        raise Conflict(
            f"it is {found.state} and answers nothing",
            object=f"task {task}",
            next_step=f"See 'clutch why {task}'.",
        )
    fence = member.fence(state.generation)
    real = next((u.ports for u in uses if u.member == member.member and u.fence == fence), ())
    at = real[named.index(port)] if port in named and len(real) > named.index(port) else port
    if port not in named and port not in real:
        listed = ", ".join(map(str, real or named)) or "none"
        raise NotFound(
            f"it exposes {listed}", object=f"port {port} of task {task}", next_step="Start it with --expose PORT."
        )
    return Target(member.placement.node, member.member, fence, at)


def parse(path: str) -> tuple[TaskId, int, str]:
    """``TASK/PORT/rest`` of a proxied path; the rest begins with a slash."""
    parts = path.lstrip("/").split("/", 2)
    if len(parts) < 2 or not path.isascii() or not parts[0] or not parts[1].isdigit() or len(parts[1]) > 5:
        raise BadRequest("a proxied address is /proxy/TASK/PORT/...", object=path[:200])
    return TaskId(parts[0]), int(parts[1]), "/" + (parts[2] if len(parts) > 2 else "")
