"""What the grounds of the output lane and of the metrics lane share: stores on a file or a server that is harmed for
real."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random
from typing import Any, Generic, Protocol, TypeVar

import asyncpg

from clutch.master.lanes.rows import LaneRows
from clutch.testing.postgres import Server
from clutch.wire.errors import Unavailable


class LaneStore(Protocol):
    async def close(self) -> None: ...


Store = TypeVar("Store", bound=LaneStore)
Write = Callable[[int], Awaitable[int]]
"""Writes what comes behind what was acknowledged; what is acknowledged then."""


class LaneGround(Generic[Store]):
    rows: LaneRows[Any, Any]
    """The tables that are harmed."""
    answers: tuple[int, int]
    """A writer is killed after so many answers: at least, at most."""

    def __init__(self, chance: Random | None) -> None:
        self._chance = chance or Random(0)
        self._opened: list[Store] = []

    async def open_store(self) -> Store:
        raise NotImplementedError

    async def open(self) -> Store:
        store = await self.open_store()
        self._opened.append(store)
        return store

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


class SqliteLaneGround(LaneGround[Store]):
    writer: Path
    """A script that writes to the file it is given until it is killed."""

    def __init__(self, path: Path, chance: Random | None = None, max_bytes: int | None = None) -> None:
        super().__init__(chance)
        self.path = path
        self.max_bytes = max_bytes

    async def damage(self, owner: int, place: int) -> None:
        connection = sqlite3.connect(self.path, isolation_level=None)
        table, where = self.rows.parts, f"WHERE {self.rows.owner} = ? AND {self.rows.place} = ?"
        (body,) = connection.execute(f"SELECT body FROM {table} {where}", (owner, place)).fetchone()
        worse = body[:-1] + bytes([body[-1] ^ 1])
        changed = connection.execute(f"UPDATE {table} SET body = ? {where}", (worse, owner, place)).rowcount
        assert changed == 1, "the harm was not done"
        connection.close()

    async def kill_while_writing(self) -> int:
        return await asyncio.to_thread(self._kill_a_writer)

    def _kill_a_writer(self) -> int:
        """A process of its own that is killed, with -9, somewhere in the middle."""
        command = [sys.executable, str(self.writer), str(self.path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ)) as writer:
            assert writer.stdout is not None
            for _ in range(self._chance.randint(*self.answers)):
                last = writer.stdout.readline()
            writer.kill()
            rest = writer.stdout.read().split(b"\n")[:-1]
        return int(rest[-1] if rest else last)


class PostgresLaneGround(LaneGround[Store]):
    def __init__(self, address: str, server: Server | None = None, chance: Random | None = None) -> None:
        super().__init__(chance)
        self.address = address
        self._server = server

    def writing(self) -> AbstractAsyncContextManager[Write]:
        """A lane on a store of this ground, for the length of the block."""
        raise NotImplementedError

    async def damage(self, owner: int, place: int) -> None:
        connection = await asyncpg.connect(self.address)
        changed = await connection.execute(
            f"UPDATE {self.rows.parts} SET body = set_byte(body, 0, get_byte(body, 0) # 1) "
            f"WHERE {self.rows.owner} = $1 AND {self.rows.place} = $2",
            owner,
            place,
        )
        assert changed == "UPDATE 1", "the harm was not done"
        await connection.close()

    async def kill_while_writing(self) -> int:
        """The whole server dies under the lane, and comes back."""
        assert self._server is not None
        acknowledged, count = 0, self._chance.randint(*self.answers)
        killing: asyncio.Task[None] | None = None
        async with self.writing() as write:
            while True:
                try:
                    acknowledged = await write(acknowledged)
                except Unavailable:
                    break
                count -= 1
                if count == 0:
                    killing = asyncio.create_task(asyncio.to_thread(self._server.kill))
        assert killing is not None, "the server was gone before it was killed"
        await killing
        await asyncio.to_thread(self._server.start)
        return acknowledged
