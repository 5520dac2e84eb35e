"""Two masters on one PostgreSQL and no shared storage: the leader's machine is lost, then an agent's."""

import asyncio
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from agents_ground import NAMES, ShelvedCluster

from clutch.testing.blobs_ground import MIB, noise
from clutch.testing.cluster import end_members
from clutch.testing.postgres import any_server, fresh_database


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with any_server() as address:
        yield address


@contextmanager
def database(server: str) -> Iterator[str]:
    """An empty database for the length of the block."""
    with asyncio.Runner() as runner:
        made = fresh_database(server, f"shelves_{uuid4().hex[:12]}")
        address = runner.run(made.__aenter__())
        try:
            yield address
        finally:
            runner.run(made.__aexit__(None, None, None))


def test_code_outlives_the_leader_and_then_an_agent(server: str, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "main.py").write_text("print('the code runs')\n")
    (code / "weights.bin").write_bytes(noise(1, 2 * MIB))
    with database(server) as db, ShelvedCluster(tmp_path / "cluster", db=db, masters=2) as cluster:
        cluster.start_with_agents(*NAMES)
        for number, harm in enumerate(("nothing", "leader", "agent")):
            if harm == "leader":
                cluster.client  # noqa: B018 - its token is read before the folder goes
                cluster.masters[0].kill()
                shutil.rmtree(cluster.folder / "master0")
                cluster.wait_serving()
            if harm == "agent":
                victim = max(max((asyncio.run(cluster.shelved())).values(), key=len))
                cluster.agents[victim].kill()
                end_members(cluster.folder / victim)
                shutil.rmtree(cluster.folder / victim)
            task = cluster.client.run(sys.executable, "main.py", code=str(code), name=f"run{number}")
            detail = task.wait(60.0)
            assert detail.task.reason == "done", f"after {harm}: {detail.task.reason} {detail.task.detail}"
            assert [line.text for line in task.output() if line.stream == "stdout"] == ["the code runs"]
