"""What the lanes share on PostgreSQL: connections of their own, faults as our errors, tables created once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from clutch.backends.journal.postgres_faults import address_of, speaking_of
from clutch.backends.journal.postgres_session import Connection, connect_readers, connect_writer
from clutch.wire.errors import TooNew

_SCHEMA_LOCK = 0x6C616E65


class LaneConnections:
    """One connection that writes, a small pool that reads."""

    def __init__(self, url: str, name: str, close_s: float = 5.0) -> None:
        self.url = url
        self.address = address_of(url)
        self._name = name
        self._close_s = close_s
        self._writer: Connection = None
        self._pool: Any = None
        self._turn = asyncio.Lock()

    async def open(
        self, version: int, statements: Sequence[str], upgrades: Mapping[int, Sequence[str]] | None = None
    ) -> None:
        """Connect and create the lane's tables unless they are there; ``upgrades`` leads older ones to each version.
        ``TooNew`` changes nothing."""
        try:
            async with self.writing() as connection:
                await self._create(connection, version, statements, upgrades or {})
            with speaking_of(self.address):
                self._pool = await connect_readers(self.url, self._name)
        except BaseException:
            await self.close()
            raise

    async def _create(
        self, connection: Connection, version: int, statements: Sequence[str], upgrades: Mapping[int, Sequence[str]]
    ) -> None:
        table = f"{self._name}_schema"
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _SCHEMA_LOCK)
            await connection.execute(f"CREATE TABLE IF NOT EXISTS {table} (version bigint NOT NULL)")
            present = await connection.fetchval(f"SELECT max(version) FROM {table}")
            if present is None:
                for statement in statements:
                    await connection.execute(statement)
                await connection.execute(f"INSERT INTO {table} VALUES ($1)", version)
            elif present > version:
                raise TooNew(
                    f"the {self._name} tables have schema {present}, this release knows {version}",
                    object=self.address,
                    next_step="Start the newer release; nothing was changed.",
                )
            else:
                for reached in range(present + 1, version + 1):
                    for statement in upgrades.get(reached, ()):
                        await connection.execute(statement)
                    await connection.execute(f"UPDATE {table} SET version = $1", reached)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Connection]:
        """The writer's connection, made again after it broke."""
        async with self._turn:
            with speaking_of(self.address):
                if self._writer is None or self._writer.is_closed():
                    self._writer = await connect_writer(self.url, self._name)
                yield self._writer

    async def fetch(self, query: str, *values: object) -> list[Any]:
        with speaking_of(self.address):
            found: list[Any] = await self._pool.fetch(query, *values)
        return found

    async def close(self) -> None:
        if self._pool is not None:
            try:
                await asyncio.wait_for(self._pool.close(), self._close_s)
            except TimeoutError:
                self._pool.terminate()  # somebody still reads; the server takes the rest back
        if self._writer is not None and not self._writer.is_closed():
            await self._writer.close(timeout=self._close_s)
