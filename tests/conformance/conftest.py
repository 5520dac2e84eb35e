from collections.abc import Iterator

import pytest

from clutch.testing.postgres import any_server

pytest.register_assert_rewrite(
    "clutch.testing.access_suite",
    "clutch.testing.blobs_ground",
    "clutch.testing.blobs_suite",
    "clutch.testing.blobs_suite_faults",
    "clutch.testing.containers_suite",
    "clutch.testing.journal_suite",
    "clutch.testing.journal_suite_faults",
    "clutch.testing.journal_suite_views",
    "clutch.testing.machines_suite",
    "clutch.testing.metrics_suite",
    "clutch.testing.names_suite",
    "clutch.testing.output_suite",
    "clutch.testing.transports_suite",
)


@pytest.fixture(scope="session")
def postgres_address() -> Iterator[str]:
    """One real server for the whole run; each test makes its own database on it."""
    with any_server() as address:
        yield address
