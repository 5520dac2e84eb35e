"""The metrics store's SQLite file as its threads see it: plain calls, one connection each, one transaction each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clutch.master.lanes.sqlite_file import FileSchema, LaneReader, LaneWriter
from clutch.master.metrics_lane.records import Chunk, ChunkSpan, SourceState, TaskMetrics
from clutch.master.metrics_lane.tables import (
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

_SCHEMA = FileSchema(
    "metrics",
    VERSION,
    """
CREATE TABLE metrics_schema (version INTEGER NOT NULL);
CREATE TABLE metrics_sources (
    id INTEGER PRIMARY KEY AUTOINCREMENT, task TEXT NOT NULL, role TEXT NOT NULL, rank INTEGER NOT NULL,
    generation INTEGER NOT NULL, epoch INTEGER NOT NULL, incarnation INTEGER NOT NULL, version INTEGER NOT NULL,
    sequence INTEGER NOT NULL, loose_start INTEGER NOT NULL, loose_rows INTEGER NOT NULL,
    loose_points INTEGER NOT NULL, latest BLOB NOT NULL,
    UNIQUE (task, role, rank, generation, epoch, incarnation));
CREATE TABLE metrics_chunks (
    source INTEGER NOT NULL, first_batch INTEGER NOT NULL, last_batch INTEGER NOT NULL, low_step INTEGER NOT NULL,
    high_step INTEGER NOT NULL, points INTEGER NOT NULL, checksum INTEGER NOT NULL, brief BLOB NOT NULL,
    body BLOB NOT NULL);
CREATE UNIQUE INDEX metrics_chunks_place ON metrics_chunks (source, first_batch);
CREATE TABLE metrics_resumed (
    task TEXT NOT NULL, epoch INTEGER NOT NULL, step INTEGER NOT NULL, PRIMARY KEY (task, epoch)) WITHOUT ROWID;
""",
    upgrades={2: "ALTER TABLE metrics_chunks ADD COLUMN brief BLOB NOT NULL DEFAULT x''"},
)
_NOTHING = "x''"
_SOURCES = f"SELECT {', '.join(SOURCE_COLUMNS)} FROM metrics_sources"


class Writer(LaneWriter[SourceState, Chunk]):
    """The writer's side. Every method runs in the one writer thread."""

    def __init__(self, path: Path, max_bytes: int | None) -> None:
        super().__init__(path, _SCHEMA, ROWS, max_bytes)

    def resume(self, task: TaskId, epoch: Epoch, step: int) -> None:
        with self._transaction():
            self._db.execute("INSERT OR IGNORE INTO metrics_resumed VALUES (?, ?, ?)", (task, epoch, step))

    def forget_some(self, task: TaskId) -> tuple[int, bool]:
        """Remove a source or two of a task; how many went, and whether there may be more."""
        with self._transaction():
            found = self._db.execute("SELECT id FROM metrics_sources WHERE task = ? LIMIT 20", (task,))
            sources = [source for (source,) in found]
            if not sources:
                self._db.execute("DELETE FROM metrics_resumed WHERE task = ?", (task,))
                return 0, False
            marks = ", ".join("?" * len(sources))
            self._db.execute(f"DELETE FROM metrics_chunks WHERE source IN ({marks})", sources)
            return self._db.execute(f"DELETE FROM metrics_sources WHERE id IN ({marks})", sources).rowcount, True


class Reader(LaneReader):
    """The reader's side: its own connection, never waits for the writer. Used by one thread."""

    def known(self, incarnations: Sequence[tuple[MemberId, Fence]]) -> list[SourceState]:
        where = " AND ".join(f"{name} = ?" for name in KEY_COLUMNS)
        return [
            state_from(row) for one in incarnations for row in self._rows(f"{_SOURCES} WHERE {where}", key_of(*one))
        ]

    def newest(self, limit: int) -> list[SourceState]:
        columns = ", ".join(SOURCE_COLUMNS[:-1])
        query = f"SELECT {columns} FROM metrics_sources ORDER BY id DESC LIMIT ?"
        return [state_from(row) for row in self._rows(query, (limit,))]

    def task(self, task: TaskId) -> TaskMetrics:
        sources = self._rows(f"{_SOURCES} WHERE task = ? ORDER BY id", (task,))
        resumed = self._rows("SELECT epoch, step FROM metrics_resumed WHERE task = ? ORDER BY epoch", (task,))
        return TaskMetrics(tuple(map(state_from, sources)), dict(resumed))

    def chunks(self, span: ChunkSpan) -> list[Chunk]:
        query = (
            f"SELECT {part_of(span.briefs, _NOTHING)} FROM metrics_chunks WHERE source = ? AND first_batch >= ? "
            f"AND low_step <= ? AND high_step >= ? ORDER BY first_batch {'DESC' if span.newest else 'ASC'} LIMIT ?"
        )
        values = (span.source, span.first, span.high, span.low, span.limit)
        return in_order(span, [chunk_from(row) for row in self._rows(query, values)])
