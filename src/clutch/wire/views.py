"""What the outside sees: one flat row per live or ended thing, kept in SQL beside the journal.

Views are projections: they can be rebuilt from the journal, are changed only in the same transaction as the facts they
show, and are what every list, filter and page of the API reads.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from clutch.wire.experiment_views import CheckpointRow, ExperimentArchive, ExperimentView, TrialView, WorkloadView


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    table: ClassVar[str] = "tasks"
    key: str
    kind: str
    name: str
    pool: str
    owner: str
    workspace: str
    project: str = ""
    state: str
    reason: str
    """Why it ended (an ``EndReason``); empty while it lives. Why it waits, only the leading master knows."""
    detail: str
    priority: int
    epoch: int
    restarts: int
    slots: int
    submitted_at: float
    ended_at: float
    """0 while it lives."""


class AllocationView(msgspec.Struct, frozen=True, kw_only=True):
    table: ClassVar[str] = "allocations"
    key: str
    """``TASK:EPOCH``."""
    task: str
    epoch: int
    state: str
    slots: int
    nodes: str
    """Comma-separated, in rank order."""
    exit: str
    """Its verdict, once that is known."""
    began_at: float
    ended_at: float
    exit_code: str = ""
    """Of the member that decided it, in digits; empty when no exit is known."""
    detail: str = ""
    """Why it ended, in words, unless all went well."""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    table: ClassVar[str] = "nodes"
    key: str
    pool: str
    state: str
    reason: str
    slots: int
    slots_held: int
    millicpus: int
    memory_bytes: int
    changed_at: float


class LeaseView(msgspec.Struct, frozen=True, kw_only=True):
    table: ClassVar[str] = "leases"
    key: str
    task: str
    member: str
    node: str
    slots: str
    number: int
    state: str
    asked_at: float
    granted_at: float


class MachineView(msgspec.Struct, frozen=True, kw_only=True):
    table: ClassVar[str] = "machines"
    key: str
    pool: str
    state: str
    reason: str
    """Why it must go (a ``StopReason``); empty while it may stay."""
    detail: str
    instance: str
    """The provider's name for it."""
    address: str
    asked_at: float
    changed_at: float
    idle_since: float
    """0 while it holds something."""


View = (
    TaskView | AllocationView | NodeView | LeaseView | MachineView
    | ExperimentView | TrialView | WorkloadView | CheckpointRow | ExperimentArchive
)  # fmt: skip
VIEWS: tuple[type[View], ...] = (
    TaskView, AllocationView, NodeView, LeaseView, MachineView,
    ExperimentView, TrialView, WorkloadView, CheckpointRow, ExperimentArchive,
)  # fmt: skip
