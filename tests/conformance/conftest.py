from collections.abc import Iterator

import pytest

from clutch.testing.postgres import any_server


@pytest.fixture(scope="session")
def postgres_address() -> Iterator[str]:
    """One real server for the whole run; each test makes its own database on it."""
    with any_server() as address:
        yield address
