"""The suite of all blobs, through a real master's API onto the disks of three real agents."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from agents_ground import NAMES, RealGround, ShelvedCluster

from clutch.testing.blobs_suite import CHECKS, Check, check_lists_by_pages


def name_of(check: object) -> str:
    return check.__name__.removeprefix("check_")  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShelvedCluster]:
    with ShelvedCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.start_with_agents(*NAMES)
        yield cluster


@pytest.fixture
async def ground(cluster: ShelvedCluster, tmp_path: Path) -> AsyncIterator[RealGround]:
    ground = RealGround(cluster, tmp_path)
    yield ground
    await ground.close()


@pytest.mark.parametrize("check", [check for check in CHECKS if check is not check_lists_by_pages], ids=name_of)
async def test_suite(check: Check, ground: RealGround) -> None:
    await check(ground)


@pytest.mark.slow
async def test_lists_by_pages(ground: RealGround) -> None:
    """Three thousand puts, each durable on two disks."""
    await check_lists_by_pages(ground)
