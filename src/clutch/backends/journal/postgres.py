"""The journal in PostgreSQL: the production store. Hot lane on asyncpg, leadership on the database's own clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from msgspec.structs import astuple
from sqlalchemy import text
from sqlalchemy.dialects.postgresql.asyncpg import dialect as asyncpg_dialect
from sqlalchemy.ext.asyncio import create_async_engine

from clutch.backends.journal import postgres_sql as sql
from clutch.backends.journal import schema
from clutch.backends.journal.base import Where
from clutch.backends.journal.postgres_faults import address_of, speaking_of
from clutch.backends.journal.postgres_session import CONNECT_S, connect_readers, connect_writer
from clutch.backends.journal.postgres_tables import Connection, read_all, read_rows, read_snapshot, write_chunk
from clutch.backends.journal.queries import Question, due, one
from clutch.backends.journal.shapes import (
    COLUMNS,
    KEPT_SNAPSHOTS,
    PIECE_BYTES,
    chain,
    changes_of,
    check_batch,
    check_origin,
    check_snapshot,
    no_such_page,
    view_from,
    view_of,
)
from clutch.wire.errors import (
    ClutchError,
    Conflict,
    Stale,
    Unavailable,
)
from clutch.wire.journal import Batch, Chunk, Leadership, Origin, OutboxItem, Row, Snapshot
from clutch.wire.views import View

_FORGET_ROWS = 10_000
_MIGRATION_LOCK = 0x636C7574
_dialect = asyncpg_dialect()  # type: ignore[no-untyped-call]


def _is_settled(error: BaseException) -> bool:
    """Whether the server itself said that the statement failed, so that nothing of it happened."""
    if isinstance(error, ClutchError | asyncpg.exceptions._base.DataError):
        return True
    return isinstance(error, asyncpg.PostgresError) and (error.sqlstate or "08")[:2] not in ("08", "57")


class PostgresJournal:
    """Use ``open``. One connection appends; a small pool reads."""

    def __init__(self, url: str, close_s: float = 5.0) -> None:
        self.url = url
        self._close_s = close_s
        self.address = address_of(url)
        self._writer: Connection = None
        self._pool: Any = None
        self._turn = asyncio.Lock()
        self._maintenance = asyncio.Lock()
        self._lead: Leadership | None = None
        self._last = (0, 0)
        self._unknown = False

    @classmethod
    async def open(cls, url: str, *, close_s: float = 5.0) -> PostgresJournal:
        """Connect and bring the schema to this release, in place. ``close`` waits at most ``close_s`` for readers."""
        journal = cls(url, close_s)
        try:
            with speaking_of(journal.address):
                await journal._upgrade()
                await journal._connect_writer()
                journal._pool = await connect_readers(url, "journal")
        except BaseException:
            await journal.close()
            raise
        return journal

    async def _upgrade(self) -> None:
        async def connect() -> Connection:
            return await asyncpg.connect(self.url, timeout=CONNECT_S)

        engine = create_async_engine("postgresql+asyncpg://", async_creator=connect)
        try:
            async with engine.begin() as connection:
                await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK})
                await connection.run_sync(schema.upgrade, self.address)
        finally:
            await engine.dispose()

    async def _connect_writer(self) -> Connection:
        if self._writer is None or self._writer.is_closed():
            self._writer = await connect_writer(self.url, "journal")
        return self._writer

    async def _stale(self, connection: Connection) -> Stale:
        present = await connection.fetchrow(sql.PRESENT)
        self._lead = None
        return Stale(
            f"this process leads no longer; the journal is at term {present['term']}",
            object=self.address,
            next_step="Stop; the present leader goes on.",
        )

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[Connection]:
        async with self._turn:
            with speaking_of(self.address):
                yield await self._connect_writer()

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[Connection]:
        """A connection on which everything read is of the same moment."""
        with speaking_of(self.address):
            async with (
                self._pool.acquire(timeout=CONNECT_S) as connection,
                connection.transaction(isolation="repeatable_read", readonly=True),
            ):
                yield connection

    async def lead(self, holder: str, ttl_s: float) -> Leadership:
        async with self._writing() as connection:
            taken = await connection.fetchrow(sql.LEAD, holder, ttl_s)
            if taken is None:
                present = await connection.fetchrow(sql.PRESENT)
                raise Unavailable(
                    f"{present['holder']} leads for another {present['left_s']:.1f} s",
                    object=self.address,
                    next_step="Wait, or stop that process.",
                )
            self._lead = Leadership(taken["generation"], taken["term"], holder, taken["last_index"])
            self._last = (taken["last_index"], taken["last_checksum"])
            self._unknown = False
            return self._lead

    async def renew(self, ttl_s: float) -> None:
        async with self._writing() as connection:
            if await connection.fetchval(sql.RENEW, self._term(), ttl_s) is None:
                raise await self._stale(connection)

    def _term(self) -> int:
        """This process's term; 0, which never leads, when it has none."""
        return self._lead.term if self._lead is not None else 0

    async def append(self, batch: Batch) -> int:
        async with self._writing() as connection:
            lead = self._lead
            if lead is None:
                raise await self._stale(connection)
            if self._unknown:
                raise Unavailable(
                    "an earlier append broke off and its outcome is unknown",
                    object=self.address,
                    next_step="Restart this process; it will find out.",
                )
            try:
                # Whoever lost the lead hears so first; only a leader's batch is worth looking at.
                check_batch(batch, lead, self._last[0])
            except ClutchError:
                if await connection.fetchval("SELECT term FROM leader WHERE id = 1") != lead.term:
                    raise await self._stale(connection) from None
                raise
            sums = chain(batch.rows, self._last[1])
            last = (batch.rows[-1].index, sums[-1]) if batch.rows else self._last
            arguments = sql.append_arguments(batch.rows, sums, changes_of(batch))
            try:
                led = await connection.fetchval(sql.APPEND, *last, lead.term, self._last[0], *arguments)
            except BaseException as error:
                self._unknown = not _is_settled(error)
                raise
            if not led:
                raise await self._stale(connection)
            self._last = last
            return last[0]

    async def read(self, after: int, limit: int = 10_000) -> list[Row]:
        async with self._reading() as connection:
            return await read_rows(connection, after, limit)

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        """Written in pieces on a connection of its own, so that appends go on between them."""
        term = self._term()
        async with self._maintenance:
            with speaking_of(self.address):
                async with self._pool.acquire(timeout=CONNECT_S) as connection:
                    number = await connection.fetchval(sql.BEGIN_SNAPSHOT, term)
                    if number is None:
                        raise await self._stale(connection)
                    check_snapshot(snapshot, self._last[0])
                    for piece, start in enumerate(range(0, len(snapshot.payload), PIECE_BYTES)):
                        part = snapshot.payload[start : start + PIECE_BYTES]
                        if await connection.fetchval(sql.ADD_PIECE, term, number, piece, part) is None:
                            raise await self._stale(connection)
                    head = (number, snapshot.index, snapshot.version, snapshot.checksum())
                    if await connection.fetchval(sql.FINISH_SNAPSHOT, term, *head) is None:
                        raise await self._stale(connection)
                    await connection.execute(sql.DROP_SNAPSHOTS, term, KEPT_SNAPSHOTS)
                    await connection.execute(sql.SWEEP, term)

    async def load_snapshot(self) -> Snapshot | None:
        async with self._reading() as connection:
            return await read_snapshot(connection)

    async def resign(self) -> None:
        if self._lead is None:
            return
        async with self._writing() as connection:
            await connection.execute(sql.RESIGN, self._term())
            self._lead = None

    async def close(self) -> None:
        self._lead = None
        if self._pool is not None:
            try:
                await asyncio.wait_for(self._pool.close(), self._close_s)
            except TimeoutError:
                self._pool.terminate()  # somebody still reads; the server takes the rest back
        if self._writer is not None and not self._writer.is_closed():
            await self._writer.close(timeout=self._close_s)

    async def view(self, table: str, key: str) -> View | None:
        statement, arguments = one(table, key, _dialect)
        with speaking_of(self.address):
            found = await self._pool.fetchrow(statement, *arguments)
        return None if found is None else view_from(table, dict(found))

    async def page(self, table: str, where: Where, order_by: str, after: str, limit: int) -> list[View]:
        question = Question(table, where, order_by, after, limit)
        async with self._reading() as connection:
            value: object = None
            if (edge := question.edge(_dialect)) is not None:
                found = await connection.fetchrow(edge[0], *edge[1])
                if found is None:
                    raise no_such_page(table, after)
                value = found[0]
            statement, arguments = question.page(_dialect, value)
            return [view_of(table, tuple(row)) for row in await connection.fetch(statement, *arguments)]

    async def pending(self, limit: int) -> list[OutboxItem]:
        statement, arguments = due(limit, _dialect)
        with speaking_of(self.address):
            return [OutboxItem(*row) for row in await self._pool.fetch(statement, *arguments)]

    async def forget(self, before: int) -> int:
        term = self._term()
        async with self._maintenance:
            snapshot = await self.load_snapshot()
            with speaking_of(self.address):
                async with self._pool.acquire(timeout=CONNECT_S) as connection:
                    if await connection.fetchval("SELECT term FROM leader WHERE id = 1") != term:
                        raise await self._stale(connection)
                    base = await connection.fetchval("SELECT base_index FROM leader WHERE id = 1")
                    upto = min(before - 1, snapshot.index) if snapshot is not None else 0
                    total = 0
                    while base < upto:
                        base = min(base + _FORGET_ROWS, upto)
                        led, gone = await connection.fetchrow(sql.FORGET, term, base)
                        if not led:
                            raise await self._stale(connection)
                        total += gone
                    await connection.execute(sql.SWEEP, term)
                    return total

    @asynccontextmanager
    async def export(self) -> AsyncIterator[tuple[Origin, AsyncIterator[Chunk]]]:
        query = "SELECT generation, term, base_index, base_checksum, last_index, last_checksum FROM leader"
        async with self._reading() as connection:
            yield Origin(*await connection.fetchrow(query)), read_all(connection)

    async def adopt(self, origin: Origin, chunks: Iterable[Chunk]) -> None:
        parts = iter(chunks)
        async with self._writing() as connection, connection.transaction():
            await self._refuse_unless_empty(connection)
            last = (origin.base_index, origin.base_checksum)
            while (chunk := await asyncio.to_thread(next, parts, None)) is not None:
                sums = chain(chunk.rows, last[1])
                last = (chunk.rows[-1].index, sums[-1]) if sums else last
                await write_chunk(connection, chunk, sums)
            check_origin(*last, origin.last_index, origin.last_checksum)
            await connection.execute(
                """UPDATE leader SET generation = $1, term = greatest(term, $2), holder = '', expires_at = 0,
                   base_index = $3, base_checksum = $4, last_index = $5, last_checksum = $6 WHERE id = 1""",
                *astuple(origin),
            )
            self._lead = None

    async def _refuse_unless_empty(self, connection: Connection) -> None:
        query = f"SELECT holder, last_index, expires_at > {sql.NOW} AS runs FROM leader WHERE id = 1 FOR UPDATE"
        holder, last_index, runs = await connection.fetchrow(query)
        tables = (*COLUMNS, "snapshots", "outbox")
        filled = [await connection.fetchval(f'SELECT EXISTS (SELECT 1 FROM "{table}")') for table in tables]
        led = bool(holder) and runs
        if last_index or led or any(filled):
            raise Conflict(
                f"the journal is led by {holder}" if led else "the journal is not empty",
                object=self.address,
                next_step="Restore into a new, empty journal.",
            )
