"""What may happen: requests of people and programs, reports of agents, words of members, and the passing of time.

An event is an argument of ``decide``; it is never stored. What follows from it is stored, as facts.
"""

from __future__ import annotations

import msgspec

from clutch.wire.ids import Fence, LeaseId, MemberId, NodeId, PoolName, TaskId, Term
from clutch.wire.machines import Instance, MachineId
from clutch.wire.messages import Report
from clutch.wire.schedule import PreemptReason
from clutch.wire.specs import PoolSpec, Quota, TaskSpec


class Event(msgspec.Struct, frozen=True, kw_only=True):
    cause: str = ""
    """Who brought it about, in words a user may read: ``api:ada``, ``agent:n3``, ``timer``."""


# -- the cluster --------------------------------------------------------------------------------------------------


class BeginTerm(Event, frozen=True, tag="begin_term"):
    """A master has taken the lead."""

    generation: int
    term: Term


class PutPool(Event, frozen=True, tag="put_pool"):
    """Create or change a pool."""

    pool: PoolSpec


class SetQuota(Event, frozen=True, tag="set_quota"):
    quota: Quota


class RemoveQuota(Event, frozen=True, tag="remove_quota"):
    """Bound this user or workspace no more."""

    scope: str


class Reported(Event, frozen=True, tag="reported"):
    report: Report


class Silent(Event, frozen=True, tag="silent"):
    """The link to a node broke, or its keep-alives stopped."""

    node: NodeId


class DrainNode(Event, frozen=True, tag="drain_node"):
    """Empty a node: what can leave is asked to, and nothing new is placed there."""

    node: NodeId


class OpenNode(Event, frozen=True, tag="open_node"):
    """Take a drained node back into service."""

    node: NodeId


class DisableSlots(Event, frozen=True, tag="disable_slots"):
    """These slots, and no others of the node, get nothing new."""

    node: NodeId
    slots: tuple[int, ...]


class RemoveNode(Event, frozen=True, tag="remove_node"):
    """Forget a node that is lost or drained empty."""

    node: NodeId


class MachineUp(Event, frozen=True, tag="machine_up"):
    """A provider has launched a machine, or had it already."""

    machine: MachineId
    instance: str
    address: str = ""


class LaunchFailed(Event, frozen=True, tag="launch_failed"):
    """A machine was asked for again and again, or in vain; nobody tries any more."""

    machine: MachineId
    detail: str


class MachineDown(Event, frozen=True, tag="machine_down"):
    """A provider has terminated a machine, or never had it."""

    machine: MachineId


class MachinesListed(Event, frozen=True, tag="machines_listed"):
    """Everything of this cluster that a pool's provider really has, as of a moment after ``index`` was folded.

    ``lag_s``: a machine launched less long ago may be missing and be there all the same.
    """

    pool: PoolName
    instances: tuple[Instance, ...]
    index: int
    lag_s: float = 0.0


class Tick(Event, frozen=True, tag="tick"):
    """Time has passed: whatever is due, is due."""


# -- what people and controllers ask ------------------------------------------------------------------------------


class Submit(Event, frozen=True, tag="submit"):
    """Make a wish durable. ``key`` makes it safe to repeat: the same key gives the same task."""

    task: TaskId
    spec: TaskSpec
    key: str = ""
    controller: str = ""


class Pause(Event, frozen=True, tag="pause"):
    task: TaskId


class Resume(Event, frozen=True, tag="resume"):
    task: TaskId


class Cancel(Event, frozen=True, tag="cancel"):
    """Ask it to leave, then end it."""

    task: TaskId
    reason: PreemptReason = PreemptReason.CANCELLED


class Kill(Event, frozen=True, tag="kill"):
    """End it now."""

    task: TaskId


class Resize(Event, frozen=True, tag="resize"):
    task: TaskId
    role: str
    count: int


class SetPriority(Event, frozen=True, tag="set_priority"):
    task: TaskId
    priority: int


class ExcludeNode(Event, frozen=True, tag="exclude_node"):
    """Never place this task on that node again."""

    task: TaskId
    node: NodeId


class OpenController(Event, frozen=True, tag="open_controller"):
    """Begin a workload: an experiment, a session, a program."""

    controller: str
    kind: str
    spec: bytes


class TellController(Event, frozen=True, tag="tell_controller"):
    """Something a workload must know: a request of its user, a validation its lane has committed."""

    controller: str
    payload: bytes


# -- what members say ---------------------------------------------------------------------------------------------


class AckLeave(Event, frozen=True, tag="ack_leave"):
    """The allocation has seen that it must leave, and will exit 0 when it has saved its work."""

    task: TaskId
    member: MemberId
    fence: Fence


class DeclareFinished(Event, frozen=True, tag="declare_finished"):
    """The work is complete: exit 0 means done, whatever was acknowledged."""

    task: TaskId
    member: MemberId
    fence: Fence


class CommitCheckpoint(Event, frozen=True, tag="commit_checkpoint"):
    """A checkpoint is whole in the store; a later start resumes from it."""

    task: TaskId
    member: MemberId
    fence: Fence
    checkpoint: str
    step: int
    size_bytes: int = 0
    storage: str = ""


class ReachLanes(Event, frozen=True, tag="reach_lanes"):
    """The store holds this member's metrics and output up to here."""

    member: MemberId
    fence: Fence
    metrics_sequence: int
    output_offset: int


class AskLease(Event, frozen=True, tag="ask_lease"):
    """A cell wants slots, on whichever of these replicas can have them.

    ``cell`` grows from ask to ask of one task, so that a late repetition is not taken for a new one.
    """

    lease: LeaseId
    task: TaskId
    cell: int
    members: tuple[MemberId, ...]
    slots: int
    kind: str
    wait_limit_s: float = 60.0
    linger_s: float = 60.0


class WithdrawLease(Event, frozen=True, tag="withdraw_lease"):
    """The cell no longer wants it."""

    lease: LeaseId


class IdleLease(Event, frozen=True, tag="idle_lease"):
    """The cell is over; the lease lingers while nobody waits. ``use`` counts the cells that ran on it, from 1."""

    lease: LeaseId
    number: int
    use: int


class ReuseLease(Event, frozen=True, tag="reuse_lease"):
    """The next cell goes on with the lingering lease; ``use`` is one more than that of the last."""

    lease: LeaseId
    number: int
    use: int


class SettleEffect(Event, frozen=True, tag="settle_effect"):
    """What a workload owed to the outside is done, or is given up."""

    token: str


AnyEvent = (
    BeginTerm | PutPool | SetQuota | RemoveQuota | Reported | Silent | DrainNode | OpenNode | DisableSlots
    | RemoveNode | Tick
    | Submit | Pause | Resume | Cancel | Kill | Resize | SetPriority | ExcludeNode | OpenController | TellController
    | AckLeave | DeclareFinished | CommitCheckpoint | ReachLanes | AskLease | WithdrawLease | IdleLease | ReuseLease
    | SettleEffect
)  # fmt: skip
