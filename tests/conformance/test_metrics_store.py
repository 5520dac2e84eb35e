"""The one suite, on all three ways of keeping metrics."""

import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from metrics_grounds import MemoryGround, PostgresGround, SqliteGround

from clutch.testing.metrics_suite import (
    CHECKS,
    Check,
    MetricsGround,
    check_acknowledged_metrics_survive,
    check_full_store_changes_nothing,
)
from clutch.testing.postgres import ADDRESS_VARIABLE, fresh_database, temporary_server

own_server = pytest.mark.skipif(bool(os.environ.get(ADDRESS_VARIABLE)), reason="your own server is not ours to harm")


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def ground(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetricsGround]:
    if request.param == "memory":
        yield MemoryGround()
    elif request.param == "sqlite":
        file = SqliteGround(tmp_path / "metrics.db")
        yield file
        await file.close()
    else:
        address = request.getfixturevalue("postgres_address")
        async with fresh_database(address, f"metrics_{uuid.uuid4().hex}") as database:
            tables = PostgresGround(database)
            yield tables
            await tables.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
async def test_metrics_store(ground: MetricsGround, check: Check) -> None:
    await check(ground)


async def test_full_metrics_shelf() -> None:
    await check_full_store_changes_nothing(MemoryGround(1_000_000))


async def test_full_metrics_file(tmp_path: Path) -> None:
    ground = SqliteGround(tmp_path / "metrics.db", max_bytes=2_000_000)
    await check_full_store_changes_nothing(ground)
    await ground.close()


@pytest.mark.parametrize("seed", range(2))
async def test_metrics_survive_a_killed_writer(seed: int, tmp_path: Path) -> None:
    ground = SqliteGround(tmp_path / "metrics.db", Random(seed))
    await check_acknowledged_metrics_survive(ground)
    await ground.close()


@own_server
async def test_metrics_survive_a_killed_server() -> None:
    with temporary_server() as server:
        ground = PostgresGround(server.address(), server)
        await check_acknowledged_metrics_survive(ground)
        await ground.close()
