"""What is wished for: tasks with their roles, and pools with their policy.

A spec is checked once, at the door (``check_task``, ``check_pool`` in ``core``), and is immutable from then on.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from clutch.wire.ids import NodeId, PoolName
from clutch.wire.resources import CUDA, Resources

DEFAULT_PRIORITY = 42
PRIORITIES = range(1, 100)
"""Lower is more important, as in Determined."""


class Spread(StrEnum):
    """How the members of a role lie over nodes."""

    NONE = "none"  # wherever they fit
    SOFT = "soft"  # on different nodes while there are enough
    HARD = "hard"  # on different nodes, or they wait


class OnDeath(StrEnum):
    """What the death of one member means for its task."""

    END = "end"  # the allocation ends and a new epoch begins from the last checkpoint (trials)
    RESPAWN = "respawn"  # this member alone starts again, as a new incarnation (replicas, RL workers)


class OnNodeLost(StrEnum):
    """What a task does when a node stays silent beyond the pool's patience."""

    RESTART = "restart"
    WAIT = "wait"


class Members(msgspec.Struct, frozen=True, tag="members", forbid_unknown_fields=True):
    """A fixed number of members, each with its own vector. Slots in ``each`` are leased as long as the member lives."""

    count: int
    each: Resources


class Split(msgspec.Struct, frozen=True, tag="split", forbid_unknown_fields=True):
    """So many slots in all, over one node or many; one member per node used, however the slots fall."""

    slots: int
    kind: str = CUDA
    millicpus_per_slot: int = 0
    memory_bytes_per_slot: int = 0
    max_nodes: int = 0
    """At most so many nodes; 0 for any number, 1 for a single node."""
    even: bool = False
    """Every member gets the same number of slots."""


Shape = Members | Split


class Subscription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The slots a resident member may lease at most, for a cell, while it lives on its node."""

    slots: int
    kind: str = CUDA


class RoleSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Members that do the same thing."""

    name: str
    shape: Shape
    spread: Spread = Spread.NONE
    subscribes: Subscription | None = None
    on_death: OnDeath = OnDeath.END
    count_min: int = 0
    count_max: int = 0
    """A role may be resized between the two while it runs; both 0: it may not."""


class TaskSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A durable wish. ``payload`` belongs to the workload and its runtime; the core never looks inside."""

    kind: str
    name: str
    pool: PoolName
    roles: tuple[RoleSpec, ...]
    owner: str = "nobody"
    workspace: str = "default"
    project: str = ""
    """Of its workspace; what it used is accounted there. Empty: none."""
    priority: int = DEFAULT_PRIORITY
    group: str = ""
    """Tasks of one group share one fair share; empty: the task is its own group."""
    weight: float = 1.0
    max_slots: int = 0
    """The group's cap on slots held at once; 0: none."""
    preemptible: bool = True
    leave_within_s: float = 600.0
    """The window a preemption gives; past it the members are killed."""
    max_restarts: int = 5
    on_node_lost: OnNodeLost = OnNodeLost.RESTART
    excluded_nodes: tuple[NodeId, ...] = ()
    flush_deadline_s: float = 60.0
    data_wait_s: float = 3600.0
    """A task that has run and then finds its data on no node waits for it so long, and fails then. One that has never
    run fails when every node of its pool was tried, unless the pool can grow."""
    payload: bytes = b""


class PriorityPolicy(msgspec.Struct, frozen=True, tag="priority", forbid_unknown_fields=True):
    """Strict priority, FIFO inside one; see ``core/scheduling/priority.py``."""

    preemption: bool = True
    backfill: bool = True


class FairSharePolicy(msgspec.Struct, frozen=True, tag="fair_share", forbid_unknown_fields=True):
    """Max-min fair by weight; see ``core/scheduling/fair_share.py``."""

    preemption: bool = True


class Fit(StrEnum):
    BEST = "best"  # fill the fullest node that fits, keeping whole nodes free for gangs
    SPREAD = "spread"  # the emptiest node that fits, keeping heat and interference low


class Autoscale(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many machines a pool may have, and how patient it is with them."""

    nodes_min: int = 0
    nodes_max: int = 0
    slots_per_node: int = 8
    kind: str = CUDA
    millicpus_per_node: int = 0
    memory_bytes_per_node: int = 0
    idle_s: float = 1200.0
    starting_s: float = 1200.0
    disconnected_s: float = 600.0


class PoolSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named set of nodes with one scheduling policy, and optionally a provisioner."""

    name: PoolName
    policy: PriorityPolicy | FairSharePolicy = PriorityPolicy()
    fit: Fit = Fit.BEST
    interactive_headroom: int = 0
    """Slots kept for cells; only work that promises to leave in time may borrow them."""
    min_run_s: float = 60.0
    """Work is a victim at most once in this long."""
    node_lost_after_s: float = 90.0
    resident_lost_after_s: float = 5.0
    """The same for members that are replaced one by one and only subscribe to slots, such as notebook replicas."""
    max_subscription: float = 4.0
    """Subscribed slots per owned slot of a node."""
    autoscale: Autoscale | None = None
    run_as_users: bool = False
    """Members run as their submitter's mapped uid and gid, and a user without one cannot start anything here. False: a
    single-user pool, where everything runs as the agent does."""


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The most slots a user or a workspace may hold at once, over all pools."""

    scope: str
    """``user:NAME`` or ``workspace:NAME``."""
    slots: int
