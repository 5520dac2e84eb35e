"""Containers of a real Docker engine pass the suite that plain processes pass."""

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from clutch.testing import docker
from clutch.testing.containers_suite import CHECKS, LIMIT_CHECKS, Check
from clutch.testing.docker_ground import DockerGround

pytestmark = pytest.mark.skipif(bool(docker.missing()), reason=docker.missing())


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    with docker.any_engine() as found:
        yield found


@pytest.fixture
async def ground(socket: Path, tmp_path: Path) -> AsyncIterator[DockerGround]:
    made = DockerGround(tmp_path, socket)
    try:
        yield made
    finally:
        await made.close()
        shutil.rmtree(tmp_path)


@pytest.mark.parametrize("check", (*CHECKS, *LIMIT_CHECKS), ids=lambda check: check.__name__.removeprefix("check_"))
async def test_a_container(ground: DockerGround, check: Check) -> None:
    await check(ground)
