"""What an experiment remembers, as facts: each note says what was decided, whole, so that folding it knows no policy.

A note that shows in a trial's workloads carries the number of its row. Fields are only added, with defaults: notes of
earlier versions stay readable.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from clutch.wire.experiment_words import EditExperiment
from clutch.wire.experiments import ExperimentState, TrialState


class End(StrEnum):
    """Why a trial was asked to end; it decides what it becomes when its task has ended."""

    STOP = "stop"  # the search wants no more of it
    FINISH = "finish"  # it has done all that it was asked
    INVALID = "invalid"  # its program refused its hyperparameters
    CANCEL = "cancel"  # its user does
    KILL = "kill"  # its user does, at once


# -- the experiment -----------------------------------------------------------------------------------------------


class Began(msgspec.Struct, frozen=True, tag="began"):
    at: float


class Moved(msgspec.Struct, frozen=True, tag="moved"):
    """``owed``: how many times by now somebody outside is to be told of its state."""

    state: ExperimentState
    at: float
    detail: str = ""
    owed: int = 0


class Remarked(msgspec.Struct, frozen=True, tag="remarked"):
    """Something about it that its user should know, where its state stays."""

    detail: str
    metric_missing: bool = False


class Remembered(msgspec.Struct, frozen=True, tag="remembered"):
    """A fact of the search method."""

    fact: bytes


class SearchOver(msgspec.Struct, frozen=True, tag="search_over"):
    failed: bool
    detail: str = ""


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled"):
    """Its user ends it: the search is asked nothing more."""


class Edited(msgspec.Struct, frozen=True, tag="edited"):
    edit: EditExperiment


class Extended(msgspec.Struct, frozen=True, tag="extended"):
    """It is over no more."""

    at: float
    max_time: int = 0
    max_restarts: int = -1


class Deferred(msgspec.Struct, frozen=True, tag="deferred"):
    """What the search wanted while nothing new may begin. ``action``: make, train, stop, finish."""

    action: str
    trial: int
    length: int = 0
    hparams: dict[str, Any] = {}
    from_trial: int = 0
    from_checkpoint: str = ""
    request: str = ""


class DeferredTaken(msgspec.Struct, frozen=True, tag="deferred_taken"):
    """The first of what was deferred is being carried out."""


class SearcherBegan(msgspec.Struct, frozen=True, tag="searcher_began"):
    task: str


class SearcherStopped(msgspec.Struct, frozen=True, tag="searcher_stopped"):
    """Asked to leave: there is nothing more to search."""


class SearcherEnded(msgspec.Struct, frozen=True, tag="searcher_ended"):
    pass


class Tidied(msgspec.Struct, frozen=True, tag="tidied"):
    """It was decided which checkpoints stay."""


class CleanupBegan(msgspec.Struct, frozen=True, tag="cleanup_began"):
    task: str
    checkpoints: tuple[str, ...]
    at: float
    globs: tuple[str, ...] = ()


class CleanupEnded(msgspec.Struct, frozen=True, tag="cleanup_ended"):
    task: str
    well: bool


class Pinned(msgspec.Struct, frozen=True, tag="pinned"):
    checkpoints: tuple[str, ...]
    by: str
    hold: bool


class Described(msgspec.Struct, frozen=True, tag="described"):
    """All that is said of a checkpoint from now on."""

    checkpoint: str
    metadata: dict[str, str]


class HeardForgotten(msgspec.Struct, frozen=True, tag="heard_forgotten"):
    """Its metrics and output are gone."""


class Removed(msgspec.Struct, frozen=True, tag="removed"):
    """Nothing is left of it."""


class Closing(msgspec.Struct, frozen=True, tag="closing"):
    """It is put away whole."""

    at: float


# -- its trials ---------------------------------------------------------------------------------------------------


class TrialMade(msgspec.Struct, frozen=True, tag="trial_made"):
    trial: int
    task: str
    hparams: dict[str, Any]
    seed: int
    at: float
    warm_start: str = ""
    request: str = ""


class TrialContinued(msgspec.Struct, frozen=True, tag="trial_continued"):
    """It goes on after its end, as another task."""

    trial: int
    task: str
    hparams: dict[str, Any]
    at: float
    warm_start: str = ""


class TrialMoved(msgspec.Struct, frozen=True, tag="trial_moved"):
    trial: int
    state: TrialState


class TrialOver(msgspec.Struct, frozen=True, tag="trial_over"):
    trial: int
    state: TrialState
    row: int
    at: float
    epoch: int = 0
    step: int = 0
    detail: str = ""
    told: bool = True
    """The search was told."""


class EndWished(msgspec.Struct, frozen=True, tag="end_wished"):
    """``row``: 0 where it is not the search that wishes so."""

    trial: int
    end: End
    at: float
    row: int = 0
    epoch: int = 0
    step: int = 0
    detail: str = ""


class Finishing(msgspec.Struct, frozen=True, tag="finishing"):
    """Nothing more will be asked of it."""

    trial: int


class Asked(msgspec.Struct, frozen=True, tag="asked"):
    """To train up to a length."""

    trial: int
    length: int
    row: int
    at: float
    epoch: int = 0


class OperationOver(msgspec.Struct, frozen=True, tag="operation_over"):
    """``done``, or dropped."""

    trial: int
    length: int
    row: int
    done: bool
    asked_at: float
    at: float
    epoch: int = 0
    step: int = 0


class RunStarted(msgspec.Struct, frozen=True, tag="run_started"):
    trial: int
    epoch: int
    row: int
    at: float
    nodes: tuple[str, ...] = ()


class RunOver(msgspec.Struct, frozen=True, tag="run_over"):
    """``row``: 0 where nothing interrupted it. ``step``: ``preempt`` or ``restart``."""

    trial: int
    epoch: int
    failures: int
    at: float
    row: int = 0
    step: str = ""
    why: str = ""


class ValidationHeard(msgspec.Struct, frozen=True, tag="validation_heard"):
    """``value``: the search metric, smaller is better, infinite where there is none. ``shown``: as it was reported."""

    trial: int
    step: int
    time: float
    value: float
    epoch: int
    row: int
    at: float
    shown: str = ""


class Saved(msgspec.Struct, frozen=True, tag="saved"):
    trial: int
    checkpoint: str
    task: str
    epoch: int
    step: int
    row: int
    at: float
    size_bytes: int = 0
    storage: str = ""


class Labelled(msgspec.Struct, frozen=True, tag="labelled"):
    """An output rule matched. ``node``: it runs there no more."""

    trial: int
    label: str
    node: str = ""
    final: bool = False
    """Its next failure is its last."""
    owed: int = 0
    """As in ``Moved``."""


class ExitTold(msgspec.Struct, frozen=True, tag="exit_told"):
    """The search has been told that it is over, after the experiment went on."""

    trial: int


class MetadataSet(msgspec.Struct, frozen=True, tag="metadata_set"):
    trial: int
    metadata: dict[str, Any]


OfTrial = (
    TrialMade | TrialContinued | TrialMoved | TrialOver | EndWished | Finishing | Asked | OperationOver
    | RunStarted | RunOver | ValidationHeard | Saved | Labelled | MetadataSet | ExitTold
)  # fmt: skip

OfExperiment = (
    Began | Moved | Remarked | Remembered | SearchOver | Cancelled | Edited | Extended | Deferred | DeferredTaken
    | SearcherBegan | SearcherStopped | SearcherEnded | Tidied | CleanupBegan | CleanupEnded | Pinned | Described
    | HeardForgotten | Removed | Closing
)  # fmt: skip

Fact = OfTrial | OfExperiment

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Fact] = msgspec.msgpack.Decoder(Fact)


def note(fact: Fact) -> bytes:
    return _encoder.encode(fact)


def noted(payload: bytes) -> Fact:
    return _decoder.decode(payload)
