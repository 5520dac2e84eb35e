"""``clutch run`` while the leader is killed and a standby takes over: each line once, and the exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from terminal import User, finish

from clutch.testing.cluster import Cluster
from clutch.testing.postgres import any_server, fresh_database

TICKER = "i=0; while [ $i -lt 300 ]; do echo line $i; i=$((i+1)); sleep 0.02; done; exit 5"


@pytest.fixture
def database() -> Iterator[str]:
    with any_server() as server, asyncio.Runner() as runner:
        made = fresh_database(server, f"cli_{uuid4().hex[:12]}")
        address = runner.run(made.__aenter__())
        try:
            yield address
        finally:
            runner.run(made.__aexit__(None, None, None))


@pytest.mark.slow
def test_a_standby_goes_on_with_the_stream(database: str, tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", db=database, masters=2) as cluster:
        cluster.start()
        cluster.add_agent("n1")
        cluster.wait_nodes("n1")
        token = (cluster.folder / "master0" / "local.token").read_text().strip()
        user = User(tmp_path / "home", cluster.urls, token)
        child = user.start("run", "--no-code", "--", "sh", "-c", TICKER)
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(50)]
        cluster.masters[0].kill()  # and it stays away
        rest, said = finish(child)
        assert b"".join(lines) + rest == b"".join(b"line %d\n" % n for n in range(300)), said
        assert child.returncode == 5
        assert "done" not in user.says("ps", "--all")
        assert "failed" in user.says("ps", "--all")
