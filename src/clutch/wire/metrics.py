"""Numbers that tasks report, and what is asked about them.

A member sends *batches* numbered 1, 2, 3 ... for each incarnation; the store keeps each once, in order, and says up to
which it has them. A batch holds *points*: at one step, some named values of one group (``training``, ``validation``).

A value is a float, an integer or a short text. NaN and the infinities are values like others; where a format has no
way to write them (JSON), they are written as the texts ``NaN``, ``Infinity`` and ``-Infinity``, and these three texts
mean those numbers wherever a value is read.
"""

from __future__ import annotations

import math

import msgspec

from clutch.wire.ids import Epoch, Fence, MemberId, TaskId

TRAINING, VALIDATION = "training", "validation"
BATCH_MAX_POINTS = 10_000
POINT_MAX_VALUES = 1_000
NAME_MAX = 200
"""Characters of a group's or a metric's name."""
TEXT_MAX = 1_000
"""Characters of a value that is a text."""
SERIES_MAX_POINTS = 100_000
"""So many points are answered at most for one series; more are downsampled."""
EXACT_MAX_POINTS = 100_000
"""So many points are asked for at most on one page of exact reading."""

Value = float | int | str
_SPOKEN = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def spoken(value: Value) -> Value:
    """The value for a format that has no NaN and no infinities, such as JSON."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def heard(value: Value) -> Value:
    """The value that was meant by ``spoken``."""
    return _SPOKEN.get(value, value) if isinstance(value, str) else value


class MetricPoint(msgspec.Struct, frozen=True, gc=False):
    """Values of one group at one step; ``at`` is when they were reported (seconds since 1970)."""

    group: str
    step: int
    values: dict[str, Value]
    at: float


class MetricBatch(msgspec.Struct, frozen=True, gc=False):
    """Points that are stored together. A repeated sequence number is ignored, a missing one is an error."""

    sequence: int
    points: tuple[MetricPoint, ...]


class MetricsCommitted(msgspec.Struct, frozen=True, tag="metrics_committed"):
    """The store holds every batch of this incarnation up to ``sequence``; send the next one."""

    member: MemberId
    fence: Fence
    sequence: int
    refused: str = ""
    """Why it will never take what was sent last, in words."""


class MetricsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which points of a task. Empty means any; everything that is given must hold."""

    task: TaskId
    group: str = ""
    names: tuple[str, ...] = ()
    role: str = ""
    ranks: tuple[int, ...] = ()
    epochs: tuple[Epoch, ...] = ()
    first_step: int | None = None
    last_step: int | None = None
    points_max: int = 0
    """At most so many points of each series; 0 for ``SERIES_MAX_POINTS``."""
    superseded: bool = True
    """Also those of an older epoch beyond the step from which its successor resumed."""


class SeriesPoint(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One value, or several steps' as one: ``value`` is the last of them, ``low`` and ``high`` the range of those that
    are finite numbers."""

    step: int
    at: float
    value: Value
    low: float | None = None
    high: float | None = None
    count: int = 1
    superseded: bool = False


class Series(msgspec.Struct, frozen=True, gc=False):
    """The values of one metric that one member reported in one epoch, by step."""

    group: str
    name: str
    member: MemberId
    epoch: Epoch
    points: tuple[SeriesPoint, ...]
    total: int
    """How many points there were before downsampling."""


class LatestValue(msgspec.Struct, frozen=True):
    """The newest value of a metric over all epochs and members that is not superseded."""

    group: str
    name: str
    value: Value
    step: int
    at: float
    member: MemberId
    epoch: Epoch
