"""Experiments, their trials, workloads and checkpoints as flat rows: what lists and pages of them read.

A number that may be missing has a flag beside it (``has_best``): a row holds no nulls and no NaN.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec


class ExperimentView(msgspec.Struct, frozen=True, kw_only=True):
    table: ClassVar[str] = "experiments"
    key: str
    name: str
    owner: str
    workspace: str
    project: str
    state: str
    detail: str
    """Why it is in this state, where that is not plain."""
    description: str
    labels: str
    """With commas before, between and behind them, so that ``,word,`` finds one; empty: none."""
    notes: str
    archived: bool
    method: str
    """Of its search: ``single``, ``adaptive_asha``..."""
    metric: str
    smaller_is_better: bool
    has_best: bool
    best: float
    best_trial: int
    best_step: int
    best_checkpoint: str
    """The whole checkpoint of the best trial with the best value; empty: none."""
    trials: int
    """Made so far, replaced ones too."""
    trials_running: int
    trials_ended: int
    trials_failed: int
    progress: float
    """Of the search, from 0 to 1."""
    priority: int
    max_slots: int
    parent: str
    seed: int
    submitted_at: float
    ended_at: float
    """0 while it lives."""


class TrialView(msgspec.Struct, frozen=True, kw_only=True):
    table: ClassVar[str] = "trials"
    key: str
    """``EXPERIMENT.NUMBER``; also the id of its (first) task."""
    experiment: str
    trial: int
    task: str
    """The task that runs it now or ran it last."""
    state: str
    detail: str
    labels: str
    """Given by output rules; as in ``ExperimentView``."""
    hparams: str
    """JSON."""
    seed: int
    restarts: int
    epoch: int
    has_best: bool
    best: float
    best_step: int
    has_last: bool
    last: float
    """The search metric at its latest validation."""
    last_step: int
    length: int
    """To which length the search has asked it to train; 0: it was not asked."""
    checkpoint: str
    checkpoint_step: int
    metadata: str
    """JSON, as its program set it."""
    workspace: str
    began_at: float
    ended_at: float


class WorkloadView(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a trial's life, in order: what was asked of it, what it did, what interrupted it."""

    table: ClassVar[str] = "workloads"
    key: str
    """``EXPERIMENT.NUMBER/000042``."""
    trial: str
    experiment: str
    number: int
    kind: str
    """A ``Step``."""
    step: int
    length: int
    epoch: int
    state: str
    """``asked``, ``done`` or ``dropped``."""
    value: str
    """The metric of a validation, the id of a checkpoint, why it was interrupted."""
    at: float
    done_at: float


class CheckpointRow(msgspec.Struct, frozen=True, kw_only=True):
    table: ClassVar[str] = "checkpoints"
    key: str
    """Its id."""
    experiment: str
    trial: str
    """``EXPERIMENT.NUMBER``."""
    task: str
    workspace: str
    step: int
    epoch: int
    state: str
    size_bytes: int
    storage: str
    has_value: bool
    value: float
    """The search metric of the validation at its step, or the last one before."""
    pins: str
    """Who holds it: ``,model:NAME/3,experiment:e-x,`` as in ``ExperimentView.labels``; empty: nobody."""
    committed_at: float


class ExperimentArchive(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment that is over, whole: from this it is shown, forked, continued and edited."""

    table: ClassVar[str] = "experiment_archives"
    key: str
    payload: bytes
