"""The three ways of keeping metrics, as ground for the suite, with ways to harm each for real."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from lane_grounds import PostgresLaneGround, SqliteLaneGround, Write
from msgspec.structs import replace

from clutch.master.metrics_lane.base import MetricsStore
from clutch.master.metrics_lane.memory import MemoryMetricsStore, MetricsShelf
from clutch.master.metrics_lane.postgres import PostgresMetricsStore
from clutch.master.metrics_lane.sqlite import SqliteMetricsStore
from clutch.master.metrics_lane.tables import ROWS
from clutch.testing.metrics_suite import FENCE, MEMBER, counted, metrics_on


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


class SqliteGround(SqliteLaneGround[MetricsStore]):
    rows = ROWS
    answers = (1, 100)
    writer = Path(__file__).parent / "metrics_writer.py"

    async def open_store(self) -> MetricsStore:
        return await SqliteMetricsStore.open(self.path, max_bytes=self.max_bytes)


class PostgresGround(PostgresLaneGround[MetricsStore]):
    rows = ROWS
    answers = (80, 80)

    async def open_store(self) -> MetricsStore:
        return await PostgresMetricsStore.open(self.address)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Write]:
        async with metrics_on(await self.open()) as lane:
            yield lambda sequence: lane.write(MEMBER, FENCE, [counted(sequence + 1)])
