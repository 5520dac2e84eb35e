"""The suite of all blobs, on shelves."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from shelves_ground import AgentsGround, Nodes, running

from clutch.testing.blobs_suite import CHECKS, Check, check_full_store_changes_nothing


def name_of(check: object) -> str:
    return check.__name__.removeprefix("check_")  # type: ignore[attr-defined]


@pytest.fixture(params=[("one",), ("one", "two", "three")], ids=["one-node", "three-nodes"])
async def ground(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AgentsGround]:
    nodes = Nodes(*request.param)
    async with running(nodes) as blobs:
        yield AgentsGround(nodes, blobs, tmp_path)


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
async def test_suite(check: Check, ground: AgentsGround) -> None:
    await check(ground)


async def test_full_shelves_change_nothing(ground: AgentsGround) -> None:
    for node in ground.nodes.all.values():
        node.disk.capacity_bytes = 8 << 20
    await check_full_store_changes_nothing(ground)
