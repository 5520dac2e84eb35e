"""What only a server can suffer: it ends a connection, restarts, or is told not to wait for its disk."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from clutch.backends.journal.postgres import PostgresJournal
from clutch.testing.journal_suite import numbered_batch, refused, task
from clutch.wire.errors import Unavailable

LEADER = Path(__file__).parent / "journal_leader.py"
Address = Callable[[str], Awaitable[str]]


@pytest.fixture
async def address(new_address: Address) -> str:
    return await new_address("postgres")


@pytest.fixture
async def admin(address: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(address)
    yield connection
    await connection.close()


async def end_connections(admin: asyncpg.Connection) -> None:
    query = """SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid()"""
    assert len(await admin.fetch(query)) > 0


async def test_an_append_that_broke_off_stops_the_writer(address: str, admin: asyncpg.Connection) -> None:
    """Nobody can know whether it was committed; only a new lead finds out."""
    journal = await PostgresJournal.open(address)
    lead = await journal.lead("a", 60.0)
    await journal.append(numbered_batch(lead, 1, 10))
    async with admin.transaction():
        await admin.execute("SELECT 1 FROM leader FOR UPDATE")
        hanging = asyncio.create_task(journal.append(numbered_batch(lead, 11, 10)))
        while not await admin.fetchval("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await end_connections(admin)
        await refused(Unavailable, hanging)
    error = await refused(Unavailable, journal.append(numbered_batch(lead, 11, 10)))
    assert "unknown" in error.cause
    again = await journal.lead("a", 60.0)
    assert again.last_index == 10
    assert await journal.append(numbered_batch(again, 11, 10)) == 20
    await journal.close()


async def test_readers_and_leadership_survive_a_lost_connection(address: str, admin: asyncpg.Connection) -> None:
    journal = await PostgresJournal.open(address)
    lead = await journal.lead("a", 60.0)
    await journal.append(numbered_batch(lead, 1, 10))
    assert len(await journal.read(0)) == 10
    await end_connections(admin)
    for _ in range(3):  # a pool may hold a dead connection or two before it notices
        try:
            assert len(await journal.read(0)) == 10
            break
        except Unavailable:
            continue
    else:
        raise AssertionError("the pool never came back")
    await journal.renew(60.0)
    assert await journal.append(numbered_batch(lead, 11, 10)) == 20
    await journal.close()


@pytest.mark.parametrize("seed", range(3))
async def test_a_leader_stopped_in_the_middle_of_its_work_holds_nobody_up(address: str, seed: int) -> None:
    """A batch is one statement: no lock outlives it, wherever the old leader was stopped. Awake again, it is stale."""
    old = subprocess.Popen([sys.executable, LEADER, address], stdout=subprocess.PIPE)  # noqa: ASYNC220
    assert old.stdout is not None
    chance = Random(seed)
    for _ in range(chance.randint(5, 40)):
        assert int(await asyncio.to_thread(old.stdout.readline)) > 0
    await asyncio.sleep(chance.random() * 0.01)  # anywhere inside a batch
    old.send_signal(signal.SIGSTOP)
    new = await PostgresJournal.open(address)
    lead = await asyncio.wait_for(new.lead("new", 60.0), 8.0)
    assert await new.append(numbered_batch(lead, lead.last_index + 1, 10)) == lead.last_index + 10
    old.send_signal(signal.SIGCONT)
    with old.stdout as rest:
        last_words = (await asyncio.to_thread(rest.read)).split()
    assert old.wait() == 0
    assert last_words[-1] == b"stale"
    rows = await new.read(0)
    assert [row.index for row in rows] == list(range(1, lead.last_index + 11))
    assert [row.term for row in rows] == [1] * lead.last_index + [2] * 10
    assert await new.view("tasks", "counter") == task("counter", epoch=lead.last_index + 10)
    await new.close()


async def test_commits_wait_for_the_platter_whatever_the_default(address: str, admin: asyncpg.Connection) -> None:
    name = await admin.fetchval("SELECT current_database()")
    await admin.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    journal = await PostgresJournal.open(address)
    assert await journal._writer.fetchval("SHOW synchronous_commit") == "on"
    await journal.close()
    await admin.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = remote_apply')
    journal = await PostgresJournal.open(address)
    assert await journal._writer.fetchval("SHOW synchronous_commit") == "remote_apply", "stricter is left alone"
    await journal.close()


async def test_a_wrong_database_is_unavailable_and_named(postgres_address: str) -> None:
    url = urlunsplit(urlsplit(postgres_address)._replace(path="/no_such_database"))
    error = await refused(Unavailable, PostgresJournal.open(url))
    assert "no_such_database" in str(error)


async def test_closing_does_not_wait_for_a_reader_for_ever(address: str) -> None:
    journal = await PostgresJournal.open(address, close_s=0.2)
    await journal.append(numbered_batch(await journal.lead("a", 60.0), 1, 10))
    with pytest.raises(Unavailable):
        async with journal.export() as (origin, chunks):
            assert origin.last_index == 10
            await asyncio.wait_for(journal.close(), 10.0)
            assert [chunk async for chunk in chunks] == [], "a reader of a closed journal got something"


async def test_more_readers_than_connections_take_turns(address: str) -> None:
    journal = await PostgresJournal.open(address)
    await journal.append(numbered_batch(await journal.lead("a", 60.0), 1, 10))
    counts = await asyncio.gather(*(journal.read(0) for _ in range(50)))
    assert [len(rows) for rows in counts] == [10] * 50
    await journal.close()
