"""An experiment: what was accepted, what was edited since, its trials and checkpoints, and where its search stands.

It is one value that its own notes change in place. A copy for each note would cost as much as there are trials; and
nobody holds on to an earlier one: the core folds a note where it is decided, and again at a start. ``decide`` only
reads it, and sees each note that it has wished for as soon as it goes on.
"""

from __future__ import annotations

import math

import msgspec

from clutch.core.machine import Table
from clutch.wire.experiments import EXPERIMENT_ENDED, ExperimentSpec, ExperimentState, Retention
from clutch.workloads.experiment.machine.notes import Deferred
from clutch.workloads.experiment.machine.trial import Checkpoint, Trial

TABLE = Table(
    "experiment",
    {
        ExperimentState.ACTIVE: (ExperimentState.PAUSED, ExperimentState.STOPPING),
        ExperimentState.PAUSED: (ExperimentState.ACTIVE, ExperimentState.STOPPING),
        ExperimentState.STOPPING: EXPERIMENT_ENDED,
        ExperimentState.COMPLETED: (ExperimentState.ACTIVE, ExperimentState.DELETING),
        ExperimentState.CANCELLED: (ExperimentState.ACTIVE, ExperimentState.DELETING),
        ExperimentState.FAILED: (ExperimentState.ACTIVE, ExperimentState.DELETING),
        ExperimentState.DELETING: (),
    },
)


class Cleanup(msgspec.Struct, frozen=True):
    """A task that removes the files of these checkpoints, or those of their files that match."""

    checkpoints: tuple[str, ...]
    globs: tuple[str, ...] = ()


class Experiment(msgspec.Struct, kw_only=True):
    experiment: str
    spec: ExperimentSpec
    paused_at_first: bool = False
    state: ExperimentState = ExperimentState.ACTIVE
    detail: str = ""
    # -- what may be edited, as it is now
    name: str
    description: str
    notes: str
    labels: tuple[str, ...]
    project: str
    archived: bool = False
    priority: int
    max_slots: int
    retention: Retention
    max_restarts: int
    max_time: int
    # -- its search
    over: bool = False
    """The search is: no more is asked of it, and trials that have done what they were asked end."""
    failed: bool = False
    reason: str = ""
    """Why it ended as it did, or what is to be said of its result."""
    cancelled: bool = False
    metric_missing: bool = False
    deferred: list[Deferred] = []
    """What the search wanted while nothing new might begin. It outlives an end that came from elsewhere: continued, the
    search still counts on it."""
    searcher: str = ""
    """The task of its search method's process while it lives."""
    searchers: int = 0
    searcher_leaves: bool = False
    # -- its trials
    trials: dict[int, Trial] = {}
    live: dict[int, bool] = {}
    """The trials that are not over, in the order in which they were made or continued."""
    counts: dict[str, int] = {}
    """Trials by state."""
    validations: int = 0
    best: float = math.inf
    best_trial: int = 0
    best_step: int = 0
    # -- its checkpoints
    checkpoints: dict[str, Checkpoint] = {}
    cleanups: dict[str, Cleanup] = {}
    cleanups_made: int = 0
    tidied: bool = False
    """Its retention was carried out since it last ended or was edited."""
    forgotten: bool = False
    # -- the rest
    owed: int = 0
    submitted_at: float = 0.0
    ended_at: float = 0.0

    @property
    def has_more(self) -> bool:
        """Whether something that was deferred will still begin."""
        return bool(self.deferred) and not self.cancelled and not self.failed

    @property
    def ended(self) -> bool:
        return self.state in EXPERIMENT_ENDED


def opened(experiment: str, spec: ExperimentSpec, paused: bool) -> Experiment:
    """As it is before its first note."""
    return Experiment(
        experiment=experiment,
        spec=spec,
        paused_at_first=paused,
        name=spec.name,
        description=spec.description,
        notes=spec.notes,
        labels=spec.labels,
        project=spec.project,
        priority=spec.resources.priority,
        max_slots=spec.resources.max_slots,
        retention=spec.retention,
        max_restarts=spec.max_restarts,
        max_time=spec.search.max_time,
    )
