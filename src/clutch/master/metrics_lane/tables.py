"""The tables of a metrics store, for both SQL stores: columns, and rows back to records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clutch.master.lanes.rows import LaneRows
from clutch.master.metrics_lane.packing import checked
from clutch.master.metrics_lane.records import Chunk, ChunkSpan, SourceState, moved
from clutch.wire.ids import Fence, MemberId, TaskId

VERSION = 2
"""Of the schema. A store of a newer release is refused."""
KEY_COLUMNS = ("task", "role", "rank", "generation", "epoch", "incarnation")
MOVING_COLUMNS = ("version", "sequence", "loose_start", "loose_rows", "loose_points", "latest")
SOURCE_COLUMNS = (*KEY_COLUMNS, "id", *MOVING_COLUMNS)
CHUNK_COLUMNS = ("first_batch", "last_batch", "low_step", "high_step", "points", "checksum", "brief", "body")


def part_of(briefs: bool, nothing: str) -> str:
    """The columns of a chunk, of which one of the last two is left out; ``nothing`` is an empty value."""
    brief, body = "brief", "body"
    if briefs:
        body = f"CASE WHEN length(brief) = 0 THEN body ELSE {nothing} END"
    else:
        brief = nothing
    return ", ".join((*CHUNK_COLUMNS[:-2], brief, body))


def key_of(member: MemberId, fence: Fence) -> tuple[Any, ...]:
    return (member.task, member.role, member.rank, fence.generation, fence.epoch, fence.incarnation)


def moving_of(state: SourceState) -> tuple[Any, ...]:
    """The values that change, in the order of ``MOVING_COLUMNS``."""
    return (
        state.version, state.sequence, state.loose_start, state.loose_rows, state.loose_points, state.latest,
    )  # fmt: skip


def state_from(row: Sequence[Any]) -> SourceState:
    """From the columns in the order of ``SOURCE_COLUMNS``."""
    task, role, rank, generation, epoch, incarnation, *rest = row
    return SourceState(MemberId(TaskId(task), role, rank), Fence(generation, epoch, incarnation), *rest)


def values_of(chunk: Chunk) -> tuple[Any, ...]:
    """In the order of ``CHUNK_COLUMNS``."""
    return (chunk.first, chunk.last, chunk.low, chunk.high, chunk.points, chunk.checksum, chunk.brief, chunk.body)


def chunk_from(row: Sequence[Any]) -> Chunk:
    return checked(Chunk(*row))


def in_order(span: ChunkSpan, chunks: list[Chunk]) -> list[Chunk]:
    """Chunks as they were asked for; the newest are found from the end."""
    return chunks[::-1] if span.newest else chunks


ROWS = LaneRows(
    states="metrics_sources",
    parts="metrics_chunks",
    owner="source",
    place="first_batch",
    key_columns=KEY_COLUMNS,
    moving_columns=MOVING_COLUMNS,
    part_columns=CHUNK_COLUMNS,
    key_of=lambda state: key_of(*state.incarnation),
    moving_of=moving_of,
    values_of=values_of,
    moved=moved,
)
