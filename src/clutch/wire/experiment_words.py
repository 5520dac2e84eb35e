"""What may be said to an experiment: by its user, by its trials, by a search method of the user's own.

Each is the payload of a ``TellController``; whoever says it hears when it is durable, or why it was refused. Everything
may be said twice.
"""

from __future__ import annotations

from typing import Any

import msgspec

# -- by its trials, through the push API --------------------------------------------------------------------------


class Validated(msgspec.Struct, frozen=True, tag="validated"):
    """A validation that its lane has committed. The first one of a trial and step counts, later ones are ignored."""

    task: str
    epoch: int
    step: int
    values: dict[str, float]
    """The numbers among the metrics; NaN and the infinities too."""
    at: float = 0.0


class OperationDone(msgspec.Struct, frozen=True, tag="operation_done"):
    """The trial has trained up to ``length``. ``value`` is the search metric there; None: its last validation's."""

    task: str
    epoch: int
    length: int
    value: float | None = None


class EarlyExit(msgspec.Struct, frozen=True, tag="early_exit"):
    """The trial wants no more: ``invalid_hp`` has it replaced, ``done`` ends it as it is."""

    task: str
    epoch: int
    reason: str
    detail: str = ""


class SetMetadata(msgspec.Struct, frozen=True, tag="set_metadata"):
    """Laid over what is there, key by key; null removes one."""

    task: str
    metadata: dict[str, Any]


class Matched(msgspec.Struct, frozen=True, tag="matched"):
    """A line of a trial's output matched an output rule."""

    task: str
    epoch: int
    node: str
    rule: str
    line: str = ""


# -- by its user --------------------------------------------------------------------------------------------------


class PauseExperiment(msgspec.Struct, frozen=True, tag="pause"):
    pass


class ResumeExperiment(msgspec.Struct, frozen=True, tag="resume"):
    pass


class CancelExperiment(msgspec.Struct, frozen=True, tag="cancel"):
    """Trials checkpoint and leave; then it is over."""


class KillExperiment(msgspec.Struct, frozen=True, tag="kill"):
    pass


class StopTrial(msgspec.Struct, frozen=True, tag="stop_trial"):
    """End one trial: ``kill`` at once, else after a checkpoint."""

    trial: int
    kill: bool = False


class EditExperiment(msgspec.Struct, frozen=True, tag="edit", kw_only=True):
    """What is None stays. Bounds of resources and retention count from now on."""

    name: str | None = None
    description: str | None = None
    notes: str | None = None
    labels: tuple[str, ...] | None = None
    project: str | None = None
    archived: bool | None = None
    priority: int | None = None
    max_slots: int | None = None
    save_experiment_best: int | None = None
    save_trial_best: int | None = None
    save_trial_latest: int | None = None


class ContinueExperiment(msgspec.Struct, frozen=True, tag="continue", kw_only=True):
    """More work for an experiment that is over: its ended trials go on from their last checkpoints, same numbers.

    Which: those of ``trials``, or all that failed or were cancelled, or (of a ``single`` search) the one there is; with
    a longer ``max_time`` those that completed, too.
    """

    trials: tuple[int, ...] = ()
    max_time: int = 0
    """The new length; 0: as it was."""
    max_trials: int = 0
    """A search goes on until it has made so many; 0: as it was."""
    hparams: dict[str, Any] = {}
    """Laid over the trials' own; what the program reads from them may say how long it trains."""
    max_restarts: int = -1


class PinCheckpoints(msgspec.Struct, frozen=True, tag="pin"):
    """``by`` holds these checkpoints, or no longer does."""

    checkpoints: tuple[str, ...]
    by: str
    hold: bool = True


class DeleteCheckpoints(msgspec.Struct, frozen=True, tag="delete_checkpoints"):
    """Remove their files; with ``globs`` only those whose path matches one."""

    checkpoints: tuple[str, ...]
    globs: tuple[str, ...] = ()


class DescribeCheckpoint(msgspec.Struct, frozen=True, tag="describe_checkpoint", kw_only=True):
    """Say something else of a checkpoint. ``base``: what its manifest says, which never changes."""

    checkpoint: str
    base: dict[str, str] = {}
    set: dict[str, str] = {}
    remove: tuple[str, ...] = ()


class DeleteExperiment(msgspec.Struct, frozen=True, tag="delete"):
    """It, its files, metrics and output."""


class Forgotten(msgspec.Struct, frozen=True, tag="forgotten"):
    """Metrics and output of a deleted experiment are gone."""


# -- by a search method that runs elsewhere -----------------------------------------------------------------------


class MakeTrial(msgspec.Struct, frozen=True, tag="create"):
    """``request`` is the method's own name for it and is told in every event about it."""

    request: str
    hparams: dict[str, Any] = {}
    """Laid over what the spec's hyperparameters give; what is missing is drawn."""
    checkpoint: str = ""
    """Begin from this checkpoint; ``request:NAME``: from the latest of that trial."""


class TrainTo(msgspec.Struct, frozen=True, tag="train"):
    request: str
    length: int


class CloseTrial(msgspec.Struct, frozen=True, tag="close"):
    """No more work for it: it ends when it has done what it was asked, or is stopped now."""

    request: str
    now: bool = False


class SetProgress(msgspec.Struct, frozen=True, tag="progress"):
    fraction: float


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """The search is over when the trials that live have ended."""

    failed: bool = False
    detail: str = ""


Operation = MakeTrial | TrainTo | CloseTrial | SetProgress | Shutdown


class SearchAnswered(msgspec.Struct, frozen=True, tag="search_answered"):
    """A custom method's answer to all events up to ``cursor``; one to events already answered is ignored."""

    cursor: int
    operations: tuple[Operation, ...]
    state: bytes = b""
    """What the method wants back if it has to start again; at most 1 MiB."""


class SearchEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What a custom method is told, numbered from 1.

    ``kind``: ``begin``, ``created``, ``validated``, ``trained``, ``closed``, ``exited`` (failed, cancelled or
    invalid), ``extended`` (its user wants more), ``ended`` (the search is over).
    """

    number: int
    kind: str
    request: str = ""
    trial: int = 0
    hparams: dict[str, Any] = {}
    step: int = 0
    length: int = 0
    value: float | None = None
    values: dict[str, float] = {}
    reason: str = ""


# -- by a detached run --------------------------------------------------------------------------------------------


class DetachedBegan(msgspec.Struct, frozen=True, tag="detached_began"):
    """The program of a detached trial has started (again): a new epoch."""


class DetachedSaved(msgspec.Struct, frozen=True, tag="detached_saved"):
    """A checkpoint of a detached trial is whole in its store."""

    epoch: int
    checkpoint: str
    step: int
    size_bytes: int = 0
    storage: str = ""


class DetachedEnded(msgspec.Struct, frozen=True, tag="detached_ended"):
    """It has ended, or nobody has heard of it for too long."""

    epoch: int
    failed: bool
    detail: str = ""


# -- by the experiment itself, to webhooks -----------------------------------------------------------------------

WEBHOOK = "webhook"
"""The kind of effect that tells others of an experiment."""


class ExperimentNews(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment is in another state, or a trial printed what an output rule looks for. The payload of what it owes
    to webhooks."""

    experiment: str
    name: str
    workspace: str
    project: str
    owner: str
    state: str
    """That it is in."""
    detail: str
    """Why; or the line that matched."""
    at: float
    webhooks: tuple[str, ...] = ()
    """Named by its spec, besides those of its workspace."""
    event: str = "state"
    """Or ``matched``."""
    trial: int = 0
    rule: str = ""
    """That matched."""

    @property
    def told(self) -> str:
        """What it is about, in a word: the state, or ``matched:RULE``."""
        return f"{self.event}:{self.rule}" if self.rule else self.state


RELEASE = "release"
"""The kind of effect that lets go of the checkpoint from which an experiment's trials begin."""


def holder_of(experiment: str) -> str:
    """Who holds the checkpoint that an experiment's trials begin from, until it is over."""
    return f"experiment:{experiment}"


class Release(msgspec.Struct, frozen=True):
    """An experiment is over: its source need not be kept for it any more."""

    checkpoint: str
    by: str


Said = (
    Validated | OperationDone | EarlyExit | SetMetadata | Matched | PauseExperiment | ResumeExperiment
    | CancelExperiment | KillExperiment | StopTrial | EditExperiment | ContinueExperiment | PinCheckpoints
    | DeleteCheckpoints | DescribeCheckpoint | DeleteExperiment | Forgotten | SearchAnswered | DetachedBegan
    | DetachedSaved | DetachedEnded
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Said] = msgspec.msgpack.Decoder(Said)


def say(said: Said) -> bytes:
    return _encoder.encode(said)


def heard(payload: bytes) -> Said:
    return _decoder.decode(payload)
