"""What was decided. A fact is complete: folding it needs no clock, no chance and no policy.

Each fact is stored under its tag and version. A change that old rows cannot be read with raises ``version`` and adds an
upcaster to ``UPCASTERS``; old rows are never rewritten, and their fold never changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, get_args

import msgspec

from clutch.wire.errors import Corrupt, TooNew
from clutch.wire.ids import Epoch, Fence, Incarnation, LeaseId, MemberId, NodeId, PoolName, RequestId, TaskId, Term
from clutch.wire.machines import MachineId, StopReason
from clutch.wire.messages import Exit, MemberStatus
from clutch.wire.outcomes import EndReason, LeaseEnd, NodeWish, TaskState, TaskWish, Verdict
from clutch.wire.resources import Capacity
from clutch.wire.schedule import Placement, PreemptReason
from clutch.wire.specs import PoolSpec, Quota, TaskSpec


class Fact(msgspec.Struct, frozen=True):
    """Something that is so from now on."""

    version: ClassVar[int] = 1


class Placed(msgspec.Struct, frozen=True):
    """A placement and the lease number that now fences its slots."""

    placement: Placement
    lease_number: int


# -- cluster ------------------------------------------------------------------------------------------------------


class TermBegan(Fact, frozen=True, tag="term_began"):
    """Every node is unreported from here: nothing is granted or ended on one before it reports to this term."""

    generation: int
    term: Term


class PoolPut(Fact, frozen=True, tag="pool_put"):
    pool: PoolSpec


class QuotaSet(Fact, frozen=True, tag="quota_set"):
    quota: Quota


class QuotaRemoved(Fact, frozen=True, tag="quota_removed"):
    scope: str


class NodeReported(Fact, frozen=True, tag="node_reported"):
    """A node's agent has spoken to this term. With strays alive on it, the node stays closed until they are gone."""

    node: NodeId
    pool: PoolName
    session: str
    capacity: Capacity
    strays: tuple[str, ...] = ()


class NodeSuspected(Fact, frozen=True, tag="node_suspected"):
    node: NodeId


class NodeLost(Fact, frozen=True, tag="node_lost"):
    node: NodeId


class ResidentsLost(Fact, frozen=True, tag="residents_lost"):
    """A suspect node's resident members are given up, though the node is not."""

    node: NodeId


class NodeWished(Fact, frozen=True, tag="node_wished"):
    node: NodeId
    wish: NodeWish


class SlotsDisabled(Fact, frozen=True, tag="slots_disabled"):
    node: NodeId
    slots: tuple[int, ...]


class NodeRemoved(Fact, frozen=True, tag="node_removed"):
    node: NodeId


# -- machines -----------------------------------------------------------------------------------------------------


class MachineAsked(Fact, frozen=True, tag="machine_asked"):
    """A pool's provisioner wants one more machine; its launch waits in the outbox under ``token``."""

    machine: MachineId
    pool: PoolName
    token: str


class MachineLaunched(Fact, frozen=True, tag="machine_launched"):
    """Its provider has it. ``instance`` is empty where the provider's answer was lost and its agent spoke for it."""

    machine: MachineId
    instance: str = ""
    address: str = ""


class MachineFailed(Fact, frozen=True, tag="machine_failed"):
    """Its launch failed for good. What may exist of it is terminated under ``token``; the pool rests meanwhile."""

    machine: MachineId
    detail: str
    token: str
    setbacks: int
    rest_until: float


class MachineIdle(Fact, frozen=True, tag="machine_idle"):
    """Its node holds nothing from now on, or holds something again."""

    machine: MachineId
    idle: bool


class MachineStopAsked(Fact, frozen=True, tag="machine_stop_asked"):
    """It gets nothing new; its termination waits in the outbox under ``token``, and a launch no longer does."""

    machine: MachineId
    reason: StopReason
    token: str


class MachineStray(Fact, frozen=True, tag="machine_stray"):
    """Its provider has something of this cluster that nobody here knows: it is taken into the books to be stopped."""

    machine: MachineId
    pool: PoolName
    instance: str
    token: str


class MachineGone(Fact, frozen=True, tag="machine_gone"):
    """Its provider has it no more, and its name is never used again."""

    machine: MachineId
    detail: str = ""


# -- tasks --------------------------------------------------------------------------------------------------------


class TaskSubmitted(Fact, frozen=True, tag="task_submitted"):
    task: TaskId
    spec: TaskSpec
    order: int
    key: str = ""
    controller: str = ""


class TaskWished(Fact, frozen=True, tag="task_wished"):
    task: TaskId
    wish: TaskWish


class TaskMoved(Fact, frozen=True, tag="task_moved"):
    """A task without an allocation changes its state: paused, or back in the queue."""

    task: TaskId
    to: TaskState


class TaskEnded(Fact, frozen=True, tag="task_ended"):
    task: TaskId
    reason: EndReason
    detail: str = ""


class RoleResized(Fact, frozen=True, tag="role_resized"):
    task: TaskId
    role: str
    count: int


class PrioritySet(Fact, frozen=True, tag="priority_set"):
    task: TaskId
    priority: int


class MaxSlotsSet(Fact, frozen=True, tag="max_slots_set"):
    """What the tasks of its group may hold together, as this one counts; 0: any."""

    task: TaskId
    max_slots: int


class NodeExcluded(Fact, frozen=True, tag="node_excluded"):
    task: TaskId
    node: NodeId


class NodeBarred(Fact, frozen=True, tag="node_barred"):
    """A node lacks what the task needs there; it is not tried again before ``until``."""

    task: TaskId
    node: NodeId
    until: float
    detail: str = ""


class NodeBarLifted(Fact, frozen=True, tag="node_bar_lifted"):
    """The node may be tried again."""

    task: TaskId
    node: NodeId


class CheckpointCommitted(Fact, frozen=True, tag="checkpoint_committed"):
    task: TaskId
    epoch: Epoch
    checkpoint: str
    step: int
    size_bytes: int = 0
    storage: str = ""
    """The address of the store that holds its files; empty: its workspace's blobs."""


class RestartsForbidden(Fact, frozen=True, tag="restarts_forbidden"):
    """The next failure of its program is the last."""

    task: TaskId


# -- allocations --------------------------------------------------------------------------------------------------


class AllocationGranted(Fact, frozen=True, tag="allocation_granted"):
    task: TaskId
    epoch: Epoch
    members: tuple[Placed, ...]
    backfilled: bool = False
    """It runs on room that somebody ahead of it has reserved, and is the first to leave."""


class AllocationRan(Fact, frozen=True, tag="allocation_ran"):
    """Every member is up."""

    task: TaskId
    epoch: Epoch


class LeaveAsked(Fact, frozen=True, tag="leave_asked"):
    task: TaskId
    epoch: Epoch
    reason: PreemptReason
    deadline: float
    beneficiary: RequestId | None = None


class LeaveAcked(Fact, frozen=True, tag="leave_acked"):
    task: TaskId
    epoch: Epoch


class FinishDeclared(Fact, frozen=True, tag="finish_declared"):
    task: TaskId
    epoch: Epoch


class AllocationEnding(Fact, frozen=True, tag="allocation_ending"):
    """Its verdict is known; whatever still runs of it must go."""

    task: TaskId
    epoch: Epoch
    verdict: Verdict
    detail: str = ""
    beneficiary: RequestId | None = None
    """For whom its room is meant, if it was evicted for somebody."""
    open: bool = False
    """A member says that it lost a peer. Why that one went is known when all are gone: ``VerdictFound``."""


class VerdictFound(Fact, frozen=True, tag="verdict_found"):
    """All members of an allocation whose verdict was open are gone, and this was the cause."""

    task: TaskId
    epoch: Epoch
    verdict: Verdict
    detail: str
    partings: int = 0
    """How often in a row its ranks have lost each other though none failed and no node was lost."""


class FlushBegan(Fact, frozen=True, tag="flush_began"):
    """All members are gone; the store catches up with what they sent, until the deadline."""

    task: TaskId
    epoch: Epoch
    deadline: float


class AllocationEnded(Fact, frozen=True, tag="allocation_ended"):
    """``to``: the task's next state; ``failures``: its new count; ``flushed`` is False if the deadline cut it short."""

    task: TaskId
    epoch: Epoch
    to: TaskState
    failures: int
    flushed: bool = True
    setbacks: int = 0
    """How often in a row infrastructure failed it."""
    rest_until: float = 0.0


# -- members ------------------------------------------------------------------------------------------------------


class MemberObserved(Fact, frozen=True, tag="member_observed"):
    member: MemberId
    fence: Fence
    status: MemberStatus


class MemberExited(Fact, frozen=True, tag="member_exited"):
    member: MemberId
    fence: Fence
    exit: Exit


class MemberLost(Fact, frozen=True, tag="member_lost"):
    """We shall never hear how it ended. Its fence is refused from here on."""

    member: MemberId
    fence: Fence
    detail: str


class MemberWanted(Fact, frozen=True, tag="member_wanted"):
    """A role grows, or a member must start again: it waits for a place, after a rest if it needs one."""

    member: MemberId
    incarnation: Incarnation
    failures: int
    setbacks: int = 0
    rest_until: float = 0.0


class MemberRested(Fact, frozen=True, tag="member_rested"):
    member: MemberId


class MemberGranted(Fact, frozen=True, tag="member_granted"):
    member: MemberId
    placed: Placed


class MemberLeaveAsked(Fact, frozen=True, tag="member_leave_asked"):
    member: MemberId
    reason: PreemptReason
    deadline: float


class MemberEnding(Fact, frozen=True, tag="member_ending"):
    member: MemberId


class MemberRemoved(Fact, frozen=True, tag="member_removed"):
    """Its role is smaller now."""

    member: MemberId


class LanesReached(Fact, frozen=True, tag="lanes_reached"):
    member: MemberId
    fence: Fence
    metrics_sequence: int
    output_offset: int


# -- leases -------------------------------------------------------------------------------------------------------


class LeaseWanted(Fact, frozen=True, tag="lease_wanted"):
    lease: LeaseId
    task: TaskId
    cell: int
    members: tuple[MemberId, ...]
    slots: int
    kind: str
    order: int
    wait_until: float
    wait_limit_s: float
    linger_s: float


class LeaseGranted(Fact, frozen=True, tag="lease_granted"):
    lease: LeaseId
    member: MemberId
    placed: Placed


class LeaseLingered(Fact, frozen=True, tag="lease_lingered"):
    lease: LeaseId
    until: float


class LeaseReused(Fact, frozen=True, tag="lease_reused"):
    lease: LeaseId


class LeaseReclaimed(Fact, frozen=True, tag="lease_reclaimed"):
    lease: LeaseId
    deadline: float
    detail: str = ""
    beneficiary: RequestId | None = None


class LeaseEnded(Fact, frozen=True, tag="lease_ended"):
    lease: LeaseId
    how: LeaseEnd


# -- controllers --------------------------------------------------------------------------------------------------


class ControllerOpened(Fact, frozen=True, tag="controller_opened"):
    controller: str
    kind: str
    spec: bytes


class ControllerNoted(Fact, frozen=True, tag="controller_noted"):
    """A fact of the workload's own; only its controller can read ``note``."""

    controller: str
    note: bytes


class ControllerAlarmed(Fact, frozen=True, tag="controller_alarmed"):
    """It wants to be woken at this time; 0 for never."""

    controller: str
    at: float


class ControllerClosed(Fact, frozen=True, tag="controller_closed"):
    controller: str
    detail: str = ""


# -- what is owed to the outside ----------------------------------------------------------------------------------


class EffectOwed(Fact, frozen=True, tag="effect_owed"):
    """A workload wants something to happen outside; it waits in the outbox until it has."""

    controller: str
    token: str
    kind: str
    payload: bytes
    due_at: float


class EffectSettled(Fact, frozen=True, tag="effect_settled"):
    """It has happened, or was given up."""

    token: str


AnyFact = (
    TermBegan | PoolPut | QuotaSet | QuotaRemoved | NodeReported | NodeSuspected | NodeLost | ResidentsLost | NodeWished
    | SlotsDisabled | NodeRemoved | MachineAsked | MachineLaunched | MachineFailed | MachineIdle | MachineStopAsked
    | MachineStray | MachineGone | TaskSubmitted | TaskWished | TaskMoved | TaskEnded | RoleResized | PrioritySet
    | MaxSlotsSet
    | NodeExcluded | NodeBarred | NodeBarLifted | CheckpointCommitted
    | AllocationGranted | AllocationRan | LeaveAsked | LeaveAcked
    | FinishDeclared | AllocationEnding | VerdictFound | FlushBegan | AllocationEnded
    | MemberObserved | MemberExited | MemberLost
    | MemberWanted | MemberRested | MemberGranted | MemberLeaveAsked | MemberEnding | MemberRemoved | LanesReached
    | LeaseWanted | LeaseGranted | LeaseLingered | LeaseReused | LeaseReclaimed | LeaseEnded
    | RestartsForbidden | EffectOwed | EffectSettled
    | ControllerOpened | ControllerNoted | ControllerAlarmed | ControllerClosed
)  # fmt: skip

FACTS: dict[str, type[Fact]] = {str(kind.__struct_config__.tag): kind for kind in get_args(AnyFact)}

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
UPCASTERS: dict[tuple[str, int], Upcaster] = {}
"""(kind, version) -> the same fields as the next version would have written them."""

_encoder = msgspec.msgpack.Encoder()
_decoders = {name: msgspec.msgpack.Decoder(kind) for name, kind in FACTS.items()}


def encode_fact(fact: Fact) -> tuple[str, int, bytes]:
    """Kind, version and bytes of a fact, as a journal row keeps them."""
    return str(fact.__struct_config__.tag), fact.version, _encoder.encode(fact)


def decode_fact(
    kind: str, version: int, payload: bytes, upcasters: dict[tuple[str, int], Upcaster] = UPCASTERS
) -> Fact:
    """The fact that a row holds, brought up to this release's version of it."""
    known = FACTS.get(kind)
    if known is None or version > known.version:
        raise TooNew(
            f"this release reads {kind!r} up to version {known.version if known else 0}, the row has {version}",
            object=f"journal row of kind {kind}",
            next_step="Start the release that wrote it, or a newer one.",
        )
    try:
        if version == known.version:
            fact: Fact = _decoders[kind].decode(payload)
            return fact
        fields: dict[str, Any] = msgspec.msgpack.decode(payload)
        for old in range(version, known.version):
            fields = upcasters[kind, old](fields)
        return msgspec.convert(fields, known)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"its bytes do not decode: {error}",
            object=f"journal row of kind {kind}",
            next_step="Restore the last backup with 'clutch restore'.",
        ) from error
