"""The metrics store's SQLite file as its threads see it: plain calls, one connection each, one transaction each."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clutch.backends.journal.sqlite_file import connect, speaking_of, use_write_ahead_log
from clutch.master.metrics_lane.records import Chunk, ChunkSpan, SourceChange, SourceState, TaskMetrics, moved
from clutch.master.metrics_lane.tables import (
    CHUNK_COLUMNS,
    KEY_COLUMNS,
    MOVING_COLUMNS,
    SOURCE_COLUMNS,
    VERSION,
    chunk_from,
    key_of,
    moving_of,
    state_from,
    values_of,
)
from clutch.wire.errors import BadRequest, TooNew
from clutch.wire.ids import Epoch, Fence, MemberId, TaskId

_SCHEMA = """
CREATE TABLE metrics_schema (version INTEGER NOT NULL);
CREATE TABLE metrics_sources (
    id INTEGER PRIMARY KEY AUTOINCREMENT, task TEXT NOT NULL, role TEXT NOT NULL, rank INTEGER NOT NULL,
    generation INTEGER NOT NULL, epoch INTEGER NOT NULL, incarnation INTEGER NOT NULL, version INTEGER NOT NULL,
    sequence INTEGER NOT NULL, loose_start INTEGER NOT NULL, loose_rows INTEGER NOT NULL,
    loose_points INTEGER NOT NULL, latest BLOB NOT NULL,
    UNIQUE (task, role, rank, generation, epoch, incarnation));
CREATE TABLE metrics_chunks (
    source INTEGER NOT NULL, first_batch INTEGER NOT NULL, last_batch INTEGER NOT NULL, low_step INTEGER NOT NULL,
    high_step INTEGER NOT NULL, points INTEGER NOT NULL, checksum INTEGER NOT NULL, body BLOB NOT NULL);
CREATE UNIQUE INDEX metrics_chunks_place ON metrics_chunks (source, first_batch);
CREATE TABLE metrics_resumed (
    task TEXT NOT NULL, epoch INTEGER NOT NULL, step INTEGER NOT NULL, PRIMARY KEY (task, epoch)) WITHOUT ROWID;
"""
_SOURCES = f"SELECT {', '.join(SOURCE_COLUMNS)} FROM metrics_sources"
_ADD = (
    f"INSERT INTO metrics_sources ({', '.join((*KEY_COLUMNS, *MOVING_COLUMNS))}) "
    f"VALUES ({', '.join('?' * (len(KEY_COLUMNS) + len(MOVING_COLUMNS)))})"
)
_MOVE = f"UPDATE metrics_sources SET {', '.join(f'{n} = ?' for n in MOVING_COLUMNS)} WHERE id = ? AND version = ?"
_ADD_CHUNK = (
    f"INSERT INTO metrics_chunks (source, {', '.join(CHUNK_COLUMNS)}) "
    f"VALUES ({', '.join('?' * (1 + len(CHUNK_COLUMNS)))})"
)


def prepare(path: Path) -> None:
    """Create the file or see that it is ours and not newer than we are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.touch(mode=0o600)
    db = connect(path)
    try:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and "metrics_schema" not in tables:
            raise BadRequest("this SQLite file holds something else", object=str(path), next_step="Name another file.")
        use_write_ahead_log(db)
        db.execute("BEGIN IMMEDIATE")
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'metrics_schema'").fetchone():
            for statement in filter(str.strip, _SCHEMA.split(";")):
                db.execute(statement)
            db.execute("INSERT INTO metrics_schema VALUES (?)", (VERSION,))
        (version,) = db.execute("SELECT version FROM metrics_schema").fetchone()
        db.execute("COMMIT")
        if version > VERSION:
            raise TooNew(
                f"the metrics store has schema {version}, this release knows {VERSION}",
                object=str(path),
                next_step="Start the newer release; nothing was changed.",
            )
    finally:
        db.close()


class Writer:
    """The writer's side. Every method runs in the one writer thread."""

    def __init__(self, path: Path, max_bytes: int | None) -> None:
        self.path = path
        prepare(path)
        self._db = connect(path)
        if max_bytes is not None:
            (page,) = self._db.execute("PRAGMA page_size").fetchone()
            self._db.execute(f"PRAGMA max_page_count = {max(max_bytes // page, 1)}")
        self._db.execute("PRAGMA journal_size_limit = 67108864")
        self._db.execute("PRAGMA secure_delete = FAST")  # making room on a full disk must not need much of it

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with speaking_of(self.path):
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def write(self, changes: Sequence[SourceChange]) -> list[int]:
        with self._transaction():
            return [self._change(change) for change in changes]

    def _change(self, change: SourceChange) -> int:
        state = change.state
        if state.id:
            source = state.id
            if self._db.execute(_MOVE, (*moving_of(state), source, state.version - 1)).rowcount != 1:
                raise moved(state)
        else:
            try:
                source = self._db.execute(_ADD, (*key_of(*state.incarnation), *moving_of(state))).lastrowid or 0
            except sqlite3.IntegrityError:
                raise moved(state) from None
        drop = "DELETE FROM metrics_chunks WHERE source = ? AND first_batch = ?"
        self._db.executemany(drop, [(source, first) for first in change.drops])
        self._db.executemany(_ADD_CHUNK, [(source, *values_of(put)) for put in change.puts])
        return source

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


class Reader:
    """The reader's side: its own connection, never waits for the writer. Used by one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db = connect(path)
        self._db.execute("PRAGMA query_only = ON")

    def close(self) -> None:
        self._db.close()

    def _rows(self, query: str, values: Sequence[Any]) -> list[Any]:
        with speaking_of(self.path):
            return self._db.execute(query, values).fetchall()

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
            f"SELECT {', '.join(CHUNK_COLUMNS)} FROM metrics_chunks WHERE source = ? AND first_batch >= ? "
            "AND low_step <= ? AND high_step >= ? ORDER BY first_batch LIMIT ?"
        )
        values = (span.source, span.first, span.high, span.low, span.limit)
        return [chunk_from(row) for row in self._rows(query, values)]
