"""The three ways of keeping metrics, as ground for the suite, with ways to harm each for real."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from random import Random

import asyncpg
from msgspec.structs import replace

from clutch.master.metrics_lane.base import MetricsStore
from clutch.master.metrics_lane.memory import MemoryMetricsStore, MetricsShelf
from clutch.master.metrics_lane.postgres import PostgresMetricsStore
from clutch.master.metrics_lane.sqlite import SqliteMetricsStore
from clutch.testing.metrics_suite import FENCE, MEMBER, counted, metrics_on
from clutch.testing.postgres import Server
from clutch.wire.errors import Unavailable

WRITER = Path(__file__).parent / "metrics_writer.py"


class MemoryGround:
    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.shelf = MetricsShelf(capacity_bytes)

    async def open(self) -> MetricsStore:
        return MemoryMetricsStore(self.shelf)

    async def damage(self, source: int, first: int) -> None:
        chunk = self.shelf.chunks[source][first]
        self.shelf.chunks[source][first] = replace(chunk, body=chunk.body[:-1] + bytes([chunk.body[-1] ^ 1]))

    async def close(self) -> None:
        pass


class SqliteGround:
    def __init__(self, path: Path, chance: Random | None = None, max_bytes: int | None = None) -> None:
        self.path = path
        self._chance = chance or Random(0)
        self._max_bytes = max_bytes
        self._opened: list[MetricsStore] = []

    async def open(self) -> MetricsStore:
        store = await SqliteMetricsStore.open(self.path, max_bytes=self._max_bytes)
        self._opened.append(store)
        return store

    async def close(self) -> None:
        for store in self._opened:
            await store.close()

    async def damage(self, source: int, first: int) -> None:
        connection = sqlite3.connect(self.path, isolation_level=None)
        where = "WHERE source = ? AND first_batch = ?"
        (body,) = connection.execute(f"SELECT body FROM metrics_chunks {where}", (source, first)).fetchone()
        worse = body[:-1] + bytes([body[-1] ^ 1])
        changed = connection.execute(f"UPDATE metrics_chunks SET body = ? {where}", (worse, source, first)).rowcount
        assert changed == 1, "the harm was not done"
        connection.close()

    async def kill_while_writing(self) -> int:
        return await asyncio.to_thread(self._kill_a_writer)

    def _kill_a_writer(self) -> int:
        """A process of its own that is killed, with -9, somewhere in the middle."""
        command = [sys.executable, str(WRITER), str(self.path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ)) as writer:
            assert writer.stdout is not None
            for _ in range(self._chance.randint(1, 100)):
                last = writer.stdout.readline()
            writer.kill()
            rest = writer.stdout.read().split(b"\n")[:-1]
        return int(rest[-1] if rest else last)


class PostgresGround:
    def __init__(self, address: str, server: Server | None = None) -> None:
        self.address = address
        self._server = server
        self._opened: list[MetricsStore] = []

    async def open(self) -> MetricsStore:
        store = await PostgresMetricsStore.open(self.address)
        self._opened.append(store)
        return store

    async def close(self) -> None:
        for store in self._opened:
            await store.close()

    async def damage(self, source: int, first: int) -> None:
        connection = await asyncpg.connect(self.address)
        changed = await connection.execute(
            "UPDATE metrics_chunks SET body = set_byte(body, 0, get_byte(body, 0) # 1) "
            "WHERE source = $1 AND first_batch = $2",
            source,
            first,
        )
        assert changed == "UPDATE 1", "the harm was not done"
        await connection.close()

    async def kill_while_writing(self) -> int:
        """The whole server dies under the lane, and comes back."""
        assert self._server is not None
        acknowledged = 0
        killing: asyncio.Task[None] | None = None
        async with metrics_on(await self.open()) as lane:
            while True:
                try:
                    acknowledged = await lane.write(MEMBER, FENCE, [counted(acknowledged + 1)])
                except Unavailable:
                    break
                if acknowledged == 80:
                    killing = asyncio.create_task(asyncio.to_thread(self._server.kill))
        assert killing is not None, "the server was gone before it was killed"
        await killing
        await asyncio.to_thread(self._server.start)
        return acknowledged
