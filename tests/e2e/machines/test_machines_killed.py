"""Masters killed at any point while they launch and terminate: what is there at the end is what the journal says."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from clutch.backends.machines import residue

CHILD = Path(__file__).parent / "machines_master.py"
PATIENCE_S = 60.0


class Ground:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "token").write_text("secret")

    @asynccontextmanager
    async def master(self, nodes_min: int, nodes_max: int) -> AsyncIterator[asyncio.subprocess.Process]:
        """A master, killed with SIGKILL at the end."""
        words = [sys.executable, str(CHILD), str(self.folder), str(nodes_min), str(nodes_max)]
        child = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, start_new_session=True)
        try:
            yield child
        finally:
            child.kill()
            await child.wait()

    def agents(self) -> list[str]:
        """The machines whose agent really runs; one that has two is named twice."""
        places = [place for place in (self.folder / "machines").glob("*/data") if place.is_dir()]
        return sorted(place.parent.name for place in places for _ in residue.agents_of(place))

    def close(self) -> None:
        residue.end(residue.users_of(self.folder / "machines"), signal.SIGKILL)


@pytest.fixture
def ground(tmp_path: Path):  # type: ignore[no-untyped-def]
    made = Ground(tmp_path)
    yield made
    made.close()


async def said(child: asyncio.subprocess.Process, enough: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first of its lines that is enough."""
    assert child.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        while line := await child.stdout.readline():
            found: dict[str, Any] = json.loads(line)
            if enough(found):
                return found
    raise AssertionError("the master ended")


def all_launched(count: int) -> Callable[[dict[str, Any]], bool]:
    def enough(line: dict[str, Any]) -> bool:
        return list(line["machines"].values()) == ["launched"] * count and line["waiting"] == 0

    return enough


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_whatever_a_killed_master_was_at_is_neither_lost_nor_done_twice(ground: Ground, seed: int) -> None:
    chance = Random(seed)
    for _ in range(4):
        async with ground.master(3, 3) as child:
            await said(child, lambda line: True)
            await asyncio.sleep(chance.uniform(0.0, 0.3))  # killed somewhere between asking and being told
    async with ground.master(3, 3) as child:
        last = await said(child, all_launched(3))
    assert ground.agents() == sorted(last["machines"]), "each runs once, and none that the journal does not know"
    for _ in range(3):
        async with ground.master(0, 1) as child:
            await said(child, lambda line: True)
            await asyncio.sleep(chance.uniform(0.0, 0.3))
    async with ground.master(0, 1) as child:
        left = await said(child, all_launched(1))
    assert ground.agents() == list(left["machines"])
    assert next(iter(left["machines"])) in last["machines"], "one of the three stayed"
    folders = {place.parent.name for place in (ground.folder / "machines").glob("*/machine.json")}
    assert folders == set(left["machines"])
