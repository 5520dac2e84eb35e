from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from access_house import House, open_house

from clutch.testing.postgres import any_server


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with open_house(tmp_path) as found:
        yield found


@pytest.fixture(scope="session")
def postgres_address() -> Iterator[str]:
    with any_server() as address:
        yield address
