"""The one suite of access, on both databases it may be kept in."""

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from clutch.testing.access_suite import CHECKS, Check, Ground
from clutch.testing.postgres import fresh_database


@pytest.fixture(params=["sqlite", "postgres"])
async def ground(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ground]:
    if request.param == "sqlite":
        yield Ground(tmp_path)
        return
    address = request.getfixturevalue("postgres_address")
    async with fresh_database(address, f"access_{uuid.uuid4().hex}") as database:
        yield Ground(tmp_path, database)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
async def test_access_store(ground: Ground, check: Check) -> None:
    await check(ground)
