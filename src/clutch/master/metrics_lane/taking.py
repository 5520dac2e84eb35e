"""Which batches of a call are new, and the rows they become. Pure.

A repeat is dropped, a missing number is refused by naming the next one, and then nothing of that call is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain

from msgspec.structs import replace

from clutch.master.metrics_lane.columns import Row, columns_of, merged
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


def fresh(batches: Iterable[MetricBatch], reached: int, name: str) -> tuple[list[Row], int]:
    """The points of the batches behind ``reached``, and the sequence they reach."""
    rows: list[Row] = []
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
        rows += _checked(batch.points, name)
        reached = batch.sequence
    return rows, reached


def _checked(points: Sequence[MetricPoint], name: str) -> list[Row]:
    """Points as rows. What is asked of each is asked of all at once: there are a hundred thousand a second."""
    for step in (min(steps), max(steps)) if (steps := [point.step for point in points]) else ():
        if step not in _INTEGERS:
            raise BadRequest(f"step {step} is out of range", object=name, path="step")
    if not all(map(math.isfinite, [point.at for point in points])):
        raise BadRequest("a point's time must be a time", object=name, path="at")
    shapes = {tuple(point.values) for point in points}
    widest = max(map(len, shapes), default=0)
    if widest > POINT_MAX_VALUES:
        raise TooLarge(f"{widest} values in a point, at most {POINT_MAX_VALUES}", object=name)
    for word in {point.group for point in points}.union(*shapes):
        if not 0 < len(word) <= NAME_MAX:
            raise BadRequest(f"a name must have 1 to {NAME_MAX} characters", object=name, path=word[:40])
    if set(map(type, chain.from_iterable([point.values.values() for point in points]))) <= {float}:
        return [(point.group, point.step, point.at, point.values) for point in points]
    return [
        (point.group, point.step, point.at, {key: _value(value, name, key) for key, value in point.values.items()})
        for point in points
    ]


def _value(value: Value, name: str, key: str) -> Value:
    if isinstance(value, str):
        if len(value) > TEXT_MAX:
            raise TooLarge(f"a text of {len(value)} characters, at most {TEXT_MAX}", object=name, path=key)
        return heard(value)
    if isinstance(value, int) and value not in _INTEGERS:
        return float(value) if abs(value) < 10**300 else math.copysign(math.inf, value)
    return value


def values_in(rows: Iterable[Row]) -> int:
    return sum(len(row[3]) for row in rows)


def needs_loose(state: SourceState, values: int) -> bool:
    """Whether the loose rows will be packed, so that they must be read first."""
    return bool(state.loose_rows) and (state.loose_rows + 1 >= PACK_ROWS or state.loose_points + values >= PACK_VALUES)


def build(state: SourceState, rows: Sequence[Row], reached: int, loose: Sequence[Chunk]) -> SourceChange:
    """The change that makes new points durable; with ``loose`` chunks it packs them together."""
    values = values_in(rows)
    news = columns_of(rows)
    packs = bool(loose) or values >= PACK_VALUES
    span = (state.sequence + 1, reached)
    if loose:
        columns = merged([*map(every_column, loose), news])
        put = packed_chunk([*loose, empty_chunk(span, rows)], columns)
    else:
        put = chunk_of(span, rows, news)
    changed = replace(
        state,
        version=state.version + 1,
        sequence=reached,
        loose_start=reached + 1 if packs else state.loose_start,
        loose_rows=0 if packs else state.loose_rows + 1,
        loose_points=0 if packs else state.loose_points + values,
        latest=with_news(state.latest, digests_in(news)),
    )
    return SourceChange(changed, (put,), tuple(one.first for one in loose))
