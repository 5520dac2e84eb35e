"""What is asked and answered over HTTP about experiments, trials, checkpoints, searches, and by trials."""

from __future__ import annotations

from typing import Any

import msgspec

from clutch.wire.experiment_views import CheckpointRow, ExperimentView, TrialView
from clutch.wire.experiment_words import Operation, SearchEvent
from clutch.wire.metrics import Value
from clutch.wire.push import Asked, CheckpointFile

# -- submitting ---------------------------------------------------------------------------------------------------


class SubmitExperiment(Asked, frozen=True):
    """A configuration as its user wrote it. ``source`` is its text, ``config`` what that text says."""

    config: dict[str, Any]
    source: str = ""
    template: str = ""
    """A stored configuration that this one is laid over."""
    code: str = ""
    """Digest of the uploaded working directory, ``sha256:HEX``."""
    workspace: str = ""
    """Outranks the configuration's own; empty: that, or ``default``."""
    project: str = ""
    parent: str = ""
    """The experiment this one is forked from: what the configuration does not say is taken from there, code too."""
    paused: bool = False
    """It is made, and waits to be resumed."""
    key: str = ""
    """The same key gives the same experiment."""


class ConfigProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong, or will be understood otherwise than it reads."""

    path: str
    problem: str
    hint: str = ""


class ExperimentSubmitted(msgspec.Struct, frozen=True, kw_only=True):
    experiment: str
    name: str
    notices: tuple[ConfigProblem, ...] = ()
    """Old spellings that were understood, settings that mean nothing here."""


class PreviewLine(msgspec.Struct, frozen=True, kw_only=True):
    """So many trials train for so long."""

    trials: int
    length: int
    """0: as long as their program wants."""


class SearchPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What a search will do, before anything is paid for. ``exact`` is false where it depends on the results."""

    method: str
    trials: int
    total: int
    """Units of training over all trials; 0 where lengths are the programs'."""
    unit: str
    lines: tuple[PreviewLine, ...]
    exact: bool
    concurrent: int
    slots: int
    """Of each trial."""
    samples: tuple[dict[str, Any], ...] = ()
    """Hyperparameters of the first few trials."""
    notices: tuple[ConfigProblem, ...] = ()


# -- looking ------------------------------------------------------------------------------------------------------


class ExperimentDetail(msgspec.Struct, frozen=True, kw_only=True):
    view: ExperimentView
    config: dict[str, Any]
    source: str
    code: str
    best: TrialView | None = None


class TrialDetail(msgspec.Struct, frozen=True, kw_only=True):
    view: TrialView
    hparams: dict[str, Any]
    metadata: dict[str, Any]
    tasks: tuple[str, ...]
    """Every task that ran it, the first first."""
    progress: float = 0.0
    message: str = ""
    summaries: tuple[MetricSummary, ...] = ()


class MetricSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one metric of a trial without reading its points. Of superseded points it knows nothing."""

    group: str
    name: str
    count: int
    first_step: int
    last_step: int
    last: Value
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    at: float = 0.0


class CheckpointDetail(msgspec.Struct, frozen=True, kw_only=True):
    row: CheckpointRow
    files: tuple[CheckpointFile, ...]
    metadata: dict[str, str]
    prefix: str
    secret: str = ""
    """The secret that opens its storage, by name."""


class ChangeMetadata(Asked, frozen=True):
    """What is said of a checkpoint: these values, any JSON, from now on; these names no more."""

    set: dict[str, Any] = msgspec.field(default_factory=dict)
    remove: tuple[str, ...] = ()


class ExperimentIds(Asked, frozen=True):
    """Several at once: by id, unique beginning or name; or all that a filter finds."""

    experiments: tuple[str, ...] = ()
    state: str = ""
    label: str = ""
    project: str = ""
    workspace: str = ""


class MovedExperiment(msgspec.Struct, frozen=True, kw_only=True):
    experiment: str
    error: str = ""


class MovedExperiments(msgspec.Struct, frozen=True):
    items: tuple[MovedExperiment, ...]


class Pinning(Asked, frozen=True):
    """Who holds a checkpoint, in a word; empty: whoever asks."""

    by: str = ""


# -- a trial's own words ------------------------------------------------------------------------------------------


class OperationView(msgspec.Struct, frozen=True, kw_only=True):
    """What a trial shall do next. ``state``: ``train`` up to ``length``; ``wait`` (ask again); ``over`` (exit)."""

    state: str
    length: int = 0
    done: int = 0
    """The greatest length that it has completed."""
    unit: str = "steps"


class FinishOperation(Asked, frozen=True):
    length: int
    value: float | str | None = None
    """The search metric; None: that of its last validation. NaN and the infinities as in ``wire.metrics``."""


class SayEarlyExit(Asked, frozen=True):
    reason: str
    """``invalid_hp`` or ``done``."""
    detail: str = ""


class SayMetadata(Asked, frozen=True):
    metadata: dict[str, Any]


class BestValidation(msgspec.Struct, frozen=True, kw_only=True):
    """The best value of the search metric in the whole experiment so far."""

    found: bool
    value: float = 0.0
    trial: int = 0
    step: int = 0


class StorageWay(msgspec.Struct, frozen=True, kw_only=True):
    """How a member or a client of the same machine reaches the workspace's blobs without the master.

    ``folder`` is the blobs' own folder if they are one; it is the right one if the file ``proof`` in it holds
    ``content``. Whoever cannot read that goes through the master.
    """

    folder: str = ""
    proof: str = ""
    content: str = ""


# -- custom search methods ----------------------------------------------------------------------------------------


class SearchEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Events behind a cursor, and what the method last asked to be given back. ``over``: nothing more will come."""

    events: tuple[SearchEvent, ...]
    answered: int
    """Every event up to this one has been answered."""
    state: bytes = b""
    over: bool = False


class AnswerSearch(Asked, frozen=True):
    cursor: int
    operations: tuple[Operation, ...] = ()
    state: bytes = b""


# -- detached runs ------------------------------------------------------------------------------------------------


class BeginDetached(Asked, frozen=True):
    """A run that nobody schedules. The same ``key`` goes on with the same trial, in a new epoch."""

    name: str
    key: str
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    hparams: dict[str, Any] = msgspec.field(default_factory=dict)
    workspace: str = "default"
    project: str = ""


class DetachedBegun(msgspec.Struct, frozen=True, kw_only=True):
    experiment: str
    trial: str
    task: str
    epoch: int
    token: str
    """For everything this run says from now on."""
    checkpoint: str = ""
    checkpoint_step: int = 0
    heartbeat_s: float = 60.0


class DetachedOutput(Asked, frozen=True, kw_only=True):
    """What a detached run printed: bytes of one stream from an offset on. A repeat is ignored, a hole refused."""

    stream: str = "stdout"
    offset: int
    data: bytes
    at: float = 0.0


class OutputTaken(msgspec.Struct, frozen=True, kw_only=True):
    """Every byte of the stream before ``offset`` is durable."""

    offset: int


class EndDetached(Asked, frozen=True):
    failed: bool = False
    detail: str = ""
