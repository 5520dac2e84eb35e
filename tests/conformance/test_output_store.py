"""The one suite, on all three ways of keeping output."""

import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from journal_grounds import can_mount, small_disk, tablespace
from output_grounds import FullPostgresGround, MemoryGround, PostgresGround, SmallDiskGround, SqliteGround

from clutch.master.output.postgres import PostgresOutputStore
from clutch.testing.output_suite import (
    CHECKS,
    Check,
    OutputGround,
    check_acknowledged_output_survives,
    check_full_disk_changes_nothing,
    lane_on,
    piece,
)
from clutch.testing.postgres import ADDRESS_VARIABLE, Identity, fresh_database, temporary_server
from clutch.wire.errors import Unavailable

only_root = pytest.mark.skipif(not can_mount(), reason="only root can mount a small disk")
own_server = pytest.mark.skipif(bool(os.environ.get(ADDRESS_VARIABLE)), reason="your own server is not ours to harm")


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def ground(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OutputGround]:
    if request.param == "memory":
        yield MemoryGround()
    elif request.param == "sqlite":
        file = SqliteGround(tmp_path / "output.db")
        yield file
        await file.close()
    else:
        address = request.getfixturevalue("postgres_address")
        async with fresh_database(address, f"output_{uuid.uuid4().hex}") as database:
            tables = PostgresGround(database)
            yield tables
            await tables.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
async def test_output_store(ground: OutputGround, check: Check) -> None:
    await check(ground)


async def test_full_shelf() -> None:
    await check_full_disk_changes_nothing(MemoryGround(1_000_000))


async def test_full_output_file(tmp_path: Path) -> None:
    ground = SqliteGround(tmp_path / "output.db", max_bytes=2_000_000)
    await check_full_disk_changes_nothing(ground)
    await ground.close()


@only_root
async def test_full_disk_under_output_on_sqlite(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "8m") as folder:
        ground = SmallDiskGround(folder)
        await check_full_disk_changes_nothing(ground)
        await ground.close()


@only_root
@own_server
async def test_full_disk_under_output_on_postgres(postgres_address: str) -> None:
    # Not under tmp_path, which the account that runs the server may not enter.
    with small_disk(Path(f"/tmp/clutch-small-{uuid.uuid4().hex}"), "24m", Identity().uid) as folder:
        async with (
            tablespace(postgres_address, "small_output", folder),
            fresh_database(postgres_address, "small_output", "TABLESPACE small_output") as database,
        ):
            ground = FullPostgresGround(database, folder)
            await check_full_disk_changes_nothing(ground)
            await ground.close()


@pytest.mark.parametrize("seed", range(3))
async def test_output_survives_a_killed_writer(seed: int, tmp_path: Path) -> None:
    ground = SqliteGround(tmp_path / "output.db", Random(seed))
    await check_acknowledged_output_survives(ground)
    await ground.close()


async def test_a_master_that_is_stopped_in_a_commit_does_not_keep_its_successor_waiting(postgres_address: str) -> None:
    async with fresh_database(postgres_address, f"output_{uuid.uuid4().hex}") as database:
        ground = PostgresGround(database)
        store, successor = await ground.open(), await ground.open()
        assert isinstance(store, PostgresOutputStore)
        async with lane_on(store) as lane:
            await lane.write([piece(0, b"one\n")])
        with pytest.raises(Unavailable):
            async with store._database.writing() as connection, connection.transaction():
                await connection.execute("UPDATE output_streams SET version = version + 1")
                async with lane_on(successor) as lane:  # the connection above says nothing more meanwhile
                    (reached,) = await lane.write([piece(4, b"two\n")])
        assert reached.stdout == 8
        await ground.close()


@own_server
async def test_output_survives_a_killed_server() -> None:
    with temporary_server() as server:
        ground = PostgresGround(server.address(), server, Random(0))
        await check_acknowledged_output_survives(ground)
        await ground.close()
