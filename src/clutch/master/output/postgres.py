"""Output in PostgreSQL, on connections of its own: nothing durable is on the master's disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clutch.master.lanes.connections import LaneConnections
from clutch.master.lanes.postgres_rows import PostgresRows
from clutch.master.output.records import Aged, Segment, Span, StreamChange, StreamState
from clutch.master.output.tables import (
    DISOWNED,
    INDEX_COLUMNS,
    ROWS,
    SEGMENT_COLUMNS,
    STREAM_COLUMNS,
    VERSION,
    segment_from,
    state_from,
)
from clutch.wire.ids import Fence, MemberId, TaskId

_TYPES = dict.fromkeys((*STREAM_COLUMNS, *SEGMENT_COLUMNS), "bigint") | {
    "task": "text", "role": "text", "stream": "text", "line_at": "float8", "first_at": "float8", "last_at": "float8",
    "done": "boolean", "kind": "smallint", "body": "bytea",
}  # fmt: skip
_SCHEMA = (
    """CREATE TABLE output_streams (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, task text NOT NULL, role text NOT NULL, rank bigint NOT NULL,
    generation bigint NOT NULL, epoch bigint NOT NULL, incarnation bigint NOT NULL, stream text NOT NULL,
    version bigint NOT NULL, committed bigint NOT NULL, lines bigint NOT NULL, line_start bigint NOT NULL,
    line_at float8 NOT NULL, tail_start bigint NOT NULL, tail_rows bigint NOT NULL, first_at float8 NOT NULL,
    last_at float8 NOT NULL, done boolean NOT NULL,
    UNIQUE (task, role, rank, generation, epoch, incarnation, stream)) WITH (fillfactor = 80)""",
    """CREATE TABLE output_segments (
    stream bigint NOT NULL, start_byte bigint NOT NULL, end_byte bigint NOT NULL, kind smallint NOT NULL,
    first_at float8 NOT NULL, last_at float8 NOT NULL, first_line bigint NOT NULL, lines bigint NOT NULL,
    line_start bigint NOT NULL, line_at float8 NOT NULL, size bigint NOT NULL, checksum bigint NOT NULL,
    body bytea NOT NULL, PRIMARY KEY (stream, start_byte))""",
    # Bodies are packed already.
    "ALTER TABLE output_segments ALTER COLUMN body SET STORAGE EXTERNAL",
    "CREATE INDEX output_segments_age ON output_segments (last_at, stream, start_byte, size) WHERE size > 0",
)
_STREAMS = f"SELECT {', '.join(STREAM_COLUMNS)} FROM output_streams"
_OLDEST = """SELECT s.task, g.stream, g.start_byte, g.last_at, g.size FROM output_segments g
    JOIN output_streams s ON s.id = g.stream WHERE g.size > 0 AND (g.last_at, g.stream, g.start_byte) > ($1, $2, $3)
    ORDER BY g.last_at, g.stream, g.start_byte LIMIT $4"""
_SWEEP_SEGMENTS = 500
_SWEEP = """DELETE FROM output_segments WHERE (stream, start_byte) IN
    (SELECT stream, start_byte FROM output_segments WHERE stream = ANY($1) LIMIT $2)"""


def _segments(span: Span) -> str:
    """Rows in order, until those before a row hold as many bytes as were asked for."""
    order = "DESC" if span.newest_first else "ASC"
    columns = SEGMENT_COLUMNS if span.bodies else INDEX_COLUMNS
    rows = f"""SELECT {", ".join(columns)} FROM output_segments WHERE stream = $1 AND start_byte < $3 AND end_byte > $2
        AND start_byte >= coalesce(
            (SELECT max(start_byte) FROM output_segments WHERE stream = $1 AND start_byte <= $2), 0)
        ORDER BY start_byte {order} LIMIT $4"""
    if not span.bodies:
        return rows
    held = "CASE WHEN kind < 2 THEN end_byte - start_byte ELSE 0 END"
    before = f"sum({held}) OVER (ORDER BY start_byte {order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    return f"""SELECT {", ".join(columns)} FROM (SELECT *, {before} AS before FROM ({rows}) AS near) AS counted
        WHERE coalesce(before, 0) < $5 ORDER BY start_byte {order}"""


class PostgresOutputStore:
    """Use ``open``."""

    def __init__(self, url: str) -> None:
        self._database = LaneConnections(url, "output")
        self._rows = PostgresRows(ROWS, _TYPES)

    @classmethod
    async def open(cls, url: str) -> PostgresOutputStore:
        """Connect, and create the tables unless they are there."""
        store = cls(url)
        await store._database.open(VERSION, _SCHEMA)
        return store

    async def states(self, incarnations: Sequence[tuple[MemberId, Fence]]) -> list[StreamState]:
        if not incarnations:
            return []
        keys = [(m.task, m.role, m.rank, f.generation, f.epoch, f.incarnation) for m, f in incarnations]
        query = f"""{_STREAMS} WHERE (task, role, rank, generation, epoch, incarnation) IN (SELECT * FROM unnest(
            $1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[]))"""
        return [state_from(row) for row in await self._database.fetch(query, *map(list, zip(*keys, strict=True)))]

    async def streams(self, *tasks: TaskId) -> list[StreamState]:
        query = f"{_STREAMS} WHERE task = ANY($1::text[]) ORDER BY id"
        return [state_from(row) for row in await self._database.fetch(query, list(tasks))]

    async def write(self, changes: Sequence[StreamChange]) -> list[int]:
        async with self._database.writing() as connection:
            return await self._rows.write(connection, changes)

    async def segments(self, span: Span) -> list[Segment]:
        values: list[Any] = [span.stream, span.start, span.stop, span.limit_rows]
        if span.bodies:
            values.append(span.limit_bytes)
        return [segment_from(tuple(row)) for row in await self._database.fetch(_segments(span), *values)]

    async def oldest(self, after: tuple[float, int, int], limit: int) -> list[Aged]:
        return [Aged(*row) for row in await self._database.fetch(_OLDEST, *after, limit)]

    async def size_bytes(self) -> int:
        query = "SELECT coalesce(sum(size), 0)::bigint FROM output_segments WHERE size > 0"
        return int((await self._database.fetch(query))[0][0])

    async def forget(self, task: TaskId) -> int:
        async with self._database.writing() as connection:
            disown = "UPDATE output_streams SET task = $2 || id, version = version + 1 WHERE task = $1"
            gone = await connection.execute(disown, task, DISOWNED)
        while await self._sweep():
            pass
        return int(gone.rpartition(" ")[2])

    async def _sweep(self) -> bool:
        """Remove some of what belongs to no task any more; whether there was any."""
        async with self._database.writing() as connection, connection.transaction():
            query = "SELECT id FROM output_streams WHERE starts_with(task, $1) LIMIT 50 FOR UPDATE"
            streams = [row["id"] for row in await connection.fetch(query, DISOWNED)]
            gone = await connection.execute(_SWEEP, streams, _SWEEP_SEGMENTS)
            if int(gone.rpartition(" ")[2]) < _SWEEP_SEGMENTS:
                await connection.execute("DELETE FROM output_streams WHERE id = ANY($1)", streams)
            return bool(streams)

    async def close(self) -> None:
        await self._database.close()
