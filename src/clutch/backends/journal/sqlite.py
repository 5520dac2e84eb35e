"""The journal in one SQLite file: the embedded default. One writer thread, one reader thread, one file."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect

from clutch.backends.journal.base import Where
from clutch.backends.journal.queries import Question, due, one
from clutch.backends.journal.shapes import (
    COLUMNS,
    PIECE_BYTES,
    TABLES,
    Tail,
    no_such_page,
    nothing_to_start_from,
    verified,
    view_from,
    view_of,
)
from clutch.backends.journal.sqlite_file import SqliteFile, connect, speaking_of
from clutch.wire.journal import Batch, Chunk, Leadership, Origin, OutboxItem, Row, Snapshot
from clutch.wire.views import View

_ROWS = "SELECT seq, term, at, cause, kind, version, payload, checksum FROM journal WHERE seq >= ? ORDER BY seq LIMIT ?"
_FORGET_ROWS = 10_000
_CHUNK_ROWS = 1_000
_dialect = sqlite_dialect(paramstyle="qmark")

P = ParamSpec("P")
T = TypeVar("T")


class SqliteReader:
    """The reader's side of a file: its own connection, never waits for the writer. Used by one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db = connect(path)
        self._db.execute("PRAGMA query_only = ON")

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def one_moment(self) -> Iterator[None]:
        """Everything read inside is of the same moment."""
        with speaking_of(self.path):
            self._db.execute("BEGIN")
            try:
                yield
            finally:
                self._db.execute("COMMIT")

    def tail(self) -> Tail:
        query = "SELECT base_index, base_checksum, last_index FROM leader WHERE id = 1"
        return Tail(*self._db.execute(query).fetchone())

    def read(self, after: int, limit: int) -> list[Row]:
        with self.one_moment():
            return self.rows(after, limit)

    def rows(self, after: int, limit: int) -> list[Row]:
        tail = self.tail()
        found = self._db.execute(_ROWS, (after, limit + 1))
        return verified(after, limit, tail, [(Row(*values), kept) for *values, kept in found])

    def load_snapshot(self) -> Snapshot | None:
        with self.one_moment():
            return self.snapshot()

    def snapshot(self) -> Snapshot | None:
        for number, index, version, kept in self._db.execute("SELECT * FROM snapshots ORDER BY id DESC").fetchall():
            pieces = self._db.execute("SELECT payload FROM snapshot_pieces WHERE id = ? ORDER BY piece", (number,))
            snapshot = Snapshot(index, version, b"".join(payload for (payload,) in pieces))
            if snapshot.checksum() == kept:
                return snapshot
        base = self.tail().base_index
        if base:
            raise nothing_to_start_from(base)
        return None

    def view(self, table: str, key: str) -> View | None:
        with speaking_of(self.path):
            found = self._db.execute(*one(table, key, _dialect)).fetchone()
        return None if found is None else view_from(table, dict(zip(COLUMNS[table], found, strict=True)))

    def page(self, question: Question) -> list[View]:
        with self.one_moment():
            value: object = None
            if (edge := question.edge(_dialect)) is not None:
                found = self._db.execute(*edge).fetchone()
                if found is None:
                    raise no_such_page(question.table, question.after)
                value = found[0]
            rows = self._db.execute(*question.page(_dialect, value)).fetchall()
        return [view_of(question.table, row) for row in rows]

    def pending(self, limit: int) -> list[OutboxItem]:
        with speaking_of(self.path):
            return [OutboxItem(*row) for row in self._db.execute(*due(limit, _dialect))]

    def origin(self) -> Origin:
        """Begins the moment that ``copy`` then reads; the connection stays in it until closed."""
        with speaking_of(self.path):
            self._db.execute("BEGIN")
            query = "SELECT generation, term, base_index, base_checksum, last_index, last_checksum FROM leader"
            return Origin(*self._db.execute(query).fetchone())

    def copy(self) -> Iterator[Chunk]:
        with speaking_of(self.path):
            yield Chunk(snapshot=self.snapshot())
            after = self.tail().base_index
            while rows := self.rows(after, _CHUNK_ROWS):
                yield Chunk(rows=tuple(rows))
                after = rows[-1].index
            for table in TABLES:
                names = tuple(COLUMNS[table])
                columns = ", ".join(f'"{name}"' for name in names)
                for part in _parts(self._db.execute(f'SELECT {columns} FROM "{table}" ORDER BY "key"')):
                    yield Chunk(views=tuple(view_from(table, dict(zip(names, row, strict=True))) for row in part))
            for part in _parts(self._db.execute("SELECT token, kind, due_at, payload FROM outbox ORDER BY token")):
                yield Chunk(outbox=tuple(OutboxItem(*row) for row in part))


def _parts(cursor: sqlite3.Cursor) -> Iterator[list[tuple[Any, ...]]]:
    while part := cursor.fetchmany(_CHUNK_ROWS):
        yield part


class SqliteJournal:
    """Use ``open``. Calls run in the writer's or the reader's thread; the event loop never waits for the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._write_thread = ThreadPoolExecutor(1, thread_name_prefix="journal-writer")
        self._read_thread = ThreadPoolExecutor(1, thread_name_prefix="journal-reader")
        self._maintenance = asyncio.Lock()
        self._closed = False
        self._file: SqliteFile
        self._reader: SqliteReader

    @classmethod
    async def open(
        cls, path: Path | str, *, clock: Callable[[], float] = time.time, max_bytes: int | None = None
    ) -> SqliteJournal:
        """Open or create the file, upgrading its schema in place. It never grows beyond ``max_bytes``."""
        journal = cls(Path(path))
        try:
            journal._file = await journal._write(_opened, SqliteFile, journal.path, clock, max_bytes)
            journal._reader = await journal._read(_opened, SqliteReader, journal.path)
        except BaseException:
            await journal.close()
            raise
        return journal

    async def _write(self, call: Callable[P, T], *args: P.args, **_: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._write_thread, call, *args)

    async def _read(self, call: Callable[P, T], *args: P.args, **_: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._read_thread, call, *args)

    async def lead(self, holder: str, ttl_s: float) -> Leadership:
        return await self._write(self._file.lead, holder, ttl_s)

    async def renew(self, ttl_s: float) -> None:
        await self._write(self._file.renew, ttl_s)

    async def append(self, batch: Batch) -> int:
        return await self._write(self._file.append, batch)

    async def read(self, after: int, limit: int = 10_000) -> list[Row]:
        return await self._read(self._reader.read, after, limit)

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        """Written in pieces between which appends go on; it exists when the last step has committed."""
        async with self._maintenance:
            number = await self._write(self._file.begin_snapshot, snapshot)
            for piece, start in enumerate(range(0, len(snapshot.payload), PIECE_BYTES)):
                part = snapshot.payload[start : start + PIECE_BYTES]
                await self._write(self._file.add_piece, number, piece, part)
            await self._write(self._file.finish_snapshot, number, snapshot)
            while await self._write(self._file.sweep):
                pass

    async def load_snapshot(self) -> Snapshot | None:
        return await self._read(self._reader.load_snapshot)

    async def resign(self) -> None:
        await self._write(self._file.resign)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if hasattr(self, "_reader"):
            await self._read(self._reader.close)
        if hasattr(self, "_file"):
            await self._write(self._file.close)
        self._read_thread.shutdown()
        self._write_thread.shutdown()

    async def view(self, table: str, key: str) -> View | None:
        return await self._read(self._reader.view, table, key)

    async def page(self, table: str, where: Where, order_by: str, after: str, limit: int) -> list[View]:
        return await self._read(self._reader.page, Question(table, where, order_by, after, limit))

    async def pending(self, limit: int) -> list[OutboxItem]:
        return await self._read(self._reader.pending, limit)

    async def forget(self, before: int) -> int:
        async with self._maintenance:
            await self._write(self._file.ensure_leading)
            snapshot = await self.load_snapshot()
            if snapshot is None:
                return 0
            upto = min(before, snapshot.index + 1)
            total = 0
            while gone := await self._write(self._file.forget, upto, _FORGET_ROWS):
                total += gone
            while await self._write(self._file.sweep):
                pass
            return total

    @asynccontextmanager
    async def export(self) -> AsyncIterator[tuple[Origin, AsyncIterator[Chunk]]]:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix="journal-export") as thread:
            reader = await loop.run_in_executor(thread, _opened, SqliteReader, self.path)
            parts = reader.copy()

            async def chunks() -> AsyncIterator[Chunk]:
                while (chunk := await loop.run_in_executor(thread, next, parts, None)) is not None:
                    yield chunk

            try:
                yield await loop.run_in_executor(thread, reader.origin), chunks()
            finally:
                await loop.run_in_executor(thread, reader.close)

    async def adopt(self, origin: Origin, chunks: Iterable[Chunk]) -> None:
        await self._write(self._file.adopt, origin, chunks, PIECE_BYTES)


def _opened(kind: Callable[..., T], path: Path, *args: object) -> T:
    with speaking_of(path):
        return kind(path, *args)
