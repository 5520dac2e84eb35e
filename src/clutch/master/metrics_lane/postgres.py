"""Metrics in PostgreSQL, on connections of their own: nothing durable is on the master's disk."""

from __future__ import annotations

from collections.abc import Sequence

from clutch.master.lanes.connections import LaneConnections
from clutch.master.lanes.postgres_rows import PostgresRows
from clutch.master.metrics_lane.records import Chunk, ChunkSpan, SourceChange, SourceState, TaskMetrics
from clutch.master.metrics_lane.tables import (
    CHUNK_COLUMNS,
    KEY_COLUMNS,
    ROWS,
    SOURCE_COLUMNS,
    VERSION,
    chunk_from,
    in_order,
    key_of,
    part_of,
    state_from,
)
from clutch.wire.ids import Epoch, Fence, MemberId, TaskId

_BRIEF_STORAGE = "ALTER TABLE metrics_chunks ALTER COLUMN brief SET STORAGE EXTERNAL"
_SCHEMA = (
    """CREATE TABLE metrics_sources (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, task text NOT NULL, role text NOT NULL, rank bigint NOT NULL,
    generation bigint NOT NULL, epoch bigint NOT NULL, incarnation bigint NOT NULL, version bigint NOT NULL,
    sequence bigint NOT NULL, loose_start bigint NOT NULL, loose_rows bigint NOT NULL, loose_points bigint NOT NULL,
    latest bytea NOT NULL, UNIQUE (task, role, rank, generation, epoch, incarnation)) WITH (fillfactor = 80)""",
    """CREATE TABLE metrics_chunks (
    source bigint NOT NULL, first_batch bigint NOT NULL, last_batch bigint NOT NULL, low_step bigint NOT NULL,
    high_step bigint NOT NULL, points bigint NOT NULL, checksum bigint NOT NULL, brief bytea NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (source, first_batch))""",
    # Bodies are packed already.
    "ALTER TABLE metrics_chunks ALTER COLUMN body SET STORAGE EXTERNAL",
    _BRIEF_STORAGE,
    """CREATE TABLE metrics_resumed (
    task text NOT NULL, epoch bigint NOT NULL, step bigint NOT NULL, PRIMARY KEY (task, epoch))""",
)
_UPGRADES = {
    2: ("ALTER TABLE metrics_chunks ADD COLUMN brief bytea NOT NULL DEFAULT ''::bytea", _BRIEF_STORAGE),
}
_SOURCES = f"SELECT {', '.join(SOURCE_COLUMNS)} FROM metrics_sources"
_KEY = ", ".join(KEY_COLUMNS)
_TYPES = dict.fromkeys((*SOURCE_COLUMNS, *CHUNK_COLUMNS), "bigint") | {
    "task": "text", "role": "text", "latest": "bytea", "brief": "bytea", "body": "bytea",
}  # fmt: skip
_CHUNKS = """SELECT {} FROM metrics_chunks WHERE source = $1 AND first_batch >= $2
    AND low_step <= $3 AND high_step >= $4 ORDER BY first_batch {} LIMIT $5"""


class PostgresMetricsStore:
    """Use ``open``."""

    def __init__(self, url: str) -> None:
        self._database = LaneConnections(url, "metrics")
        self._rows = PostgresRows(ROWS, _TYPES)

    @classmethod
    async def open(cls, url: str) -> PostgresMetricsStore:
        """Connect, and create the tables unless they are there."""
        store = cls(url)
        await store._database.open(VERSION, _SCHEMA, _UPGRADES)
        return store

    async def known(self, incarnations: Sequence[tuple[MemberId, Fence]]) -> list[SourceState]:
        if not incarnations:
            return []
        keys = [key_of(*one) for one in incarnations]
        query = f"""{_SOURCES} WHERE ({_KEY}) IN (SELECT * FROM unnest(
            $1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[]))"""
        return [state_from(row) for row in await self._database.fetch(query, *map(list, zip(*keys, strict=True)))]

    async def newest(self, limit: int) -> list[SourceState]:
        columns = ", ".join(SOURCE_COLUMNS[:-1])
        query = f"SELECT {columns} FROM metrics_sources ORDER BY id DESC LIMIT $1"
        return [state_from(row) for row in await self._database.fetch(query, limit)]

    async def task(self, task: TaskId) -> TaskMetrics:
        sources = await self._database.fetch(f"{_SOURCES} WHERE task = $1 ORDER BY id", task)
        resumed = await self._database.fetch(
            "SELECT epoch, step FROM metrics_resumed WHERE task = $1 ORDER BY epoch", task
        )
        return TaskMetrics(tuple(map(state_from, sources)), {row["epoch"]: row["step"] for row in resumed})

    async def write(self, changes: Sequence[SourceChange]) -> list[int]:
        async with self._database.writing() as connection:
            return await self._rows.write(connection, changes)

    async def resume(self, task: TaskId, epoch: Epoch, step: int) -> None:
        async with self._database.writing() as connection:
            query = "INSERT INTO metrics_resumed VALUES ($1, $2, $3) ON CONFLICT (task, epoch) DO NOTHING"
            await connection.execute(query, task, epoch, step)

    async def chunks(self, span: ChunkSpan) -> list[Chunk]:
        values = (span.source, span.first, span.high, span.low, span.limit)
        query = _CHUNKS.format(part_of(span.briefs, "''::bytea"), "DESC" if span.newest else "ASC")
        return in_order(span, [chunk_from(tuple(row)) for row in await self._database.fetch(query, *values)])

    async def forget(self, task: TaskId) -> int:
        total = 0
        while True:
            async with self._database.writing() as connection, connection.transaction():
                query = "SELECT id FROM metrics_sources WHERE task = $1 LIMIT 20 FOR UPDATE"
                sources = [row["id"] for row in await connection.fetch(query, task)]
                if not sources:
                    await connection.execute("DELETE FROM metrics_resumed WHERE task = $1", task)
                    return total
                await connection.execute("DELETE FROM metrics_chunks WHERE source = ANY($1)", sources)
                await connection.execute("DELETE FROM metrics_sources WHERE id = ANY($1)", sources)
                total += len(sources)

    async def close(self) -> None:
        await self._database.close()
