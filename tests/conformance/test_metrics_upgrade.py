"""Metrics that an earlier release stored (schema 1, chunks of rows) are led to the present schema and read."""

import sqlite3
import uuid
import zlib
from pathlib import Path
from typing import Any

import asyncpg
import msgspec

from clutch.master.metrics_lane.base import MetricsStore
from clutch.master.metrics_lane.postgres import PostgresMetricsStore
from clutch.master.metrics_lane.sqlite import SqliteMetricsStore
from clutch.testing.metrics_suite import FENCE, MEMBER, batch, metrics_on, point
from clutch.testing.postgres import fresh_database
from clutch.wire.metrics import MetricsQuery

ROWS = [("training", n, float(n), {"loss": n / 2}) for n in range(100)]
BODY = zlib.compress(msgspec.msgpack.encode(ROWS), 1)
LATEST = msgspec.msgpack.encode({"training": {"loss": (99, 99.0, 49.5)}})
SOURCE = (MEMBER.task, MEMBER.role, MEMBER.rank, 1, 1, 1, 1, 1, 1, 1, 100, LATEST)
CHUNK = (1, 1, 1, 0, 99, 100, zlib.crc32(BODY), BODY)
TABLES = (
    "CREATE TABLE metrics_schema (version {n} NOT NULL)",
    """CREATE TABLE metrics_sources (id {id}, task TEXT NOT NULL, role TEXT NOT NULL, rank {n} NOT NULL,
    generation {n} NOT NULL, epoch {n} NOT NULL, incarnation {n} NOT NULL, version {n} NOT NULL, sequence {n} NOT NULL,
    loose_start {n} NOT NULL, loose_rows {n} NOT NULL, loose_points {n} NOT NULL, latest {b} NOT NULL,
    UNIQUE (task, role, rank, generation, epoch, incarnation))""",
    """CREATE TABLE metrics_chunks (source {n} NOT NULL, first_batch {n} NOT NULL, last_batch {n} NOT NULL,
    low_step {n} NOT NULL, high_step {n} NOT NULL, points {n} NOT NULL, checksum {n} NOT NULL, body {b} NOT NULL)""",
    "CREATE UNIQUE INDEX metrics_chunks_place ON metrics_chunks (source, first_batch)",
    "CREATE TABLE metrics_resumed (task TEXT, epoch {n} NOT NULL, step {n} NOT NULL, PRIMARY KEY (task, epoch))",
    "INSERT INTO metrics_schema VALUES (1)",
)
COLUMNS = (
    "task, role, rank, generation, epoch, incarnation, version, sequence, loose_start, loose_rows, loose_points, latest"
)


async def _read_and_go_on(store: MetricsStore) -> None:
    async with metrics_on(store) as lane:
        assert lane.reached(MEMBER, FENCE) == 1
        (series,) = await lane.series(MetricsQuery(task=MEMBER.task))
        assert [one.value for one in series.points] == [n / 2 for n in range(100)]
        (found,) = await lane.summaries(MEMBER.task)
        assert (found.count, found.mean, found.last) == (100, 24.75, 49.5)
        await lane.write(MEMBER, FENCE, [batch(2, *(point(100 + n, loss=1.0) for n in range(9_000)))])
        await lane.write(MEMBER, FENCE, [batch(3, *(point(10_000 + n, loss=1.0) for n in range(9_000)))])
        (found,) = await lane.summaries(MEMBER.task)
        assert (found.count, found.last_step) == (18_100, 18_999)
        (series,) = await lane.series(MetricsQuery(task=MEMBER.task, points_max=20))
        assert series.total == 18_100


async def test_an_older_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.db"
    db = sqlite3.connect(path)
    for statement in TABLES:
        db.execute(statement.format(n="INTEGER", b="BLOB", id="INTEGER PRIMARY KEY AUTOINCREMENT"))
    db.execute(f"INSERT INTO metrics_sources ({COLUMNS}) VALUES ({', '.join('?' * len(SOURCE))})", SOURCE)
    db.execute(f"INSERT INTO metrics_chunks VALUES ({', '.join('?' * len(CHUNK))})", CHUNK)
    db.commit()
    db.close()
    for _ in range(2):
        store = await SqliteMetricsStore.open(path)
        if _ == 0:
            await _read_and_go_on(store)
        await store.close()
    db = sqlite3.connect(path)
    assert db.execute("SELECT version FROM metrics_schema").fetchall() == [(2,)]
    db.close()


async def test_older_tables(postgres_address: Any) -> None:
    async with fresh_database(postgres_address, f"metrics_{uuid.uuid4().hex}") as database:
        connection = await asyncpg.connect(database)
        for statement in TABLES:
            await connection.execute(
                statement.format(n="bigint", b="bytea", id="bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY")
            )
        marks = ", ".join(f"${n + 1}" for n in range(len(SOURCE)))
        await connection.execute(f"INSERT INTO metrics_sources ({COLUMNS}) VALUES ({marks})", *SOURCE)
        marks = ", ".join(f"${n + 1}" for n in range(len(CHUNK)))
        await connection.execute(f"INSERT INTO metrics_chunks VALUES ({marks})", *CHUNK)
        store = await PostgresMetricsStore.open(database)
        await _read_and_go_on(store)
        await store.close()
        again = await PostgresMetricsStore.open(database)
        await again.close()
        assert [row[0] for row in await connection.fetch("SELECT version FROM metrics_schema")] == [2]
        await connection.close()
