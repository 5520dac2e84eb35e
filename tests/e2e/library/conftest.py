from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from library_house import House, Receiver, open_house, open_receiver

from clutch.testing.postgres import any_server


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with open_house(tmp_path) as found:
        yield found


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with open_receiver() as found:
        yield found


@pytest.fixture(scope="session")
def postgres_address() -> Iterator[str]:
    with any_server() as address:
        yield address
