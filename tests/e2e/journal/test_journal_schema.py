"""A journal written by an older release is upgraded in place; one written by a newer release is left alone."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncpg
import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, inspect, text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from clutch.backends.journal import schema
from clutch.backends.journal.base import FullJournal
from clutch.backends.journal.opening import open_journal
from clutch.backends.journal.tables import metadata
from clutch.testing.journal_suite import numbered_batch, refused, task
from clutch.wire.errors import BadRequest, Stale, TooNew
from clutch.wire.journal import Batch, Row, Snapshot

Address = Callable[[str], Awaitable[str]]
Open = Callable[[str], Awaitable[FullJournal]]
both = pytest.mark.parametrize("kind", ["sqlite", "postgres"])


async def on(address: str, change: Callable[[Connection], object]) -> object:
    """Run something on the bare database, behind the journal's back."""
    if address.startswith("sqlite"):
        engine = create_engine(address)
        try:
            with engine.begin() as connection:
                return change(connection)
        finally:
            engine.dispose()

    async def connect() -> AsyncConnection:
        return await asyncpg.connect(address)

    server = create_async_engine("postgresql+asyncpg://", async_creator=connect)
    try:
        async with server.begin() as connection:
            return await connection.run_sync(change)
    finally:
        await server.dispose()


ROWS = [Row(n, 3, 10.0 + n, "api:submit", "TaskSubmitted", n % 3, b"payload %d" % n) for n in range(1, 6)]


def at_first_step(connection: Connection) -> None:
    """A journal as a release before the outbox left it: rows of several versions, a snapshot, no outbox, no views."""
    config = schema.migrations()
    config.attributes["connection"] = connection
    command.upgrade(config, "0001")
    checksum = 0
    for row in ROWS:
        checksum = row.checksum(checksum)
        values = {name: getattr(row, name) for name in ("term", "at", "cause", "kind", "version", "payload")}
        connection.execute(
            text("INSERT INTO journal VALUES (:seq, :term, :at, :cause, :kind, :version, :payload, :checksum)"),
            {"seq": row.index, "checksum": checksum, **values},
        )
    snapshot = Snapshot(2, 1, b"state")
    connection.execute(text("INSERT INTO snapshots VALUES (1, 2, 1, :sum)"), {"sum": snapshot.checksum()})
    connection.execute(text("INSERT INTO snapshot_pieces VALUES (1, 0, :payload)"), {"payload": snapshot.payload})
    connection.execute(text("UPDATE leader SET term = 3, last_index = 5, last_checksum = :sum"), {"sum": checksum})


@both
async def test_an_older_journal_is_upgraded_in_place(new_address: Address, opened: Open, kind: str) -> None:
    address = await new_address(kind)
    await on(address, at_first_step)
    assert await on(address, schema.revision_of) == "0001"
    journal = await opened(address)
    assert await on(address, schema.revision_of) == schema.HEAD
    assert await journal.read(0) == ROWS
    assert await journal.load_snapshot() == Snapshot(2, 1, b"state")
    lead = await journal.lead("a", 60.0)
    assert (lead.term, lead.last_index) == (4, 5)
    assert await journal.append(numbered_batch(lead, 6, 10)) == 15
    assert len(await journal.read(0)) == 15
    assert [item.token for item in await journal.pending(5)] == ["o15"]


@both
async def test_a_newer_schema_is_refused_and_left_as_it_is(new_address: Address, kind: str, tmp_path: Path) -> None:
    address = await new_address(kind)
    journal = await open_journal(address)
    lead = await journal.lead("a", 0.0)
    await journal.append(numbered_batch(lead, 1, 10))
    await journal.close()

    def make_newer(connection: Connection) -> None:
        connection.execute(text("UPDATE journal_version SET version_num = '9999'"))
        connection.execute(text("DROP TABLE nodes"))

    def everything(connection: Connection) -> list[object]:
        inspector = inspect(connection)
        names = sorted(inspector.get_table_names())
        return [(n, [c["name"] for c in inspector.get_columns(n)], list(_rows(connection, n))) for n in names]

    await on(address, make_newer)
    before = await on(address, everything)
    file = Path(address.removeprefix("sqlite:///"))
    bytes_before = bytes_of(file)
    error = await refused(TooNew, open_journal(address))
    assert "9999" in error.cause
    assert await on(address, everything) == before
    assert bytes_of(file) == bytes_before
    assert bytes_before or kind == "postgres"


def bytes_of(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _rows(connection: Connection, table: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in connection.execute(text(f'SELECT * FROM "{table}"'))]


@both
async def test_a_view_that_gained_a_field_gains_a_column(new_address: Address, opened: Open, kind: str) -> None:
    """An older release knew no ``detail`` and no ``restarts``, and had a field that is gone today."""
    address = await new_address(kind)
    journal = await open_journal(address)
    lead = await journal.lead("a", 0.0)
    await journal.append(Batch((), (task("t1", restarts=5, detail="gone with the column"),)))
    await journal.close()

    def make_older(connection: Connection) -> None:
        connection.execute(text("ALTER TABLE tasks DROP COLUMN detail"))
        connection.execute(text("ALTER TABLE tasks DROP COLUMN restarts"))
        connection.execute(text("ALTER TABLE tasks ADD COLUMN colour TEXT NOT NULL DEFAULT ''"))
        connection.execute(text("DROP INDEX tasks_by_owner_submitted_at"))

    await on(address, make_older)
    journal = await opened(address)
    assert await journal.view("tasks", "t1") == task("t1", restarts=0, detail="")
    lead = await journal.lead("a", 60.0)
    await journal.append(Batch((), (task("t2", restarts=1, detail="new"), task("t1", restarts=7))))
    assert lead.term == 2
    assert await journal.page("tasks", {"restarts": 7}, "detail", "", 5) == [task("t1", restarts=7)]
    found = await on(address, lambda connection: inspect(connection).get_indexes("tasks"))
    assert "tasks_by_owner_submitted_at" in {index["name"] for index in found}  # type: ignore[attr-defined]


@both
async def test_migrations_lead_to_the_tables_that_queries_are_built_from(new_address: Address, kind: str) -> None:
    address = await new_address(kind)
    await (await open_journal(address)).close()

    def described(connection: Connection) -> dict[str, object]:
        inspector = inspect(connection)
        return {
            name: [
                [(c["name"], str(c["type"]), c["nullable"]) for c in inspector.get_columns(name)],
                inspector.get_pk_constraint(name)["constrained_columns"],
                sorted((i["name"], tuple(i["column_names"])) for i in inspector.get_indexes(name)),
            ]
            for name in metadata.tables
        }

    migrated = await on(address, described)
    other = await new_address(kind)
    await on(other, metadata.create_all)
    assert migrated == await on(other, described)


def test_the_newest_step_is_known_by_name() -> None:
    assert ScriptDirectory.from_config(schema.migrations()).get_current_head() == schema.HEAD


async def test_a_foreign_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "photos.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE photos (name TEXT)")
    connection.commit()
    connection.close()
    before = bytes_of(path)
    await refused(BadRequest, open_journal(str(path)))
    assert bytes_of(path) == before


@both
async def test_masters_that_open_a_new_journal_at_once_make_it_once(
    new_address: Address, opened: Open, kind: str
) -> None:
    for _ in range(3):
        address = await new_address(kind)
        journals = await asyncio.gather(*(opened(address) for _ in range(4)))
        lead = await journals[0].lead("a", 60.0)
        await journals[0].append(Batch((), (task("t1"),)))
        assert lead.term == 1
        assert await journals[3].view("tasks", "t1") == task("t1")


@both
async def test_an_end_that_moved_without_the_leader_stops_it(new_address: Address, opened: Open, kind: str) -> None:
    """Somebody wrote past the leader row's guard; whatever it was, this leader may not write over it."""
    address = await new_address(kind)
    journal = await opened(address)
    lead = await journal.lead("a", 60.0)
    await journal.append(numbered_batch(lead, 1, 10))
    await on(address, lambda connection: connection.execute(text("UPDATE leader SET last_index = 11")))
    await refused(Stale, journal.append(numbered_batch(lead, 11, 10)))
    assert len(await journal.read(0, 10)) == 10
    assert await journal.view("tasks", "counter") == task("counter", epoch=10)
