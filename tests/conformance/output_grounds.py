"""The three ways of keeping output, as ground for the suite, with ways to harm each for real."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from lane_grounds import PostgresLaneGround, SqliteLaneGround, Write
from msgspec.structs import replace

from clutch.master.output.base import OutputStore
from clutch.master.output.memory import MemoryOutputStore, MemoryShelf
from clutch.master.output.postgres import PostgresOutputStore
from clutch.master.output.sqlite import SqliteOutputStore
from clutch.master.output.tables import ROWS
from clutch.testing.output_suite import lane_on, numbered, piece


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


class SqliteGround(SqliteLaneGround[OutputStore]):
    rows = ROWS
    answers = (1, 40)
    writer = Path(__file__).parent / "output_writer.py"

    async def open_store(self) -> OutputStore:
        return await SqliteOutputStore.open(self.path, max_bytes=self.max_bytes)

    async def free_space(self) -> None:
        pass  # a file at its limit lets go of rows without help


class SmallDiskGround(SqliteGround):
    """On a disk of its own, with a file in the way that can be removed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "output.db")
        self._ballast = folder / "ballast"
        self._ballast.write_bytes(bytes(2**20))

    async def free_space(self) -> None:
        self._ballast.unlink()


class PostgresGround(PostgresLaneGround[OutputStore]):
    rows = ROWS
    answers = (2, 40)

    async def open_store(self) -> OutputStore:
        return await PostgresOutputStore.open(self.address)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Write]:
        async with lane_on(await self.open()) as lane:

            async def write(offset: int) -> int:
                (reached,) = await lane.write([piece(offset, numbered(offset))])
                return reached.stdout

            yield write


class FullPostgresGround(PostgresGround):
    """A database in a tablespace on a small disk, with a file in the way that can be removed."""

    def __init__(self, address: str, folder: Path) -> None:
        super().__init__(address)
        self._ballast = folder / "ballast"
        self._ballast.write_bytes(bytes(8 * 2**20))

    async def free_space(self) -> None:
        self._ballast.unlink()
