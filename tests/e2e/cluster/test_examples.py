"""Every example runs as its own page says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clutch.testing.cluster import Cluster

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("examples")) as made:
        made.start()
        made.add_agent("one")
        made.wait_nodes("one")
        yield made


def run(cluster: Cluster, *words: str) -> str:
    token = (cluster.folder / "master0" / "local.token").read_text().strip()
    env = {**os.environ, "CLUTCH_MASTER": cluster.urls[0], "CLUTCH_TOKEN": token, "HOME": str(cluster.folder)}
    done = subprocess.run(words, env=env, cwd=EXAMPLES, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_many_commands(cluster: Cluster) -> None:
    said = run(cluster, sys.executable, "many_commands.py").splitlines()
    assert [line.split()[:2] for line in said] == [["rate", rate] for rate in ("0.001", "0.01", "0.03", "0.1")]
    assert said[2].endswith("loss 0.0")


def test_gang(cluster: Cluster) -> None:
    said = run(cluster, sys.executable, "-m", "clutch.cli.main", "run", "--count", "3", "--", "python", "gang.py")
    assert said == "main.0 | 3 members, sum of ranks 3\n"


def test_every_example_is_on_the_page() -> None:
    page = (EXAMPLES / "README.md").read_text()
    assert all(f"]({path.name})" in page for path in EXAMPLES.glob("*.py"))
