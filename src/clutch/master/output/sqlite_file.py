"""The output store's SQLite file as its threads see it: plain calls, one connection each, one transaction each."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clutch.backends.journal.sqlite_file import connect, speaking_of, use_write_ahead_log
from clutch.master.output.records import Aged, Segment, Span, StreamChange, StreamState
from clutch.master.output.tables import (
    BEHIND_DISOWNED,
    DISOWNED,
    INDEX_COLUMNS,
    KEY_COLUMNS,
    MOVING_COLUMNS,
    SEGMENT_COLUMNS,
    STREAM_COLUMNS,
    VERSION,
    key_of,
    moved,
    moving_of,
    refuse_newer,
    segment_from,
    state_from,
    values_of,
)
from clutch.wire.errors import BadRequest
from clutch.wire.ids import Fence, MemberId, TaskId

_SCHEMA = """
CREATE TABLE output_schema (version INTEGER NOT NULL);
CREATE TABLE output_streams (
    id INTEGER PRIMARY KEY AUTOINCREMENT, task TEXT NOT NULL, role TEXT NOT NULL, rank INTEGER NOT NULL,
    generation INTEGER NOT NULL, epoch INTEGER NOT NULL, incarnation INTEGER NOT NULL, stream TEXT NOT NULL,
    version INTEGER NOT NULL, committed INTEGER NOT NULL, lines INTEGER NOT NULL, line_start INTEGER NOT NULL,
    line_at REAL NOT NULL, tail_start INTEGER NOT NULL, tail_rows INTEGER NOT NULL, first_at REAL NOT NULL,
    last_at REAL NOT NULL, done INTEGER NOT NULL,
    UNIQUE (task, role, rank, generation, epoch, incarnation, stream));
CREATE TABLE output_segments (
    stream INTEGER NOT NULL, start_byte INTEGER NOT NULL, end_byte INTEGER NOT NULL, kind INTEGER NOT NULL,
    first_at REAL NOT NULL, last_at REAL NOT NULL, first_line INTEGER NOT NULL, lines INTEGER NOT NULL,
    line_start INTEGER NOT NULL, line_at REAL NOT NULL, size INTEGER NOT NULL, checksum INTEGER NOT NULL,
    body BLOB NOT NULL);
CREATE UNIQUE INDEX output_segments_place ON output_segments (stream, start_byte);
CREATE INDEX output_segments_age ON output_segments (last_at, stream, start_byte, size) WHERE size > 0;
"""
_STREAMS = f"SELECT {', '.join(STREAM_COLUMNS)} FROM output_streams"
_ADD_STREAM = (
    f"INSERT INTO output_streams ({', '.join((*KEY_COLUMNS, *MOVING_COLUMNS))}) "
    f"VALUES ({', '.join('?' * (len(KEY_COLUMNS) + len(MOVING_COLUMNS)))})"
)
_MOVE_STREAM = (
    f"UPDATE output_streams SET {', '.join(f'{name} = ?' for name in MOVING_COLUMNS)} WHERE id = ? AND version = ?"
)
_ADD_SEGMENT = (
    f"INSERT INTO output_segments (stream, {', '.join(SEGMENT_COLUMNS)}) "
    f"VALUES ({', '.join('?' * (1 + len(SEGMENT_COLUMNS)))})"
)
_DROP_SEGMENT = "DELETE FROM output_segments WHERE stream = ? AND start_byte = ?"
_FIRST = "coalesce((SELECT max(start_byte) FROM output_segments WHERE stream = ? AND start_byte <= ?), 0)"
_SWEEP_SEGMENTS = 500
_VACUUM_PAGES = 2_000


def prepare(path: Path) -> None:
    """Create the file or see that it is ours and not newer than we are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.touch(mode=0o600)
    db = connect(path)
    try:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and "output_schema" not in tables:
            raise BadRequest("this SQLite file holds something else", object=str(path), next_step="Name another file.")
        if not tables:
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        use_write_ahead_log(db)
        db.execute("BEGIN IMMEDIATE")
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'output_schema'").fetchone():
            for statement in filter(str.strip, _SCHEMA.split(";")):
                db.execute(statement)
            db.execute("INSERT INTO output_schema VALUES (?)", (VERSION,))
        (version,) = db.execute("SELECT version FROM output_schema").fetchone()
        db.execute("COMMIT")
        refuse_newer(version, str(path))
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

    def write(self, changes: Sequence[StreamChange]) -> list[int]:
        with self._transaction():
            return [self._change(change) for change in changes]

    def _change(self, change: StreamChange) -> int:
        state = change.state
        if state.id:
            stream = state.id
            moving = (*moving_of(state), stream, state.version - 1)
            if self._db.execute(_MOVE_STREAM, moving).rowcount != 1:
                raise moved(state)
        else:
            try:
                stream = self._db.execute(_ADD_STREAM, (*key_of(state), *moving_of(state))).lastrowid or 0
            except sqlite3.IntegrityError:
                raise moved(state) from None
        if change.drops:
            self._db.executemany(_DROP_SEGMENT, [(stream, start) for start in change.drops])
        if change.puts:
            self._db.executemany(_ADD_SEGMENT, [(stream, *values_of(segment)) for segment in change.puts])
        return stream

    def disown(self, task: TaskId) -> int:
        """Take a task's streams away from it, so that nobody sees them while they are removed; how many."""
        with self._transaction():
            query = "UPDATE output_streams SET task = ? || id, version = version + 1 WHERE task = ?"
            return self._db.execute(query, (DISOWNED, task)).rowcount

    def sweep(self) -> bool:
        """Remove some of what belongs to no task any more; whether there was any."""
        with self._transaction():
            query = "SELECT id FROM output_streams WHERE task >= ? AND task < ? LIMIT 50"
            streams = [stream for (stream,) in self._db.execute(query, (DISOWNED, BEHIND_DISOWNED))]
            marks = ", ".join("?" * len(streams))
            some = f"SELECT rowid FROM output_segments WHERE stream IN ({marks}) LIMIT {_SWEEP_SEGMENTS}"
            gone = self._db.execute(f"DELETE FROM output_segments WHERE rowid IN ({some})", streams).rowcount
            if gone < _SWEEP_SEGMENTS:
                self._db.execute(f"DELETE FROM output_streams WHERE id IN ({marks})", streams)
            return bool(streams)

    def shrink(self) -> None:
        """Give pages that hold nothing back to the file system, a few at a time."""
        with speaking_of(self.path):
            self._db.execute(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})").fetchall()


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

    def states(self, incarnations: Sequence[tuple[MemberId, Fence]]) -> list[StreamState]:
        where = "WHERE task = ? AND role = ? AND rank = ? AND generation = ? AND epoch = ? AND incarnation = ?"
        found: list[StreamState] = []
        for member, fence in incarnations:
            key = (member.task, member.role, member.rank, fence.generation, fence.epoch, fence.incarnation)
            found += [state_from(row) for row in self._rows(f"{_STREAMS} {where}", key)]
        return found

    def streams(self, task: TaskId) -> list[StreamState]:
        return [state_from(row) for row in self._rows(f"{_STREAMS} WHERE task = ? ORDER BY id", (task,))]

    def segments(self, span: Span) -> list[Segment]:
        columns = ", ".join(SEGMENT_COLUMNS if span.bodies else INDEX_COLUMNS)
        order = "DESC" if span.newest_first else "ASC"
        query = (
            f"SELECT {columns} FROM output_segments WHERE stream = ? AND start_byte >= {_FIRST} AND start_byte < ? "
            f"AND end_byte > ? ORDER BY start_byte {order} LIMIT ?"
        )
        values = (span.stream, span.stream, span.start, span.stop, span.start, span.limit_rows)
        found: list[Segment] = []
        size = 0
        with speaking_of(self.path):
            for row in self._db.execute(query, values):
                segment = segment_from(row)
                found.append(segment)
                size += 0 if segment.kind.is_gap else segment.end - segment.start
                if span.bodies and size >= span.limit_bytes:
                    break
        return found

    def oldest(self, after: tuple[float, int, int], limit: int) -> list[Aged]:
        query = (
            "SELECT s.task, g.stream, g.start_byte, g.last_at, g.size FROM output_segments g "
            "JOIN output_streams s ON s.id = g.stream WHERE g.size > 0 "
            "AND (g.last_at, g.stream, g.start_byte) > (?, ?, ?) ORDER BY g.last_at, g.stream, g.start_byte LIMIT ?"
        )
        return [Aged(*row) for row in self._rows(query, (*after, limit))]

    def size_bytes(self) -> int:
        ((total,),) = self._rows("SELECT coalesce(sum(size), 0) FROM output_segments WHERE size > 0", ())
        return int(total)
