"""The output lane for an address, running: a SQLite file beside the journal's, PostgreSQL, or memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from clutch.master.output.base import OutputStore
from clutch.master.output.lane import OutputLane
from clutch.master.output.memory import MemoryOutputStore
from clutch.wire.ids import TaskId


def beside(journal: str, lane: str) -> str:
    """Where a lane keeps its data when the journal is at this address: a file of its own beside the journal's file, or
    tables of its own in the same database."""
    if journal == "memory:" or journal.startswith(("postgresql://", "postgres://")):
        return journal
    path = Path(journal.removeprefix("sqlite:///"))
    name = f"{lane}.db" if path.stem == "journal" else f"{path.stem}.{lane}.db"
    return str(path.with_name(name))


async def open_store(address: str) -> OutputStore:
    """``memory:``, ``postgresql://...``, or the path of a SQLite file (also as ``sqlite:///FILE``)."""
    if address == "memory:":
        return MemoryOutputStore()
    if address.startswith(("postgresql://", "postgres://")):
        from clutch.master.output.postgres import PostgresOutputStore

        return await PostgresOutputStore.open(address)
    from clutch.master.output.sqlite import SqliteOutputStore

    return await SqliteOutputStore.open(Path(address.removeprefix("sqlite:///")))


@asynccontextmanager
async def open_output(
    address: str, has_ended: Callable[[TaskId], bool], *, clock: Callable[[], float] = time.time
) -> AsyncIterator[OutputLane]:
    """A lane whose writer runs for the length of the block."""
    store = await open_store(address)
    lane = OutputLane(store, has_ended, clock)
    try:
        async with asyncio.TaskGroup() as group:
            writer = group.create_task(lane.run(), name="output-writer")
            try:
                yield lane
            finally:
                writer.cancel()
    finally:
        await lane.close_reader()
        await store.close()
