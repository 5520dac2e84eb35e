"""What master, agents and members say to each other.

The link between master and agent is state, not commands: the master says what it *wants* on a node, the agent what it
*observes*. Both are whole, numbered and idempotent, so a lost, doubled or late message does no harm: the receiver keeps
the highest number it has seen and ignores lower ones.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from clutch.wire.errors import ErrorView
from clutch.wire.ids import Fence, LeaseId, MemberId, NodeId, PoolName, Term
from clutch.wire.resources import Capacity
from clutch.wire.schedule import PreemptReason


class Phase(StrEnum):
    """What the master wants of a member or a lease. Phases only move forward: run, leave, end."""

    RUN = "run"  # it should be there
    LEAVE = "leave"  # it was asked to give back by its deadline; leave it alone until then
    END = "end"  # end it now


class WantedMember(msgspec.Struct, frozen=True, array_like=True):
    """One member that may be on this node. A member that is not listed at all must not be there."""

    member: MemberId
    fence: Fence
    phase: Phase
    slots: tuple[int, ...] = ()
    lease_number: int = 0
    deadline: float = 0.0
    reason: PreemptReason | None = None
    checkpoint: str = ""
    """The last committed checkpoint, to resume from; empty for a fresh start."""
    payload: bytes = b""
    """What it runs; left out once its agent has shown it, since nothing starts twice."""
    millicpus: int = 0
    memory_bytes: int = 0
    """What it holds there, and so may use at most; 0: no limit."""
    members: int = 1
    """How many members its allocation has."""


class WantedLease(msgspec.Struct, frozen=True, array_like=True):
    """A cell's lease on this node. One that is not listed must not be used."""

    lease: LeaseId
    number: int
    member: MemberId
    fence: Fence
    phase: Phase
    slots: tuple[int, ...] = ()
    deadline: float = 0.0


class Wanted(msgspec.Struct, frozen=True, tag="wanted"):
    """Everything the master wants on one node, as of a committed state. ``(generation, term, sequence)`` only grows."""

    node: NodeId
    session: str
    """Which start of the agent this is said to; another one ignores it."""
    generation: int
    term: Term
    sequence: int
    members: tuple[WantedMember, ...] = ()
    leases: tuple[WantedLease, ...] = ()


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A master introduces itself; from now on the agent refuses lower terms, and its reports say so.

    ``greeting`` grows with each hello to a node; echoing it proves that a report is not from an agent that is gone.
    """

    generation: int
    term: Term
    greeting: int


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    """Why the master cannot use a report: its pool does not exist, the node belongs to another one..."""

    error: ErrorView


class MemberStatus(StrEnum):
    """What an agent observes of a member's process."""

    STARTING = "starting"  # its directory is made; the process is not up yet
    RUNNING = "running"
    EXITED = "exited"  # the record says how; kept until the master has taken it over


class ExitCause(StrEnum):
    """Who ended a process, as far as its shim can tell."""

    OWN = "own"  # it exited or crashed by itself: code tells
    ENDED = "ended"  # we killed it because the master wanted it gone
    OUT_OF_MEMORY = "out_of_memory"
    NEVER_STARTED = "never_started"  # the machine could not start it: no room, no answer, its starter died
    REFUSED = "refused"  # what was asked for cannot be started: no such command, image, secret. Trying again is no use
    NO_DATA = "no_data"  # files it needs are not on this machine; on another one they may be
    MACHINE = "machine"  # the machine went down under it
    PEER_LOST = "peer_lost"  # it ended because a rank of its group was gone; why that one went, others know
    PEER_FAILED = "peer_failed"  # the same, and that rank had said that its program failed


INFRASTRUCTURE = (ExitCause.NEVER_STARTED, ExitCause.NO_DATA, ExitCause.MACHINE)
"""Not the user's failure: retried without counting."""

FOLLOWING = (ExitCause.PEER_LOST, ExitCause.PEER_FAILED)
"""An end that follows from another one: what that was decides what it means."""


class Exit(msgspec.Struct, frozen=True, array_like=True):
    """A shim's exit record."""

    code: int
    cause: ExitCause = ExitCause.OWN
    metrics_sequence: int = 0
    output_offset: int = 0
    """What the store must reach before the allocation may end."""
    reason: str = ""
    """In words, where the code does not say it all."""


class ObservedMember(msgspec.Struct, frozen=True, array_like=True):
    member: MemberId
    fence: Fence
    status: MemberStatus
    exit: Exit | None = None


class ObservedLease(msgspec.Struct, frozen=True, array_like=True):
    """A lease the agent has handed to a member and not yet seen free again."""

    lease: LeaseId
    number: int


class Report(msgspec.Struct, frozen=True, tag="report"):
    """Everything an agent observes on its node.

    ``term`` is the highest the agent has seen: a master believes only reports of its own term, because then every older
    master is already refused on that node. ``leases`` lists those in use; one that was wanted by ``wanted_sequence``
    and is not listed is free.
    """

    node: NodeId
    pool: PoolName
    session: str
    """New with each start of the agent."""
    sequence: int
    generation: int
    term: Term
    greeting: int
    """Of the last hello it heard in that term."""
    wanted_sequence: int
    """The last ``Wanted`` of that term this report already reflects."""
    capacity: Capacity
    members: tuple[ObservedMember, ...] = ()
    leases: tuple[ObservedLease, ...] = ()
