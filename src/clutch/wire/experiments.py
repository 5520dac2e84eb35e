"""An experiment as it was accepted: one frozen spec from which trials are made, and the words that name its states.

What a user writes (YAML, JSON, Python) is checked at the door by ``workloads/experiment/config`` and ends here. A spec
never changes; what is edited later (a label, the most slots) is kept beside it, as facts.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from clutch.wire.programs import Program
from clutch.wire.resources import CUDA
from clutch.wire.specs import DEFAULT_PRIORITY

KIND = "experiment"
"""Of its controller."""
TRIAL = "trial"
"""Of its trials' tasks."""
CLEANUP = "cleanup"
"""Of the tasks that delete its checkpoints' files."""
SEARCHER = "searcher"
"""Of the task that runs a custom search method."""
ROLE = "main"
TRIAL_VARIABLE = "CLUTCH_TRIAL"
"""The environment variable in which a trial finds its ``TrialInfo``, as JSON."""
CLEANUP_VARIABLE = "CLUTCH_CLEANUP"
"""The environment variable in which a clean-up finds its ``CleanupOrder``, as JSON."""
STORAGE_SECRET_VARIABLE = "CLUTCH_STORAGE_SECRET"
"""The environment variable in which both find the value of ``Storage.secret``, where there is one."""


# -- states -------------------------------------------------------------------------------------------------------


class ExperimentState(StrEnum):
    ACTIVE = "active"  # trials run or wait for slots; the search goes on
    PAUSED = "paused"  # its user paused it: trials hold no slots, nothing new begins
    STOPPING = "stopping"  # its outcome is known; its last trials are leaving, its files are being tidied
    COMPLETED = "completed"  # history: the search is over and at least one trial is of use
    CANCELLED = "cancelled"  # history: its user ended it
    FAILED = "failed"  # history: every trial failed, or the search itself did
    DELETING = "deleting"  # its files, metrics and output are being removed; then it is forgotten


class TrialState(StrEnum):
    QUEUED = "queued"  # its task waits for slots
    RUNNING = "running"  # its task has them
    IDLE = "idle"  # has done what the search asked, holds no slots, may be asked for more
    PAUSED = "paused"  # its experiment is paused
    STOPPING = "stopping"  # asked to checkpoint and leave for good
    COMPLETED = "completed"  # history: ran to its end, or did all that the search asked
    STOPPED = "stopped"  # history: the search stopped it early
    CANCELLED = "cancelled"  # history: by its user
    FAILED = "failed"  # history: its restarts are used up, or an output rule forbade more
    INVALID = "invalid"  # history: its program refused these hyperparameters; another trial takes its place


TRIAL_ENDED = (
    TrialState.COMPLETED, TrialState.STOPPED, TrialState.CANCELLED, TrialState.FAILED, TrialState.INVALID,
)  # fmt: skip
EXPERIMENT_ENDED = (ExperimentState.COMPLETED, ExperimentState.CANCELLED, ExperimentState.FAILED)


class CheckpointState(StrEnum):
    COMMITTED = "committed"  # whole in its store
    DELETING = "deleting"  # nobody may count on it; its files are being removed
    PARTIAL = "partial"  # some of its files were removed by its user
    DELETED = "deleted"  # its files are gone, its record stays
    LOST = "lost"  # its files could not be removed and nobody tries any more


class Step(StrEnum):
    """What a row of a trial's workloads says."""

    TRAIN = "train"  # the search asked to train up to a length
    VALIDATE = "validate"  # a validation became durable
    CHECKPOINT = "checkpoint"  # a checkpoint was committed
    START = "start"  # an allocation began
    PREEMPT = "preempt"  # an allocation was asked to leave and left (preempted, paused, drained, resized)
    RESTART = "restart"  # an allocation failed and the trial begins again from its last checkpoint
    STOP = "stop"  # the search stopped it
    END = "end"  # it is over


# -- hyperparameters ----------------------------------------------------------------------------------------------


class Const(msgspec.Struct, frozen=True, tag="const", forbid_unknown_fields=True):
    val: Any


class Int(msgspec.Struct, frozen=True, tag="int", forbid_unknown_fields=True):
    """Whole numbers from ``minval`` to ``maxval``, both included. ``count``: so many values on a grid."""

    minval: int
    maxval: int
    count: int = 0


class Double(msgspec.Struct, frozen=True, tag="double", forbid_unknown_fields=True):
    minval: float
    maxval: float
    count: int = 0


class Log(msgspec.Struct, frozen=True, tag="log", forbid_unknown_fields=True):
    """``base`` to the power of something between the two *exponents* ``minval`` and ``maxval``."""

    minval: float
    maxval: float
    base: float = 10.0
    count: int = 0


class Categorical(msgspec.Struct, frozen=True, tag="categorical", forbid_unknown_fields=True):
    """One of these, each of them any JSON."""

    vals: tuple[Any, ...]


class Nested(msgspec.Struct, frozen=True, tag="nested", forbid_unknown_fields=True):
    """Hyperparameters inside hyperparameters, to any depth."""

    vals: dict[str, Hyperparameter]


Hyperparameter = Const | Int | Double | Log | Categorical | Nested


# -- search methods: different fields, different types ------------------------------------------------------------


class Single(msgspec.Struct, frozen=True, tag="single", forbid_unknown_fields=True):
    """One trial. Only constants."""


class RandomSearch(msgspec.Struct, frozen=True, tag="random", forbid_unknown_fields=True):
    max_trials: int
    max_concurrent_trials: int = 16
    """0: all at once."""


class Grid(msgspec.Struct, frozen=True, tag="grid", forbid_unknown_fields=True):
    max_concurrent_trials: int = 16


class Asha(msgspec.Struct, frozen=True, tag="asha", forbid_unknown_fields=True):
    """One bracket of asynchronous successive halving over ``SearchSpec.max_time``."""

    max_trials: int
    num_rungs: int = 5
    divisor: float = 4.0
    max_concurrent_trials: int = 16
    promotion: bool = False
    """True: trials rest at each rung until they are promoted. False: they run on until they are stopped."""


class AdaptiveAsha(msgspec.Struct, frozen=True, tag="adaptive_asha", forbid_unknown_fields=True):
    """Several brackets that differ in how early they stop."""

    max_trials: int
    mode: str = "standard"
    """``aggressive``, ``standard`` or ``conservative``."""
    max_rungs: int = 5
    bracket_rungs: tuple[int, ...] = ()
    divisor: float = 4.0
    max_concurrent_trials: int = 16
    promotion: bool = False


class Pbt(msgspec.Struct, frozen=True, tag="pbt", forbid_unknown_fields=True):
    """Population based training: after each round the worst continue from the best, a little changed."""

    population_size: int
    num_rounds: int
    length_per_round: int
    truncate_fraction: float = 0.2
    resample_probability: float = 0.2
    perturb_factor: float = 0.2
    max_concurrent_trials: int = 0


class Custom(msgspec.Struct, frozen=True, tag="custom", forbid_unknown_fields=True):
    """A process of the user's reads events and answers with operations."""

    argv: tuple[str, ...] = ()
    """What runs it as a task of the experiment, in the experiment's own code; empty: it runs elsewhere."""
    max_concurrent_trials: int = 0
    """So many trials live at once, however many it asks for; 0: all."""


class Tpe(msgspec.Struct, frozen=True, tag="tpe", forbid_unknown_fields=True):
    """Optuna's tree of Parzen estimators, as a custom method that we ship."""

    max_trials: int
    max_concurrent_trials: int = 4
    startup_trials: int = 10


Method = Single | RandomSearch | Grid | Asha | AdaptiveAsha | Pbt | Custom | Tpe


class SearchSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    method: Method = Single()
    metric: str = "loss"
    smaller_is_better: bool = True
    max_time: int = 0
    """To which length a trial trains at most, in steps or in ``time_metric``; 0: its program decides."""
    time_metric: str = ""
    """The validation metric that says how far a trial is; empty: the step it is reported at."""
    unit: str = "steps"
    """What a length counts, in words: ``steps``, ``batches``, ``epochs``, ``records``. Only shown."""
    source_trial: str = ""
    """Warm start from the latest checkpoint of this trial, unless a trial has its own."""
    source_checkpoint: str = ""


# -- everything else ----------------------------------------------------------------------------------------------


class TrialResources(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    slots: int = 1
    """A trial's, over one node or many; 0: it needs none."""
    kind: str = CUDA
    """Of slots; ``any``: whatever kind its pool has."""
    millicpus: int = 0
    """For each slot, or for the trial when it has none."""
    memory_bytes: int = 0
    pool: str = "default"
    priority: int = DEFAULT_PRIORITY
    weight: float = 1.0
    max_slots: int = 0
    """The most slots that all its trials hold at once; 0: no limit."""
    single_node: bool = False
    even: bool = False
    """Several nodes must give the same number of slots each."""


class Storage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where checkpoints are kept. No credentials stand here: ``secret`` names one."""

    address: str = ""
    """Empty: the workspace's own blobs. ``file:///FOLDER``, ``s3://...``, ``gs://...``, ``az://...``, ``hdfs://...``;
    ``class:MODULE:NAME`` for a class in the experiment's own code."""
    secret: str = ""
    """The secret that holds ``KEY:SECRET`` for the address; empty: none needed."""
    options: dict[str, Any] = {}
    """Keyword arguments of a class."""


class Retention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which checkpoints are kept when an experiment is over: these, and whatever is pinned."""

    save_experiment_best: int = 0
    save_trial_best: int = 1
    save_trial_latest: int = 1


class RuleAction(StrEnum):
    CANCEL_RETRIES = "cancel_retries"  # a failure is final
    EXCLUDE_NODE = "exclude_node"  # this trial never runs on that node again
    NONE = "none"  # only the label


class OutputRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line that matches ``pattern`` gives the trial the label ``name`` and does ``action``."""

    name: str
    pattern: str
    action: RuleAction = RuleAction.NONE


class ExperimentSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that decides what its trials are."""

    name: str
    owner: str = "nobody"
    workspace: str = "default"
    project: str = ""
    description: str = ""
    labels: tuple[str, ...] = ()
    notes: str = ""
    program: Program
    """What each trial runs; the controller adds ``CLUTCH_TRIAL`` to its environment."""
    hyperparameters: dict[str, Hyperparameter] = {}
    search: SearchSpec = SearchSpec()
    resources: TrialResources = TrialResources()
    storage: Storage = Storage()
    retention: Retention = Retention()
    max_restarts: int = 5
    leave_within_s: float = 3600.0
    data_wait_s: float = 3600.0
    """As in ``TaskSpec``."""
    preemptible: bool = True
    output_rules: tuple[OutputRule, ...] = ()
    seed: int = 0
    data: dict[str, Any] = {}
    profiling: bool = False
    no_report_timeout_s: float = 0.0
    no_report_action: str = "dump"
    """``dump`` or ``restart``: what a rank does that is silent for so long."""
    webhooks: tuple[str, ...] = ()
    """Names of webhooks that hear of it, besides those of its workspace."""
    config: str = "{}"
    """The effective configuration, as JSON: what was written, merged with what it was laid over."""
    source: str = ""
    """What its user wrote, to the letter."""
    parent: str = ""
    """The experiment it was forked from."""
    detached: bool = False
    """Its only trial runs somewhere else, of itself, and reports."""
    key: str = ""
    """Submitted again with the same key, it is the same experiment."""


class TrialInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a trial's program is told about itself beyond what every member is told."""

    experiment: str
    trial: int
    """Its number in its experiment, from 1."""
    name: str = ""
    hparams: dict[str, Any] = {}
    seed: int = 0
    metric: str = ""
    smaller_is_better: bool = True
    time_metric: str = ""
    max_time: int = 0
    unit: str = "steps"
    storage: Storage = Storage()
    warm_start: str = ""
    """The checkpoint to begin from while it has none of its own."""
    data: dict[str, Any] = {}
    profiling: bool = False
    no_report_timeout_s: float = 0.0
    no_report_action: str = "dump"
    """What a silent rank does when it has shown where it hangs: ``dump`` (it goes on), ``restart`` (it exits)."""
    config: str = "{}"


class CleanupItem(msgspec.Struct, frozen=True, kw_only=True):
    checkpoint: str
    task: str
    """The task that saved it."""
    globs: tuple[str, ...] = ()
    """Only files whose path matches one; empty: all."""


class CleanupOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Which files a clean-up removes. What is not there is not missed: it may be told twice."""

    experiment: str
    storage: Storage = Storage()
    checkpoints: tuple[CleanupItem, ...] = ()


def trial_task(experiment: str, trial: int, attempt: int = 1) -> str:
    """The id of a trial's task; a trial that is continued after its end gets another one."""
    return f"{experiment}.{trial}" if attempt == 1 else f"{experiment}.{trial}-{attempt}"


def trial_of(task: str) -> tuple[str, int] | None:
    """Experiment and number of a trial's task; None for any other task."""
    experiment, dot, rest = task.rpartition(".")
    number = rest.partition("-")[0]
    return (experiment, int(number)) if dot and number.isdecimal() else None
