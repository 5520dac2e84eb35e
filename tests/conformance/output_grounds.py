"""The three ways of keeping output, as ground for the suite, with ways to harm each for real."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from random import Random

import asyncpg
from msgspec.structs import replace

from clutch.master.output.base import OutputStore
from clutch.master.output.memory import MemoryOutputStore, MemoryShelf
from clutch.master.output.postgres import PostgresOutputStore
from clutch.master.output.sqlite import SqliteOutputStore
from clutch.testing.output_suite import lane_on, numbered, piece
from clutch.testing.postgres import Server
from clutch.wire.errors import Unavailable

WRITER = Path(__file__).parent / "output_writer.py"


class MemoryGround:
    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.shelf = MemoryShelf(capacity_bytes)

    async def open(self) -> OutputStore:
        return MemoryOutputStore(self.shelf)

    async def damage(self, stream: int, start: int) -> None:
        row = self.shelf.rows[stream][start]
        self.shelf.rows[stream][start] = replace(row, body=row.body[:-1] + bytes([row.body[-1] ^ 1]))

    async def free_space(self) -> None:
        self.shelf.capacity_bytes = None

    async def close(self) -> None:
        pass


class SqliteGround:
    def __init__(self, path: Path, chance: Random | None = None, max_bytes: int | None = None) -> None:
        self.path = path
        self._chance = chance or Random(0)
        self._max_bytes = max_bytes
        self._opened: list[OutputStore] = []

    async def open(self) -> OutputStore:
        store = await SqliteOutputStore.open(self.path, max_bytes=self._max_bytes)
        self._opened.append(store)
        return store

    async def close(self) -> None:
        for store in self._opened:
            await store.close()

    async def damage(self, stream: int, start: int) -> None:
        connection = sqlite3.connect(self.path, isolation_level=None)
        where = "WHERE stream = ? AND start_byte = ?"
        (body,) = connection.execute(f"SELECT body FROM output_segments {where}", (stream, start)).fetchone()
        worse = body[:-1] + bytes([body[-1] ^ 1])
        changed = connection.execute(f"UPDATE output_segments SET body = ? {where}", (worse, stream, start)).rowcount
        assert changed == 1, "the harm was not done"
        connection.close()

    async def free_space(self) -> None:
        pass  # a file at its limit lets go of rows without help

    async def kill_while_writing(self) -> int:
        return await asyncio.to_thread(self._kill_a_writer)

    def _kill_a_writer(self) -> int:
        """A process of its own that is killed, with -9, somewhere in the middle."""
        command = [sys.executable, str(WRITER), str(self.path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ)) as writer:
            assert writer.stdout is not None
            for _ in range(self._chance.randint(1, 40)):
                last = writer.stdout.readline()
            writer.kill()
            rest = writer.stdout.read().split(b"\n")[:-1]
        return int(rest[-1] if rest else last)


class SmallDiskGround(SqliteGround):
    """On a disk of its own, with a file in the way that can be removed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "output.db")
        self._ballast = folder / "ballast"
        self._ballast.write_bytes(bytes(2**20))

    async def free_space(self) -> None:
        self._ballast.unlink()


class PostgresGround:
    def __init__(self, address: str, server: Server | None = None, chance: Random | None = None) -> None:
        self.address = address
        self._server = server
        self._chance = chance or Random(0)
        self._opened: list[OutputStore] = []

    async def open(self) -> OutputStore:
        store = await PostgresOutputStore.open(self.address)
        self._opened.append(store)
        return store

    async def close(self) -> None:
        for store in self._opened:
            await store.close()

    async def damage(self, stream: int, start: int) -> None:
        connection = await asyncpg.connect(self.address)
        changed = await connection.execute(
            "UPDATE output_segments SET body = set_byte(body, 0, get_byte(body, 0) # 1) "
            "WHERE stream = $1 AND start_byte = $2",
            stream,
            start,
        )
        assert changed == "UPDATE 1", "the harm was not done"
        await connection.close()

    async def kill_while_writing(self) -> int:
        """The whole server dies under the lane, and comes back."""
        assert self._server is not None
        acknowledged, count = 0, self._chance.randint(2, 40)
        killing: asyncio.Task[None] | None = None
        async with lane_on(await self.open()) as lane:
            while True:
                try:
                    (reached,) = await lane.write([piece(acknowledged, numbered(acknowledged))])
                except Unavailable:
                    break
                acknowledged = reached.stdout
                count -= 1
                if count == 0:
                    killing = asyncio.create_task(asyncio.to_thread(self._server.kill))
        assert killing is not None, "the server was gone before it was killed"
        await killing
        await asyncio.to_thread(self._server.start)
        return acknowledged


class FullPostgresGround(PostgresGround):
    """A database in a tablespace on a small disk, with a file in the way that can be removed."""

    def __init__(self, address: str, folder: Path) -> None:
        super().__init__(address)
        self._ballast = folder / "ballast"
        self._ballast.write_bytes(bytes(8 * 2**20))

    async def free_space(self) -> None:
        self._ballast.unlink()
