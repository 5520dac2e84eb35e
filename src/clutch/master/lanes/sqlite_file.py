"""A lane's SQLite file as its threads see it: plain calls, one connection each, one transaction each."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic

import msgspec

from clutch.backends.journal.sqlite_file import connect, speaking_of, use_write_ahead_log
from clutch.master.lanes.rows import LaneChange, LaneRows, Part, State
from clutch.wire.errors import BadRequest, TooNew


class FileSchema(msgspec.Struct, frozen=True):
    """The tables of a lane's file; the one called after the lane and ``_schema`` holds their version."""

    lane: str
    version: int
    statements: str
    shrinks: bool = False
    """Whether pages that hold nothing can be given back to the file system."""
    upgrades: dict[int, str] = {}
    """What leads older tables to each version."""


def prepare(path: Path, schema: FileSchema) -> None:
    """Create the file or see that it is ours and not newer than we are."""
    table = f"{schema.lane}_schema"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.touch(mode=0o600)
    db = connect(path)
    try:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and table not in tables:
            raise BadRequest("this SQLite file holds something else", object=str(path), next_step="Name another file.")
        if schema.shrinks and not tables:
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        use_write_ahead_log(db)
        db.execute("BEGIN IMMEDIATE")
        if not db.execute(f"SELECT 1 FROM sqlite_master WHERE name = '{table}'").fetchone():
            for statement in filter(str.strip, schema.statements.split(";")):
                db.execute(statement)
            db.execute(f"INSERT INTO {table} VALUES (?)", (schema.version,))
        (version,) = db.execute(f"SELECT version FROM {table}").fetchone()
        for reached in range(version + 1, schema.version + 1):
            for statement in filter(str.strip, schema.upgrades.get(reached, "").split(";")):
                db.execute(statement)
            db.execute(f"UPDATE {table} SET version = ?", (reached,))
        db.execute("COMMIT")
        if version > schema.version:
            raise TooNew(
                f"the {schema.lane} store has schema {version}, this release knows {schema.version}",
                object=str(path),
                next_step="Start the newer release; nothing was changed.",
            )
    finally:
        db.close()


class LaneWriter(Generic[State, Part]):
    """The writer's side. Every method runs in the one writer thread."""

    def __init__(self, path: Path, schema: FileSchema, rows: LaneRows[State, Part], max_bytes: int | None) -> None:
        self.path = path
        self._rows = rows
        columns = (*rows.key_columns, *rows.moving_columns)
        moving = ", ".join(f"{name} = ?" for name in rows.moving_columns)
        self._add = f"INSERT INTO {rows.states} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        self._move = f"UPDATE {rows.states} SET {moving} WHERE id = ? AND version = ?"
        parts = (rows.owner, *rows.part_columns)
        self._put = f"INSERT INTO {rows.parts} ({', '.join(parts)}) VALUES ({', '.join('?' * len(parts))})"
        self._drop = f"DELETE FROM {rows.parts} WHERE {rows.owner} = ? AND {rows.place} = ?"
        prepare(path, schema)
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

    def write(self, changes: Sequence[LaneChange[State, Part]]) -> list[int]:
        with self._transaction():
            return [self._change(change) for change in changes]

    def _change(self, change: LaneChange[State, Part]) -> int:
        rows, state = self._rows, change.state
        if state.id:
            owner = state.id
            if self._db.execute(self._move, (*rows.moving_of(state), owner, state.version - 1)).rowcount != 1:
                raise rows.moved(state)
        else:
            try:
                owner = self._db.execute(self._add, (*rows.key_of(state), *rows.moving_of(state))).lastrowid or 0
            except sqlite3.IntegrityError:
                raise rows.moved(state) from None
        if change.drops:
            self._db.executemany(self._drop, [(owner, place) for place in change.drops])
        if change.puts:
            self._db.executemany(self._put, [(owner, *rows.values_of(part)) for part in change.puts])
        return owner


class LaneReader:
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
