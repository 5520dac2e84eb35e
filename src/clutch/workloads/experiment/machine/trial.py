"""A trial: one set of hyperparameters, what the search asked of it, and what it has said so far.

It may know its task's id and epoch, its validations and checkpoints. It never knows where it runs.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from typing import Any

import msgspec

from clutch.core.machine import Table
from clutch.wire.experiments import TRIAL_ENDED, CheckpointState, TrialState
from clutch.workloads.experiment.machine.notes import End

_ENDS = TRIAL_ENDED

TABLE = Table(
    "trial",
    {
        TrialState.QUEUED: (
            TrialState.RUNNING, TrialState.IDLE, TrialState.PAUSED, TrialState.STOPPING, *_ENDS,
        ),
        TrialState.RUNNING: (
            TrialState.QUEUED, TrialState.IDLE, TrialState.PAUSED, TrialState.STOPPING, *_ENDS,
        ),
        TrialState.IDLE: (
            TrialState.QUEUED, TrialState.RUNNING, TrialState.PAUSED, TrialState.STOPPING, *_ENDS,
        ),
        TrialState.PAUSED: (
            TrialState.QUEUED, TrialState.RUNNING, TrialState.IDLE, TrialState.STOPPING, *_ENDS,
        ),
        TrialState.STOPPING: _ENDS,
        TrialState.COMPLETED: (TrialState.QUEUED, TrialState.PAUSED),
        TrialState.STOPPED: (TrialState.QUEUED, TrialState.PAUSED),
        TrialState.CANCELLED: (TrialState.QUEUED, TrialState.PAUSED),
        TrialState.FAILED: (TrialState.QUEUED, TrialState.PAUSED),
        TrialState.INVALID: (TrialState.QUEUED, TrialState.PAUSED),
    },
)  # fmt: skip
"""An end is left only when its user continues the experiment."""

CHECKPOINTS = Table(
    "checkpoint",
    {
        CheckpointState.COMMITTED: (CheckpointState.DELETING,),
        CheckpointState.PARTIAL: (CheckpointState.DELETING,),
        CheckpointState.DELETING: (CheckpointState.PARTIAL, CheckpointState.DELETED, CheckpointState.LOST),
        CheckpointState.DELETED: (),
        CheckpointState.LOST: (),
    },
)
WHOLE = (CheckpointState.COMMITTED, CheckpointState.PARTIAL)
"""There are files that could be removed."""


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """To train up to ``length``; ``row`` of its workloads says so since ``at``."""

    length: int
    row: int
    at: float


class Checkpoint(msgspec.Struct, kw_only=True):
    checkpoint: str
    trial: int
    task: str
    epoch: int
    step: int
    order: int
    """Among all of its experiment, in the order of their commits."""
    at: float
    size_bytes: int = 0
    storage: str = ""
    state: CheckpointState = CheckpointState.COMMITTED
    pins: list[str] = []
    removed: list[str] = []
    """Patterns of those of its files that were removed while others stayed."""
    metadata: dict[str, str] | None = None
    """What is said of it since that was changed; None: what its manifest says."""


class Trial(msgspec.Struct, kw_only=True):
    number: int
    hparams: dict[str, Any]
    seed: int
    task: str
    tasks: list[str] = []
    """All that have run it, the first first."""
    request: str = ""
    warm_start: str = ""
    state: TrialState = TrialState.QUEUED
    detail: str = ""
    end: End | None = None
    finishing: bool = False
    heard: bool = False
    """The search has been told that it is over."""
    running: bool = False
    """Its task has resources, as far as is known."""
    epoch: int = 0
    restarts: int = 0
    final: bool = False
    excluded: list[str] = []
    labels: list[str] = []
    metadata: dict[str, Any] = {}
    length: int = 0
    """The greatest that the search has asked for; 0: none, its program decides."""
    done: int = 0
    """The greatest that it has completed."""
    asked: list[Ask] = []
    """What it has not done yet, the shortest first."""
    time: float = 0.0
    """How far it has come, as its validations say."""
    steps: list[int] = []
    """At which it has validated, in order; ``values`` and ``orders`` belong to them."""
    values: list[float] = []
    orders: list[int] = []
    """Of its validations, among all of the experiment."""
    best: float = math.inf
    best_step: int = 0
    last: float = math.inf
    last_step: int = 0
    checkpoints: list[str] = []
    rows: int = 0
    """Of its workloads, so far."""
    began_at: float = 0.0
    ended_at: float = 0.0

    @property
    def live(self) -> bool:
        return self.state not in TRIAL_ENDED

    @property
    def attempt(self) -> int:
        return len(self.tasks)

    def validated(self, step: int) -> bool:
        place = bisect_left(self.steps, step)
        return place < len(self.steps) and self.steps[place] == step

    def value_at(self, step: int) -> tuple[float, int] | None:
        """Value and order of the validation at this step, or of the last one before."""
        place = bisect_right(self.steps, step)
        return (self.values[place - 1], self.orders[place - 1]) if place else None
