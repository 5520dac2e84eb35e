"""What a policy says: grants, preemptions, and notes from which the reason of every waiting request can be told.

A policy fills an ``Outcome`` while it works; ``plan`` wraps it. Notes are by request where something particular was
decided for it, and by scope for quotas; all other reasons are worked out when somebody asks (``reasons``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from clutch.core.scheduling.waiting_line import Turn
from clutch.wire.ids import NodeId, RequestId, TaskId
from clutch.wire.schedule import Grant, Preemption, WaitCode


@dataclass(frozen=True)
class Note:
    """Something decided about one waiting request."""

    code: WaitCode
    detail: str = ""
    blockers: tuple[TaskId, ...] = ()
    nodes: tuple[NodeId, ...] = ()
    """The nodes it will use: its reservation."""


@dataclass
class Outcome:
    grants: list[Grant] = field(default_factory=list)
    preemptions: list[Preemption] = field(default_factory=list)
    notes: dict[RequestId, Note] = field(default_factory=dict)
    scopes: dict[str, Turn] = field(default_factory=dict)
    """User, workspace or group scopes that are full, and whose turn it was when that showed."""
    shares: dict[str, str] = field(default_factory=dict)
    """Groups that have their fair share, and what it is, in words."""
    reservations: dict[RequestId, tuple[NodeId, ...]] = field(default_factory=dict)
    """Nodes kept for those who are blocked and cannot make anybody leave."""
    again_at: float | None = None
    """When time alone will change the outcome (work becomes old enough to be a victim)."""
    more: bool = False
    """The pass came to its bound; planning again after these decisions will decide more."""

    def again(self, when: float) -> None:
        if self.again_at is None or when < self.again_at:
            self.again_at = when
