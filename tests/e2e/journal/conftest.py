from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from clutch.backends.journal.base import FullJournal
from clutch.backends.journal.opening import open_journal
from clutch.testing.postgres import any_server, fresh_database

Address = Callable[[str], Awaitable[str]]
Open = Callable[[str], Awaitable[FullJournal]]


@pytest.fixture(scope="session")
def postgres_address() -> Iterator[str]:
    with any_server() as address:
        yield address


@pytest.fixture
async def new_address(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Address]:
    """Makes the address of an empty store of a kind: sqlite or postgres."""
    async with AsyncExitStack() as stack:

        async def make(kind: str) -> str:
            if kind == "sqlite":
                return f"sqlite:///{tmp_path}/{uuid4().hex}.db"
            server = request.getfixturevalue("postgres_address")
            return await stack.enter_async_context(fresh_database(server, f"e2e_{uuid4().hex}"))

        yield make


@pytest.fixture
async def opened(new_address: Address) -> AsyncIterator[Open]:
    """Opens journals by address and closes them after the test, before their databases go."""
    async with AsyncExitStack() as stack:

        async def open_one(address: str) -> FullJournal:
            journal = await open_journal(address)
            stack.push_async_callback(journal.close)
            return journal

        yield open_one
