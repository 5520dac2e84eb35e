"""The contract of a search method: told what happened to trials, it answers with actions. Pure, seeded, snapshot-able.

A method is a decision maker like every other here: ``decide(state, event) -> actions``, and what it must remember it
says as ``Remember``, which ``apply`` folds at once and at every start. ``apply`` knows no policy: a rung is entered
where the fact says so. Chance comes from the experiment's seed and a trial's number alone (``search/sampling.py``): the
same spec makes the same trials in whatever order things happen.

A *value* is the search metric with its sign turned so that smaller is better, and NaN as +infinity: methods never ask
which way is up. A *time* is how far the trial is, as ``SearchSpec.time_metric`` or the step says.

    single    random    grid    asha    adaptive_asha    pbt    custom (also tpe)
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from clutch.wire.experiment_words import Operation

# -- what it is told ----------------------------------------------------------------------------------------------


class Began(msgspec.Struct, frozen=True):
    """The experiment begins."""


class Validated(msgspec.Struct, frozen=True):
    """The first durable validation of a trial at a step. ``values``: all its numbers, as they were reported."""

    trial: int
    step: int
    time: float
    value: float
    values: dict[str, float] = {}


class Trained(msgspec.Struct, frozen=True):
    """A trial has trained up to the length it was asked for: it said so, or validated at or beyond it."""

    trial: int
    length: int
    value: float


class How(StrEnum):
    COMPLETED = "completed"  # its program ended by itself, or did all that was asked
    STOPPED = "stopped"  # as this method wished
    FAILED = "failed"
    CANCELLED = "cancelled"  # by its user
    INVALID = "invalid"  # its program refused these hyperparameters: it does not count


class Exited(msgspec.Struct, frozen=True):
    """A trial is over."""

    trial: int
    how: How


class Answered(msgspec.Struct, frozen=True):
    """A custom method's process has answered everything up to ``cursor``."""

    cursor: int
    operations: tuple[Operation, ...]
    state: bytes = b""


class Extended(msgspec.Struct, frozen=True):
    """Its user wants more: so many trials in all, or this length; 0 leaves it. A search that was over goes on.

    ``trials``: ended ones that go on under their own numbers. They live again, and are told their length after this.
    A method that cannot do it raises ``BadRequest``.
    """

    max_trials: int = 0
    max_time: int = 0
    trials: tuple[int, ...] = ()


Event = Began | Validated | Trained | Exited | Answered | Extended

# -- what it may answer -------------------------------------------------------------------------------------------


class Make(msgspec.Struct, frozen=True):
    """A trial. Numbers are given by the method, 1, 2, 3 and so on, each once."""

    trial: int
    hparams: dict[str, Any]
    from_trial: int = 0
    """Begin from the latest checkpoint of this trial; 0: from none."""
    from_checkpoint: str = ""
    request: str = ""
    """A custom method's own name for it."""


class Train(msgspec.Struct, frozen=True):
    """A trial shall train up to this length, counted from its very beginning."""

    trial: int
    length: int


class Stop(msgspec.Struct, frozen=True):
    """A trial shall leave now, and end."""

    trial: int


class Finish(msgspec.Struct, frozen=True):
    """Nothing more will be asked of a trial: it ends as soon as it has done what it was asked."""

    trial: int


class Over(msgspec.Struct, frozen=True):
    """The search is over; the experiment is, when its last trial is."""

    failed: bool = False
    detail: str = ""


class Remember(msgspec.Struct, frozen=True):
    """A fact of the method's own."""

    fact: bytes


Action = Make | Train | Stop | Finish | Over | Remember


class SearchMethod(Protocol):
    """``state`` is whatever ``open`` returned and ``apply`` made of it since; treat it as a value.

    The caller folds each ``Remember`` before it takes the next action.
    """

    def open(self) -> Any:
        """The state it begins with."""
        ...

    def decide(self, state: Any, event: Event) -> Iterable[Action]: ...

    def apply(self, state: Any, fact: bytes) -> Any:
        """Total; knows no policy."""
        ...

    def progress(self, state: Any) -> float:
        """How much of the search is done, from 0 to 1."""
        ...

    def dump(self, state: Any) -> bytes: ...

    def load(self, payload: bytes) -> Any: ...
