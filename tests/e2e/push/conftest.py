from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from push_ground import Master


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Master]:
    """One master for tests that leave it alone."""
    master = Master(tmp_path_factory.mktemp("master") / "data").start()
    yield master
    master.close()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Master]:
    """A master to be killed."""
    one = Master(tmp_path / "data").start()
    yield one
    one.close()
