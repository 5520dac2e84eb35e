"""The three ways of keeping a journal, as ground for the suite, with ways to harm each for real."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random

import asyncpg

from clutch.backends.journal.base import FullJournal
from clutch.backends.journal.memory import MemoryJournal, MemoryStore
from clutch.backends.journal.postgres import PostgresJournal
from clutch.backends.journal.sqlite import SqliteJournal
from clutch.testing.journal_suite import numbered_batch
from clutch.testing.postgres import Server
from clutch.wire.errors import DiskFull, Unavailable
from clutch.wire.journal import Batch

WRITER = Path(__file__).parent / "journal_writer.py"


class PowerCut(Exception):
    pass


class SmallPlatter:
    """Refuses batches beyond a number of bytes."""

    def __init__(self, capacity_bytes: int) -> None:
        self.left = capacity_bytes

    async def before_commit(self, batch: Batch) -> None:
        size = sum(len(row.payload) for row in batch.rows)
        if size > self.left:
            raise DiskFull("the platter is full", object="memory journal", next_step="Free space.")
        self.left -= size

    async def after_commit(self, batch: Batch) -> None:
        pass


class CutAfterCommit:
    """Cuts the power when the nth batch is on the platter and nobody knows it yet."""

    def __init__(self, nth: int) -> None:
        self.left = nth

    async def before_commit(self, batch: Batch) -> None:
        pass

    async def after_commit(self, batch: Batch) -> None:
        self.left -= 1
        if self.left == 0:
            raise PowerCut


class MemoryGround:
    def __init__(self, chance: Random | None = None, hook: SmallPlatter | None = None) -> None:
        self.now = 1_000.0
        self.store = MemoryStore(lambda: self.now, hook)
        self._chance = chance or Random(0)

    async def open(self) -> FullJournal:
        return MemoryJournal(self.store)

    async def outlive(self, ttl_s: float) -> None:
        self.now += ttl_s

    async def damage_row(self, index: int) -> None:
        self.store.damage_row(index)

    async def lose_rows(self, first: int, last: int) -> None:
        for index in range(first, last + 1):
            self.store.lose_row(index)

    async def damage_snapshot(self, age: int) -> None:
        self.store.damage_snapshot(age)

    async def free_space(self) -> None:
        assert isinstance(self.store.hook, SmallPlatter)
        self.store.hook.left = 10**9

    async def crash_while_appending(self, batch_rows: int) -> int:
        journal = MemoryJournal(self.store, hook=CutAfterCommit(self._chance.randint(2, 30)))
        lead = await journal.lead("writer", 0.0)
        before, acknowledged = 0, 0
        try:
            while True:
                before = len(self.store.serialise())
                acknowledged = await journal.append(numbered_batch(lead, acknowledged + 1, batch_rows))
        except PowerCut:
            self.store = self.store.torn(self._chance.randint(0, len(self.store.serialise()) - before))
        return acknowledged


class SqliteGround:
    def __init__(self, path: Path, chance: Random | None = None, max_bytes: int | None = None) -> None:
        self.path = path
        self.offset_s = 0.0
        self._chance = chance or Random(0)
        self._max_bytes = max_bytes
        self._opened: list[FullJournal] = []

    async def open(self) -> FullJournal:
        clock = lambda: time.time() + self.offset_s  # noqa: E731
        journal = await SqliteJournal.open(self.path, clock=clock, max_bytes=self._max_bytes)
        self._opened.append(journal)
        return journal

    async def close(self) -> None:
        for journal in self._opened:
            await journal.close()

    async def outlive(self, ttl_s: float) -> None:
        self.offset_s += ttl_s

    def _execute(self, statement: str, *arguments: object) -> None:
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            assert connection.execute(statement, arguments).rowcount > 0, "the harm was not done"
        finally:
            connection.close()

    async def damage_row(self, index: int) -> None:
        connection = sqlite3.connect(self.path)
        (payload,) = connection.execute("SELECT payload FROM journal WHERE seq = ?", (index,)).fetchone()
        connection.close()
        self._execute("UPDATE journal SET payload = ? WHERE seq = ?", payload[:-1] + bytes([payload[-1] ^ 1]), index)

    async def lose_rows(self, first: int, last: int) -> None:
        self._execute("DELETE FROM journal WHERE seq BETWEEN ? AND ?", first, last)

    async def damage_snapshot(self, age: int) -> None:
        number = "(SELECT id FROM snapshots ORDER BY id DESC LIMIT 1 OFFSET ?)"
        self._execute(
            f"UPDATE snapshot_pieces SET payload = CAST(payload || 'x' AS BLOB) WHERE piece = 0 AND id = {number}", age
        )

    async def free_space(self) -> None:
        self._max_bytes = None

    async def crash_while_appending(self, batch_rows: int) -> int:
        return await asyncio.to_thread(self._kill_a_writer, batch_rows)

    def _kill_a_writer(self, batch_rows: int) -> int:
        writer = subprocess.Popen([sys.executable, WRITER, self.path, str(batch_rows)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        acknowledged = 0
        for _ in range(self._chance.randint(1, 60)):
            acknowledged = int(writer.stdout.readline())
        time.sleep(self._chance.random() * 0.01)  # anywhere inside a batch
        writer.kill()
        writer.wait()
        with writer.stdout as rest:
            whole = [line for line in rest.read().splitlines(keepends=True) if line.endswith(b"\n")]
        return int(whole[-1]) if whole else acknowledged


class PostgresGround:
    def __init__(self, address: str) -> None:
        self.address = address
        self._opened: list[FullJournal] = []

    async def open(self) -> FullJournal:
        journal = await PostgresJournal.open(self.address)
        self._opened.append(journal)
        return journal

    async def close(self) -> None:
        for journal in self._opened:
            await journal.close()

    async def outlive(self, ttl_s: float) -> None:
        await asyncio.sleep(ttl_s + 0.01)  # the server's own clock has to move

    async def _execute(self, statement: str, *arguments: object) -> None:
        connection = await asyncpg.connect(self.address)
        try:
            done = await connection.execute(statement, *arguments)
            assert not done.endswith(" 0"), "the harm was not done"
        finally:
            await connection.close()

    async def damage_row(self, index: int) -> None:
        flipped = "set_byte(payload, length(payload) - 1, get_byte(payload, length(payload) - 1) # 1)"
        await self._execute(f"UPDATE journal SET payload = {flipped} WHERE seq = $1", index)

    async def lose_rows(self, first: int, last: int) -> None:
        await self._execute("DELETE FROM journal WHERE seq BETWEEN $1 AND $2", first, last)

    async def damage_snapshot(self, age: int) -> None:
        number = "(SELECT id FROM snapshots ORDER BY id DESC LIMIT 1 OFFSET $1)"
        await self._execute(
            f"UPDATE snapshot_pieces SET payload = payload || 'x'::bytea WHERE piece = 0 AND id = {number}", age
        )


class KilledPostgresGround(PostgresGround):
    """On a server of its own, which is killed in the middle of an append and started again."""

    def __init__(self, address: str, server: Server, chance: Random) -> None:
        super().__init__(address)
        self._server = server
        self._chance = chance

    async def crash_while_appending(self, batch_rows: int) -> int:
        journal = await self.open()
        lead = await journal.lead("writer", 0.0)
        acknowledged = await journal.append(numbered_batch(lead, 1, batch_rows))
        asyncio.get_running_loop().call_later(0.05 + self._chance.random() * 0.1, self._server.kill)
        try:
            while True:
                acknowledged = await journal.append(numbered_batch(lead, acknowledged + 1, batch_rows))
        except Unavailable as error:
            assert error.next_step
        await journal.close()
        self._opened.remove(journal)
        self._server.start()
        return acknowledged


@contextmanager
def small_disk(folder: Path, size: str, owner: int = 0) -> Iterator[Path]:
    """A real file system of this size. Only root can mount one."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},uid={owner},mode=700", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
        folder.rmdir()


def grow_disk(folder: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", folder], check=True)


class SmallDiskSqliteGround(SqliteGround):
    async def free_space(self) -> None:
        grow_disk(self.path.parent, "64m")


class SmallDiskPostgresGround(PostgresGround):
    def __init__(self, address: str, disk: Path) -> None:
        super().__init__(address)
        self._disk = disk

    async def free_space(self) -> None:
        grow_disk(self._disk, "128m")


@asynccontextmanager
async def tablespace(address: str, name: str, folder: Path) -> AsyncIterator[None]:
    admin = await asyncpg.connect(address)
    try:
        await admin.execute(f"CREATE TABLESPACE {name} LOCATION '{folder}'")
        try:
            yield
        finally:
            await admin.execute(f"DROP TABLESPACE {name}")
    finally:
        await admin.close()


def can_mount() -> bool:
    return os.geteuid() == 0
