from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from runtime_ground import RunMaster


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunMaster]:
    """One master for tests that leave it alone."""
    master = RunMaster(tmp_path_factory.mktemp("master") / "data").start()
    yield master
    master.close()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[RunMaster]:
    """A master to be killed."""
    one = RunMaster(tmp_path / "data").start()
    yield one
    one.close()
