"""The one suite, on all three ways of keeping a journal."""

import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from journal_grounds import (
    KilledPostgresGround,
    MemoryGround,
    PostgresGround,
    SmallDiskPostgresGround,
    SmallDiskSqliteGround,
    SmallPlatter,
    SqliteGround,
    can_mount,
    small_disk,
    tablespace,
)

from clutch.testing.journal_suite import CHECKS, Check, Ground, check_full_disk_changes_nothing, check_torn_tail
from clutch.testing.postgres import ADDRESS_VARIABLE, Identity, fresh_database, temporary_server

only_root = pytest.mark.skipif(not can_mount(), reason="only root can mount a small disk")
own_server = pytest.mark.skipif(bool(os.environ.get(ADDRESS_VARIABLE)), reason="your own server is not ours to harm")


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def ground(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ground]:
    if request.param == "memory":
        yield MemoryGround()
    elif request.param == "sqlite":
        file = SqliteGround(tmp_path / "journal.db")
        yield file
        await file.close()
    else:
        address = request.getfixturevalue("postgres_address")
        async with fresh_database(address, f"suite_{uuid.uuid4().hex}") as database:
            tables = PostgresGround(database)
            yield tables
            await tables.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
async def test_journal(ground: Ground, check: Check) -> None:
    await check(ground)


@pytest.mark.parametrize("seed", range(40))
async def test_torn_tail_in_memory(seed: int) -> None:
    await check_torn_tail(MemoryGround(Random(seed)))


@pytest.mark.parametrize("seed", range(5))
async def test_torn_tail_on_sqlite(seed: int, tmp_path: Path) -> None:
    ground = SqliteGround(tmp_path / "journal.db", Random(seed))
    await check_torn_tail(ground)
    await ground.close()


@own_server
@pytest.mark.parametrize("seed", range(2))
async def test_torn_tail_on_postgres(seed: int) -> None:
    with temporary_server() as server:
        ground = KilledPostgresGround(server.address(), server, Random(seed))
        await check_torn_tail(ground)
        await ground.close()


async def test_full_disk_in_memory() -> None:
    await check_full_disk_changes_nothing(MemoryGround(hook=SmallPlatter(1_000_000)))


async def test_full_file_on_sqlite(tmp_path: Path) -> None:
    ground = SqliteGround(tmp_path / "journal.db", max_bytes=2_000_000)
    await check_full_disk_changes_nothing(ground)
    await ground.close()


@only_root
async def test_full_disk_on_sqlite(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "4m") as folder:
        ground = SmallDiskSqliteGround(folder / "journal.db")
        await check_full_disk_changes_nothing(ground)
        await ground.close()


@only_root
@own_server
async def test_full_disk_on_postgres(postgres_address: str) -> None:
    # Not under tmp_path, which the account that runs the server may not enter.
    with small_disk(Path(f"/tmp/clutch-small-{uuid.uuid4().hex}"), "24m", Identity().uid) as folder:
        async with (
            tablespace(postgres_address, "small", folder),
            fresh_database(postgres_address, "small", "TABLESPACE small") as database,
        ):
            ground = SmallDiskPostgresGround(database, folder)
            await check_full_disk_changes_nothing(ground)
            await ground.close()
