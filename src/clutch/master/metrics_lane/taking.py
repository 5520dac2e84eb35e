"""Which batches of a call are new, and the change they become. Pure.

A repeat is dropped, a missing number is refused by naming the next one, and then nothing of that call is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain

from msgspec.structs import replace

from clutch.master.metrics_lane.columns import FLOATS, INTEGERS, Column, columns_of, merged
from clutch.master.metrics_lane.digests import with_news
from clutch.master.metrics_lane.packing import chunk_of, digests_in, empty_chunk, every_column, packed_chunk
from clutch.master.metrics_lane.records import PACK_ROWS, PACK_VALUES, Chunk, SourceChange, SourceState
from clutch.wire.errors import BadRequest, Conflict, TooLarge
from clutch.wire.metrics import (
    BATCH_MAX_POINTS,
    NAME_MAX,
    POINT_MAX_VALUES,
    TEXT_MAX,
    MetricBatch,
    MetricPoint,
    Value,
    heard,
)

_INTEGERS = range(-(2**63), 2**63)


class News:
    """What calls bring that a source has not, in the order in which they come."""

    def __init__(self, state: SourceState) -> None:
        self._state = state
        self._points: list[MetricPoint] = []
        self._parts: list[list[Column]] = []
        self.reached = state.sequence

    def take(self, batches: Iterable[MetricBatch]) -> None:
        """One call's batches; it brings all of them or, when it is refused, nothing."""
        name = f"{self._state.member} {self._state.fence}"
        points, reached = fresh(batches, self.reached, name)
        points, columns = _checked(points, name)
        self._parts.append(columns)
        self._points += points
        self.reached = reached

    def change(self, loose: Sequence[Chunk]) -> SourceChange | None:
        """The change that makes it durable; with ``loose`` chunks it packs them together. None where nothing is new."""
        state, points = self._state, self._points
        if self.reached == state.sequence:
            return None
        columns = self._parts[0] if len(self._parts) == 1 else merged(self._parts)
        values = values_in(points)
        packs = bool(loose) or values >= PACK_VALUES
        span = (state.sequence + 1, self.reached)
        if loose:
            every = merged([*map(every_column, loose), columns])
            put = packed_chunk([*loose, empty_chunk(span, points)], every)
        else:
            put = chunk_of(span, points, columns)
        changed = replace(
            state,
            version=state.version + 1,
            sequence=self.reached,
            loose_start=self.reached + 1 if packs else state.loose_start,
            loose_rows=0 if packs else state.loose_rows + 1,
            loose_points=0 if packs else state.loose_points + values,
            latest=with_news(state.latest, digests_in(columns)),
        )
        return SourceChange(changed, (put,), tuple(one.first for one in loose))


def fresh(batches: Iterable[MetricBatch], reached: int, name: str) -> tuple[list[MetricPoint], int]:
    """The points of the batches behind ``reached``, and the sequence they reach."""
    points: list[MetricPoint] = []
    for batch in batches:
        if batch.sequence <= 0:
            raise BadRequest(f"no batch has number {batch.sequence}", object=name, next_step="Count from 1.")
        if batch.sequence <= reached:
            continue
        if batch.sequence != reached + 1:
            raise Conflict(
                f"batch {batch.sequence} came, batch {reached + 1} is missing",
                object=name,
                next_step=f"Send from batch {reached + 1} on.",
            )
        if len(batch.points) > BATCH_MAX_POINTS:
            raise TooLarge(f"{len(batch.points)} points in a batch, at most {BATCH_MAX_POINTS}", object=name)
        points += batch.points
        reached = batch.sequence
    return points, reached


def _checked(points: list[MetricPoint], name: str) -> tuple[list[MetricPoint], list[Column]]:
    """Points as they can be stored, and their columns. What is asked of each is asked of all at once: they are many."""
    if not all(map(math.isfinite, [point.at for point in points])):
        raise BadRequest("a point's time must be a time", object=name, path="at")
    steps = [point.step for point in points]
    for step in (min(steps), max(steps)) if steps else ():
        if step not in _INTEGERS:
            raise BadRequest(f"step {step} is out of range", object=name, path="step")
    columns = columns_of(points)
    if len(columns) > POINT_MAX_VALUES and (widest := max(len(point.values) for point in points)) > POINT_MAX_VALUES:
        raise TooLarge(f"{widest} values in a point, at most {POINT_MAX_VALUES}", object=name)
    for word in chain({point.group for point in points}, [column.name for column in columns]):
        if not 0 < len(word) <= NAME_MAX:
            raise BadRequest(f"a name must have 1 to {NAME_MAX} characters", object=name, path=word[:40])
    if all(map(_is_storable, columns)):
        return points, columns
    points = [
        replace(point, values={key: _value(value, name, key) for key, value in point.values.items()})
        for point in points
    ]
    return points, columns_of(points)


def _is_storable(column: Column) -> bool:
    """Whether these values can be kept as they came."""
    kind, values = column.kind, column.values
    return kind == FLOATS or (kind == INTEGERS and min(values) in _INTEGERS and max(values) in _INTEGERS)


def _value(value: Value, name: str, key: str) -> Value:
    if isinstance(value, str):
        if len(value) > TEXT_MAX:
            raise TooLarge(f"a text of {len(value)} characters, at most {TEXT_MAX}", object=name, path=key)
        return heard(value)
    if isinstance(value, int) and value not in _INTEGERS:
        return float(value) if abs(value) < 10**300 else math.inf if value > 0 else -math.inf
    return value


def values_in(points: Iterable[MetricPoint]) -> int:
    return sum(map(len, [point.values for point in points]))


def needs_loose(state: SourceState, values: int) -> bool:
    """Whether the loose rows will be packed, so that they must be read first."""
    return bool(state.loose_rows) and (state.loose_rows + 1 >= PACK_ROWS or state.loose_points + values >= PACK_VALUES)
