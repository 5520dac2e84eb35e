"""The metrics lane for an address, running: a SQLite file beside the journal's, PostgreSQL, or memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from clutch.master.metrics_lane.base import MetricsStore
from clutch.master.metrics_lane.lane import MetricsLane
from clutch.master.metrics_lane.memory import MemoryMetricsStore


async def open_store(address: str) -> MetricsStore:
    """``memory:``, ``postgresql://...``, or the path of a SQLite file (also as ``sqlite:///FILE``)."""
    if address == "memory:":
        return MemoryMetricsStore()
    if address.startswith(("postgresql://", "postgres://")):
        from clutch.master.metrics_lane.postgres import PostgresMetricsStore

        return await PostgresMetricsStore.open(address)
    from clutch.master.metrics_lane.sqlite import SqliteMetricsStore

    return await SqliteMetricsStore.open(Path(address.removeprefix("sqlite:///")))


@asynccontextmanager
async def open_metrics(address: str) -> AsyncIterator[MetricsLane]:
    """A lane whose writer runs for the length of the block. ``beside`` of the output lane gives its address."""
    store = await open_store(address)
    lane = MetricsLane(store)
    try:
        await lane.begin()
        async with asyncio.TaskGroup() as group:
            writer = group.create_task(lane.run(), name="metrics-writer")
            try:
                yield lane
            finally:
                writer.cancel()
    finally:
        lane.close_threads()
        await store.close()
