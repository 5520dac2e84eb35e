from __future__ import annotations

from collections.abc import Iterator

import pytest
from launch_ground import Ground, ground


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """A real cluster: a master, and two nodes with 2 and 3 artificial slots."""
    with ground(tmp_path_factory.mktemp("launch")) as found:
        yield found
