"""One cluster for all tests; those that kill masters make their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from experiment_ground import Ground


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with Ground(tmp_path_factory.mktemp("experiments")) as found:
        yield found
