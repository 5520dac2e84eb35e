"""Where tables beside the journal are kept: a SQLite file, or the journal's own PostgreSQL database.

Every question is a plain function over a SQLAlchemy ``Connection``, run in one transaction: ``read`` and ``write``
carry it to the right thread (SQLite) or the right connection (PostgreSQL). So one text of each query serves both.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.pool import QueuePool

from clutch.backends.journal.sqlite_file import speaking_of
from clutch.master.access.contents import Contents
from clutch.master.access.tables import CONTENTS as ACCESS
from clutch.wire.errors import BadRequest, Conflict

T = TypeVar("T")
Work = Callable[[Connection], T]

_BUSY_S = 5.0
_READERS = 2
_PREPARE_LOCK = 0x61636373


class Database(Protocol):
    """Transactions. A failed one changed nothing."""

    address: str

    async def read(self, work: Work[T]) -> T: ...

    async def write(self, work: Work[T]) -> T: ...

    async def close(self) -> None: ...


def _refuse_twins(error: IntegrityError, address: str) -> Conflict:
    return Conflict("it exists already", object=address, next_step="Look at what is there, or choose another name.")


class SqliteDatabase:
    """One file. One thread writes, a few read beside it (WAL); a commit returns when it is on the platter."""

    def __init__(self, path: Path, contents: Contents) -> None:
        self.path = path
        self.address = str(path)
        self._contents = contents
        self._writing = ThreadPoolExecutor(1, f"{contents.name}-write")
        self._reading = ThreadPoolExecutor(_READERS, f"{contents.name}-read")
        self._writer = self._engine("BEGIN IMMEDIATE", 1)
        self._reader = self._engine("BEGIN", _READERS)

    @classmethod
    async def open(cls, path: Path, contents: Contents = ACCESS) -> SqliteDatabase:
        """The file, created for its owner alone or brought to this release."""
        found = cls(path, contents)
        try:
            await asyncio.get_running_loop().run_in_executor(found._writing, found._prepare)
        except BaseException:
            await found.close()
            raise
        return found

    def _engine(self, begin: str, size: int) -> Engine:
        def connect() -> sqlite3.Connection:
            raw = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            raw.execute("PRAGMA synchronous = FULL")
            return raw

        engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool, pool_size=size, max_overflow=0)

        @event.listens_for(engine, "begin")
        def opened(connection: Connection) -> None:
            connection.exec_driver_sql(begin)

        return engine

    def _prepare(self) -> None:
        with speaking_of(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not self.path.exists():
                self.path.touch(mode=0o600)
            raw = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)
            try:
                raw.execute("PRAGMA journal_mode = WAL")
            finally:
                raw.close()
            with self._writer.begin() as connection:
                self._contents.prepare(connection, self.address)

    async def read(self, work: Work[T]) -> T:
        return await self._in(self._reading, self._reader, work)

    async def write(self, work: Work[T]) -> T:
        return await self._in(self._writing, self._writer, work)

    async def _in(self, threads: ThreadPoolExecutor, engine: Engine, work: Work[T]) -> T:
        def run() -> T:
            with speaking_of(self.path):
                try:
                    with engine.begin() as connection:
                        return work(connection)
                except IntegrityError as error:
                    raise _refuse_twins(error, self.address) from error

        return await asyncio.get_running_loop().run_in_executor(threads, run)

    async def close(self) -> None:
        def end() -> None:
            self._writing.shutdown()
            self._reading.shutdown()
            self._writer.dispose()
            self._reader.dispose()

        await asyncio.to_thread(end)


class PostgresDatabase:
    """Tables beside the journal's, over a few connections of their own."""

    def __init__(self, url: str, name: str) -> None:
        from sqlalchemy.ext.asyncio import create_async_engine

        from clutch.backends.journal.postgres_faults import address_of
        from clutch.backends.journal.postgres_session import connect_writer

        async def connect() -> Any:
            return await connect_writer(url, name)

        self.address = address_of(url)
        self._engine = create_async_engine(
            "postgresql+asyncpg://", async_creator=connect, pool_size=4, max_overflow=0, pool_pre_ping=True
        )

    @classmethod
    async def open(cls, url: str, contents: Contents = ACCESS) -> PostgresDatabase:
        found = cls(url, contents.name)

        def made(connection: Connection) -> None:
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _PREPARE_LOCK})
            contents.prepare(connection, found.address)

        try:
            await found.write(made)
        except BaseException:
            await found.close()
            raise
        return found

    async def read(self, work: Work[T]) -> T:
        return await self._run(work)

    async def write(self, work: Work[T]) -> T:
        return await self._run(work)

    async def _run(self, work: Work[T]) -> T:
        with self._speaking():
            async with self._engine.begin() as connection:
                return await connection.run_sync(work)

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        """What the server or the network says, as one of our errors."""
        from clutch.backends.journal.postgres_faults import speaking_of

        with speaking_of(self.address):
            try:
                yield
            except IntegrityError as error:
                raise _refuse_twins(error, self.address) from error

    async def close(self) -> None:
        await self._engine.dispose()


async def open_database(folder: Path, url: str, contents: Contents = ACCESS) -> Database:
    """A master's database of these contents: their file in the data folder, or the PostgreSQL it was told."""
    if not url:
        return await SqliteDatabase.open(folder / contents.file, contents)
    if not url.startswith(("postgresql://", "postgres://")):
        raise BadRequest(
            f"{contents.name} is kept in SQLite or PostgreSQL",
            object=url.partition(":")[0],
            next_step="Leave the database out, or give postgresql://USER:PASSWORD@HOST/DATABASE.",
        )
    return await PostgresDatabase.open(url, contents)
