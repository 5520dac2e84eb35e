"""One real cluster for the tests of a file: a master and two agents as processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from terminal import User

from clutch.testing.cluster import Cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as made:
        made.start()
        made.add_agent("n1", slots=4)
        made.add_agent("n2", slots=2)
        made.wait_nodes("n1", "n2")
        yield made


@pytest.fixture
def admin(cluster: Cluster, tmp_path: Path) -> User:
    token = (cluster.folder / "master0" / "local.token").read_text().strip()
    return User(tmp_path / "home", cluster.urls, token)
