"""The output store's SQLite file as its threads see it: plain calls, one connection each, one transaction each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from clutch.backends.journal.sqlite_file import speaking_of
from clutch.master.lanes.sqlite_file import FileSchema, LaneReader, LaneWriter
from clutch.master.output.records import Aged, Segment, Span, StreamState
from clutch.master.output.tables import (
    BEHIND_DISOWNED,
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

_SCHEMA = FileSchema(
    "output",
    VERSION,
    """
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
""",
    shrinks=True,
)
_STREAMS = f"SELECT {', '.join(STREAM_COLUMNS)} FROM output_streams"
_FIRST = "coalesce((SELECT max(start_byte) FROM output_segments WHERE stream = ? AND start_byte <= ?), 0)"
_SWEEP_SEGMENTS = 500
_VACUUM_PAGES = 2_000


class Writer(LaneWriter[StreamState, Segment]):
    """The writer's side. Every method runs in the one writer thread."""

    def __init__(self, path: Path, max_bytes: int | None) -> None:
        super().__init__(path, _SCHEMA, ROWS, max_bytes)

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


class Reader(LaneReader):
    """The reader's side: its own connection, never waits for the writer. Used by one thread."""

    def states(self, incarnations: Sequence[tuple[MemberId, Fence]]) -> list[StreamState]:
        where = "WHERE task = ? AND role = ? AND rank = ? AND generation = ? AND epoch = ? AND incarnation = ?"
        found: list[StreamState] = []
        for member, fence in incarnations:
            key = (member.task, member.role, member.rank, fence.generation, fence.epoch, fence.incarnation)
            found += [state_from(row) for row in self._rows(f"{_STREAMS} {where}", key)]
        return found

    def streams(self, tasks: Sequence[TaskId]) -> list[StreamState]:
        some = "SELECT value FROM json_each(?)"
        query = f"{_STREAMS} WHERE task IN ({some}) ORDER BY id"
        return [state_from(row) for row in self._rows(query, (json.dumps(tasks),))]

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
