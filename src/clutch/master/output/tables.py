"""The tables of an output store, for both SQL stores: columns, and rows back to records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clutch.master.lanes.rows import LaneRows
from clutch.master.output.packing import checked
from clutch.master.output.records import Kind, Segment, StreamState
from clutch.wire.errors import Stale
from clutch.wire.ids import Fence, MemberId, TaskId

VERSION = 1
"""Of the schema. A store of a newer release is refused."""

DISOWNED, BEHIND_DISOWNED = "\x7f", "\x80"
"""Streams that are being removed belong to a task of this name and their id; no task is called so."""

STREAM_COLUMNS = (
    "task", "role", "rank", "generation", "epoch", "incarnation", "stream",
    "id", "version", "committed", "lines", "line_start", "line_at", "tail_start", "tail_rows", "first_at", "last_at",
    "done",
)  # fmt: skip
KEY_COLUMNS = STREAM_COLUMNS[:7]
MOVING_COLUMNS = STREAM_COLUMNS[8:]
INDEX_COLUMNS = (
    "start_byte", "end_byte", "kind", "first_at", "last_at", "first_line", "lines", "line_start", "line_at", "size",
    "checksum",
)  # fmt: skip
SEGMENT_COLUMNS = (*INDEX_COLUMNS, "body")


def key_of(state: StreamState) -> tuple[Any, ...]:
    member, fence = state.member, state.fence
    return (member.task, member.role, member.rank, fence.generation, fence.epoch, fence.incarnation, state.stream)


def moving_of(state: StreamState) -> tuple[Any, ...]:
    """The values that change, in the order of ``MOVING_COLUMNS``."""
    return (
        state.version, state.committed, state.lines, state.line_start, state.line_at, state.tail_start,
        state.tail_rows, state.first_at, state.last_at, state.done,
    )  # fmt: skip


def state_from(row: Sequence[Any]) -> StreamState:
    """From the columns in the order of ``STREAM_COLUMNS``."""
    task, role, rank, generation, epoch, incarnation, stream, *rest = row
    rest[-1] = bool(rest[-1])
    member = MemberId(TaskId(task), role, rank)
    return StreamState(member, Fence(generation, epoch, incarnation), stream, *rest)


def values_of(segment: Segment) -> tuple[Any, ...]:
    """In the order of ``SEGMENT_COLUMNS``."""
    return (
        segment.start, segment.end, int(segment.kind), segment.first_at, segment.last_at, segment.first_line,
        segment.lines, segment.line_start, segment.line_at, segment.size, segment.checksum, segment.body,
    )  # fmt: skip


def segment_from(row: Sequence[Any]) -> Segment:
    """From ``INDEX_COLUMNS``, or from ``SEGMENT_COLUMNS`` with its checksum looked at."""
    start, end, kind, *rest = row
    segment = Segment(start, end, Kind(kind), *rest)
    return checked(segment) if len(row) == len(SEGMENT_COLUMNS) else segment


def moved(state: StreamState) -> Stale:
    return Stale(
        f"the stream is not at version {state.version - 1} any more",
        object=str(state.key),
        next_step="Look at it again; another master has written.",
    )


ROWS = LaneRows(
    states="output_streams",
    parts="output_segments",
    owner="stream",
    place="start_byte",
    key_columns=KEY_COLUMNS,
    moving_columns=MOVING_COLUMNS,
    part_columns=SEGMENT_COLUMNS,
    key_of=key_of,
    moving_of=moving_of,
    values_of=values_of,
    moved=moved,
)
