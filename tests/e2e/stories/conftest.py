"""One cluster for all stories that need nothing special of it: each leaves it without work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from stories_ground import Ground


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """Two nodes of four slots each."""
    with Ground(tmp_path_factory.mktemp("stories"), 4, 4) as found:
        yield found
