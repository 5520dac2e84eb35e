"""What a scheduling policy is asked and what it answers.

A policy reads a snapshot of one pool: rooms (nodes), holdings (what runs) and requests (what waits). It returns a
``Plan``; the loop re-checks it, and the agent has the last word on its slots.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from clutch.wire.ids import NodeId, RequestId, TaskId
from clutch.wire.resources import CUDA, Capacity
from clutch.wire.specs import DEFAULT_PRIORITY, Shape, Spread, Subscription


class Room(msgspec.Struct, frozen=True):
    """A node as the scheduler sees it."""

    node: NodeId
    capacity: Capacity
    usable: bool = True
    """False: it keeps what it has and gets nothing new (suspect, lost, draining, unreported)."""
    disabled_slots: tuple[int, ...] = ()


class Part(msgspec.Struct, frozen=True):
    """One role of a request."""

    role: str
    shape: Shape
    spread: Spread = Spread.NONE
    subscribes: Subscription | None = None
    first_rank: int = 0
    """Ranks are numbered from here (a role that grows asks for ranks it does not have yet)."""
    avoid: tuple[NodeId, ...] = ()
    """Nodes where this role already has members: avoided softly or hard, as ``spread`` says."""


class Interactive(msgspec.Struct, frozen=True):
    """A person waits for this: a cell's lease. It may be served by any of ``nodes``, on exactly one of them."""

    nodes: tuple[NodeId, ...]
    wait_limit_s: float = 60.0


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Something that waits for resources: a whole allocation, one member more, or a cell's lease. All or nothing."""

    request: RequestId
    task: TaskId
    order: int
    """FIFO inside a priority: lower came first. A task keeps its order through preemptions and restarts."""
    parts: tuple[Part, ...]
    owner: str = "nobody"
    workspace: str = "default"
    priority: int = DEFAULT_PRIORITY
    group: str = ""
    weight: float = 1.0
    max_slots: int = 0
    preemptible: bool = True
    leave_within_s: float = 600.0
    interactive: Interactive | None = None
    excluded_nodes: tuple[NodeId, ...] = ()


class Placement(msgspec.Struct, frozen=True):
    """One member on one node, with exactly these slots."""

    role: str
    rank: int
    node: NodeId
    slots: tuple[int, ...] = ()
    kind: str = CUDA
    millicpus: int = 0
    memory_bytes: int = 0
    subscribed: int = 0
    subscribed_kind: str = CUDA


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that has resources: an allocation or a cell's lease, with everything its request said of it."""

    request: Request
    placements: tuple[Placement, ...]
    since: float
    last_victim_at: float = 0.0
    """When its task was last preempted; 0: never."""
    leaving: bool = False
    """Already asked to leave: its resources are coming back and it is nobody's victim again."""
    leaving_for: RequestId = RequestId("")
    """Whom it was asked to leave for, if for somebody: that one waits for this room and asks nobody else."""
    lingering: bool = False
    """A cell's lease that outlived its cell: anyone who waits may have it."""
    backfilled: bool = False
    """Copied from its grant: it runs on room that somebody ahead of it has reserved, and is the first to leave."""


class Grant(msgspec.Struct, frozen=True):
    """Room for a request, all of it."""

    request: RequestId
    placements: tuple[Placement, ...]
    backfilled: bool = False
    """It passes somebody who waits, or borrows the headroom kept for cells: ``Holding.backfilled`` must say so."""


class PreemptReason(StrEnum):
    """Why work is asked to leave. The exit rules depend on it."""

    PREEMPTED = "preempted"  # for somebody more important: rescheduled
    DRAINED = "drained"  # its node is being emptied: rescheduled elsewhere
    RESIZED = "resized"  # its role has a new size: rescheduled
    STOPPED = "stopped"  # its searcher or controller is done with it: ended
    CANCELLED = "cancelled"  # its user is done with it: ended
    PAUSED = "paused"  # its user wants it back later: waits


class Preemption(msgspec.Struct, frozen=True):
    """Ask a holding to leave so that ``beneficiary`` can be placed."""

    victim: RequestId
    beneficiary: RequestId
    reason: PreemptReason = PreemptReason.PREEMPTED


class WaitCode(StrEnum):
    """Why a request is not granted now, in one word that programs can act on."""

    TOO_BIG = "too_big"  # no set of this pool's nodes could ever hold it
    NO_ROOM = "no_room"  # it fits the pool, but not what is free
    FRAGMENTED = "fragmented"  # enough is free in sum, not in the needed shape
    BEHIND = "behind"  # something more important or earlier is waiting for the same room
    QUOTA = "quota"  # its user or workspace holds as much as it may
    GROUP_CAP = "group_cap"  # its group's max_slots
    SHARE = "share"  # its group has its fair share
    EXCLUDED = "excluded"  # the nodes with room are excluded for it
    SPREAD = "spread"  # too few different nodes
    NO_SUBSCRIPTION = "no_subscription"  # the nodes' subscription bound
    HEADROOM = "headroom"  # what is free is kept for cells
    FREEING = "freeing"  # victims were asked to leave; it is next
    NO_NODES = "no_nodes"  # the pool has no usable node


class Waiting(msgspec.Struct, frozen=True):
    """Why a request waits, and where it stands in its pool's queue (0 is next)."""

    request: RequestId
    code: WaitCode
    position: int
    detail: str = ""
    blockers: tuple[TaskId, ...] = ()
    """What would have to end, where that is known."""
