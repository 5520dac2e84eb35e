"""One SQLite file as the writer thread sees it: plain calls, one connection, one transaction each.

WAL with synchronous=FULL: a commit returns after the write-ahead log is on the platter.
"""

from __future__ import annotations

import errno
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import astuple
from sqlalchemy import Connection, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from clutch.backends.journal import schema
from clutch.backends.journal.shapes import (
    COLUMNS,
    KEPT_SNAPSHOTS,
    Changes,
    chain,
    changes_of,
    check_batch,
    check_origin,
    check_snapshot,
)
from clutch.wire.errors import (
    BadRequest,
    ClutchError,
    Conflict,
    Corrupt,
    DiskFull,
    Stale,
    TooLarge,
    Unavailable,
)
from clutch.wire.journal import Batch, Chunk, Leadership, Origin, Row, Snapshot

_BUSY_S = 5.0
"""How long to wait for another process's lock on the file."""
_INSERT_ROW = "INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_ADVANCE = "UPDATE leader SET last_index = ?, last_checksum = ? WHERE id = 1 AND term = ? AND last_index = ?"
_PUT_OUTBOX = """INSERT INTO outbox (token, kind, due_at, payload) VALUES (?, ?, ?, ?) ON CONFLICT (token)
    DO UPDATE SET kind = excluded.kind, due_at = excluded.due_at, payload = excluded.payload"""


def _put_view(table: str) -> str:
    names = list(COLUMNS[table])
    columns = ", ".join(f'"{name}"' for name in names)
    marks = ", ".join("?" for _ in names)
    sets = ", ".join(f'"{name}" = excluded."{name}"' for name in names if name != "key")
    return f'INSERT INTO "{table}" ({columns}) VALUES ({marks}) ON CONFLICT ("key") DO UPDATE SET {sets}'


_PUT_VIEW = {table: _put_view(table) for table in COLUMNS}
_DROP_VIEW = {table: f'DELETE FROM "{table}" WHERE "key" = ?' for table in COLUMNS}


def translated(error: sqlite3.Error, path: Path) -> ClutchError:
    """What SQLite said, as one of our errors."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    subject = str(path)
    if code == sqlite3.SQLITE_FULL:
        return DiskFull(
            "the disk is full, or the file is at its limit",
            object=subject,
            next_step="Free space and start again; nothing was written.",
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return Corrupt(
            f"SQLite cannot read the file: {error}",
            object=subject,
            next_step="Restore the last backup into a new file (clutch restore).",
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Unavailable(
            "another process keeps the file locked", object=subject, next_step="Stop that process, or try again."
        )
    if code == sqlite3.SQLITE_TOOBIG:
        return TooLarge(
            "a value is larger than SQLite stores (1 GB)",
            object=subject,
            next_step="Keep large bytes in blobs; nothing was written.",
        )
    return Unavailable(
        f"SQLite says: {error}",
        object=subject,
        next_step="Check that the folder exists and that this user may write to it.",
    )


@contextmanager
def speaking_of(path: Path) -> Iterator[None]:
    """What SQLite, SQLAlchemy over it, or the file system says, as one of our errors."""
    try:
        yield
    except sqlite3.Error as error:
        raise translated(error, path) from error
    except DBAPIError as error:
        if isinstance(error.orig, sqlite3.Error):
            raise translated(error.orig, path) from error
        raise
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFull("the disk is full", object=str(path), next_step="Free space and start again.") from error
        step = "Check that the folder exists and that this user may write to it."
        raise Unavailable(error.strerror or str(error), object=str(path), next_step=step) from error


def connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False, cached_statements=64
    )
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA cache_size = -32768")
    return connection


def prepare(path: Path) -> None:
    """Create the file or bring it to this release's schema. ``TooNew`` and a foreign file change nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.touch(mode=0o600)
    raw = connect(path)
    engine = create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool)
    try:

        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

        tables = {name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and schema.VERSION_TABLE not in tables:
            raise BadRequest("this SQLite file holds something else", object=str(path), next_step="Name another file.")
        with engine.connect() as connection:
            schema.refuse_newer(connection, str(path))
        use_write_ahead_log(raw)
        with engine.begin() as connection:
            schema.upgrade(connection, str(path))
    finally:
        engine.dispose()
        raw.close()


def use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switching a new file over does not wait for others who open it at the same time, so this does."""
    deadline = time.monotonic() + _BUSY_S
    while connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


class SqliteFile:
    """The writer's side. Every method runs in the one writer thread."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time, max_bytes: int | None = None) -> None:
        self.path = path
        self._clock = clock
        prepare(path)
        self._db = connect(path)
        if max_bytes is not None:
            (page,) = self._db.execute("PRAGMA page_size").fetchone()
            self._db.execute(f"PRAGMA max_page_count = {max(max_bytes // page, 1)}")
        self._db.execute("PRAGMA journal_size_limit = 67108864")
        self._lead: Leadership | None = None
        self._last = (0, 0)

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

    def _leading(self) -> Leadership:
        """Inside a transaction: this process's lead, or ``Stale``."""
        (term,) = self._db.execute("SELECT term FROM leader WHERE id = 1").fetchone()
        lead = self._lead
        if lead is None or lead.term != term:
            self._lead = None
            raise Stale(
                f"this process leads no longer; the journal is at term {term}",
                object=str(self.path),
                next_step="Stop; the present leader goes on.",
            )
        return lead

    def ensure_leading(self) -> None:
        """``Stale`` unless this process leads."""
        with self._transaction():
            self._leading()

    def lead(self, holder: str, ttl_s: float) -> Leadership:
        now = self._clock()
        with self._transaction():
            query = "SELECT generation, term, holder, expires_at, last_index, last_checksum FROM leader WHERE id = 1"
            generation, term, present, expires_at, last_index, last_checksum = self._db.execute(query).fetchone()
            if present and present != holder and expires_at > now:
                raise Unavailable(
                    f"{present} leads for another {expires_at - now:.1f} s",
                    object=str(self.path),
                    next_step="Wait, or stop that process.",
                )
            self._db.execute(
                "UPDATE leader SET term = ?, holder = ?, expires_at = ? WHERE id = 1", (term + 1, holder, now + ttl_s)
            )
        self._lead = Leadership(generation, term + 1, holder, last_index)
        self._last = (last_index, last_checksum)
        return self._lead

    def renew(self, ttl_s: float) -> None:
        with self._transaction():
            self._leading()
            self._db.execute("UPDATE leader SET expires_at = ? WHERE id = 1", (self._clock() + ttl_s,))

    def resign(self) -> None:
        if self._lead is None:
            return
        term, self._lead = self._lead.term, None
        with self._transaction():
            self._db.execute("UPDATE leader SET holder = '', expires_at = 0 WHERE id = 1 AND term = ?", (term,))

    def append(self, batch: Batch) -> int:
        with self._transaction():
            lead = self._leading()
            check_batch(batch, lead, self._last[0])
            changes = changes_of(batch)
            last = self._insert(batch.rows, self._last)
            if batch.rows:
                moved = self._db.execute(_ADVANCE, (*last, lead.term, self._last[0])).rowcount
                if moved != 1:
                    raise Stale(
                        "the journal's end moved without this process",
                        object=str(self.path),
                        next_step="Stop; the present leader goes on.",
                    )
            self._change(changes)
        self._last = last
        return last[0]

    def _insert(self, rows: tuple[Row, ...], last: tuple[int, int]) -> tuple[int, int]:
        if not rows:
            return last
        sums = chain(rows, last[1])
        self._db.executemany(_INSERT_ROW, [(*astuple(row), kept) for row, kept in zip(rows, sums, strict=True)])
        return rows[-1].index, sums[-1]

    def _change(self, changes: Changes) -> None:
        for table, found in changes.put.items():
            self._db.executemany(_PUT_VIEW[table], [astuple(view) for view in found.values()])
        for table, keys in changes.gone.items():
            self._db.executemany(_DROP_VIEW[table], [(key,) for key in keys])
        if changes.waiting:
            self._db.executemany(_PUT_OUTBOX, [astuple(item) for item in changes.waiting.values()])
        if changes.delivered:
            self._db.executemany("DELETE FROM outbox WHERE token = ?", [(token,) for token in changes.delivered])

    def begin_snapshot(self, snapshot: Snapshot) -> int:
        """A number for the snapshot's pieces."""
        with self._transaction():
            self._leading()
            check_snapshot(snapshot, self._last[0])
            query = "SELECT max(coalesce((SELECT max(id) FROM snapshots), 0), coalesce((SELECT max(id) FROM {}), 0))"
            (highest,) = self._db.execute(query.format("snapshot_pieces")).fetchone()
            return int(highest) + 1

    def add_piece(self, number: int, piece: int, payload: bytes) -> None:
        with self._transaction():
            self._leading()
            self._db.execute("INSERT INTO snapshot_pieces VALUES (?, ?, ?)", (number, piece, payload))

    def finish_snapshot(self, number: int, snapshot: Snapshot) -> None:
        """From here on it is the newest; those beyond the kept ones lose their heads, ``sweep`` takes their pieces."""
        with self._transaction():
            self._leading()
            head = (number, snapshot.index, snapshot.version, snapshot.checksum())
            self._db.execute("INSERT INTO snapshots VALUES (?, ?, ?, ?)", head)
            kept = f"SELECT id FROM snapshots ORDER BY id DESC LIMIT {KEPT_SNAPSHOTS}"
            self._db.execute(f"DELETE FROM snapshots WHERE id NOT IN ({kept})")

    def sweep(self, limit: int = 4) -> int:
        """Remove some pieces that belong to no snapshot; how many."""
        with self._transaction():
            self._leading()
            orphans = "SELECT rowid FROM snapshot_pieces WHERE id NOT IN (SELECT id FROM snapshots) LIMIT ?"
            return self._db.execute(f"DELETE FROM snapshot_pieces WHERE rowid IN ({orphans})", (limit,)).rowcount

    def forget(self, before: int, at_most: int) -> int:
        """Remove up to ``at_most`` rows with a lower index, the oldest first; how many."""
        with self._transaction():
            self._leading()
            (base,) = self._db.execute("SELECT base_index FROM leader WHERE id = 1").fetchone()
            upto = min(before - 1, base + at_most)
            found = self._db.execute("SELECT checksum FROM journal WHERE seq = ?", (upto,)).fetchone()
            if upto <= base or found is None:
                return 0
            gone = self._db.execute("DELETE FROM journal WHERE seq <= ?", (upto,)).rowcount
            self._db.execute("UPDATE leader SET base_index = ?, base_checksum = ? WHERE id = 1", (upto, found[0]))
            self._db.execute("DELETE FROM snapshots WHERE seq < ?", (upto,))
            return gone

    def adopt(self, origin: Origin, chunks: Iterable[Chunk], piece_bytes: int) -> None:
        with self._transaction():
            self._refuse_unless_empty()
            last = (origin.base_index, origin.base_checksum)
            for chunk in chunks:
                if (snapshot := chunk.snapshot) is not None:
                    head = (1, snapshot.index, snapshot.version, snapshot.checksum())
                    self._db.execute("INSERT INTO snapshots VALUES (?, ?, ?, ?)", head)
                    for piece, start in enumerate(range(0, len(snapshot.payload), piece_bytes)):
                        part = snapshot.payload[start : start + piece_bytes]
                        self._db.execute("INSERT INTO snapshot_pieces VALUES (1, ?, ?)", (piece, part))
                last = self._insert(chunk.rows, last)
                self._change(changes_of(Batch((), chunk.views, chunk.outbox)))
            check_origin(*last, origin.last_index, origin.last_checksum)
            self._db.execute(
                """UPDATE leader SET generation = ?, term = max(term, ?), holder = '', expires_at = 0,
                   base_index = ?, base_checksum = ?, last_index = ?, last_checksum = ? WHERE id = 1""",
                (origin.generation, origin.term, origin.base_index, origin.base_checksum, *last),
            )
        self._lead = None

    def _refuse_unless_empty(self) -> None:
        query = "SELECT holder, expires_at, last_index FROM leader WHERE id = 1"
        holder, expires_at, last_index = self._db.execute(query).fetchone()
        led = bool(holder) and expires_at > self._clock()
        filled = (*COLUMNS, "snapshots", "outbox")
        if last_index or led or any(self._db.execute(f'SELECT 1 FROM "{t}" LIMIT 1').fetchone() for t in filled):
            raise Conflict(
                f"the journal is led by {holder}" if led else "the journal is not empty",
                object=str(self.path),
                next_step="Restore into a new, empty journal.",
            )
