"""Why an allocation ended whose ranks lost each other. Pure.

Ranks that lose a peer end within seconds and say so; what happened to that peer is known later, when its own exit
record comes or its node is given up. So the verdict stays open until all members are gone. The first that applies
decides:

    a member failed by itself         -> failed, and its last lines are the reason
    a rank had said that it failed    -> failed
    a node is lost, a machine failed  -> infrastructure: free
    nothing of that                   -> the network between the nodes: free, unless it comes again and again
                                         without a checkpoint in between; then it counts, so that it ends some day
"""

from __future__ import annotations

from clutch.core.allocation import Allocation
from clutch.core.member import Member
from clutch.core.patience import PARTINGS_FREE
from clutch.core.state import State
from clutch.wire import facts as f
from clutch.wire.ids import TaskId
from clutch.wire.messages import FOLLOWING, INFRASTRUCTURE, Exit, ExitCause
from clutch.wire.outcomes import MemberState, NodeState, Verdict

OWN = (ExitCause.OWN, ExitCause.OUT_OF_MEMORY, ExitCause.REFUSED)
SAID = (ExitCause.PEER_FAILED,)
UNSTARTED = (ExitCause.NEVER_STARTED, ExitCause.REFUSED, ExitCause.NO_DATA)


def told(member: Member, exit: Exit) -> str:
    """How a member ended, in words; of one that was never started also where, since that is where to look."""
    reason = f": {exit.reason}" if exit.reason else ""
    if exit.cause in UNSTARTED and member.placement is not None:
        return f"{member.member} was not started on node {member.placement.node} ({exit.cause}){reason}"
    return f"{member.member} exited with code {exit.code} ({exit.cause}){reason}"


def setback_of(member: Member) -> str:
    """What kept a member that is wanted again from going on, in words."""
    if member.exit is not None:
        return told(member, member.exit)
    return f"{member.member} was lost on node {member.placement.node}" if member.placement is not None else ""


def follows(member: Member) -> bool:
    """Whether it ended only because another one had."""
    return member.exit is not None and member.exit.cause in FOLLOWING


def judged(state: State, task: TaskId) -> f.VerdictFound:
    """For an allocation whose members are all gone."""
    allocation, known = state.allocations[task], state.tasks[task]
    members = list(state.members_of(task))
    verdict, detail = _found(state, allocation, members)
    partings = known.partings
    if verdict is None:
        partings += 1
        verdict = Verdict.INFRASTRUCTURE if partings <= PARTINGS_FREE else Verdict.FAILED
        detail = f"{allocation.detail}; {_parted(members, partings)}"
    return f.VerdictFound(task, allocation.epoch, verdict, detail, partings)


def _found(state: State, allocation: Allocation, members: list[Member]) -> tuple[Verdict | None, str]:
    ends = [(member, member.exit) for member in members if member.exit is not None and member.exit.code != 0]
    for causes, verdict in ((OWN, Verdict.FAILED), (SAID, Verdict.FAILED), (INFRASTRUCTURE, Verdict.INFRASTRUCTURE)):
        for member, exit in ends:
            if exit.cause in causes:
                return verdict, told(member, exit)
    lost = next((member for member in members if _lost_with_its_node(state, member)), None)
    if lost is None:
        return None, ""
    assert lost.placement is not None
    gone = f"{lost.member}: node {lost.placement.node} is lost"
    return Verdict.INFRASTRUCTURE, f"{gone}, which its peers noticed: {allocation.detail}"


def _lost_with_its_node(state: State, member: Member) -> bool:
    """Nobody will ever say how it ended. One that was ended before it had begun tells nothing."""
    if member.state is not MemberState.LOST or member.placement is None:
        return False
    node = state.nodes.get(member.placement.node)
    return member.observed or node is None or node.state is NodeState.LOST


def _parted(members: list[Member], partings: int) -> str:
    nodes = ", ".join(dict.fromkeys(member.placement.node for member in members if member.placement is not None))
    if partings <= PARTINGS_FREE:
        return (
            f"no rank failed and no node was lost, so it is free: time {partings} of {PARTINGS_FREE} without a new "
            f"checkpoint"
        )
    return (
        f"no rank failed and no node was lost, {partings} times without a new checkpoint, so it counts as a failure: "
        f"see whether {nodes} reach each other"
    )
