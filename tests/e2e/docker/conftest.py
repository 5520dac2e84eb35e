import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from docker_trials import DockerCluster

from clutch.testing import docker
from clutch.testing.docker_ground import DockerGround


@pytest.fixture(scope="session")
def engine_socket() -> Iterator[Path]:
    if docker.missing():
        pytest.skip(docker.missing())
    with docker.any_engine() as found:
        yield found


@pytest.fixture(scope="session")
def place(engine_socket: Path) -> Iterator[DockerCluster]:
    """A cluster for tests that leave it without work. Trials make sockets in it, whose paths are bounded."""
    with (
        tempfile.TemporaryDirectory(prefix="clutch-place-", ignore_cleanup_errors=True) as name,
        DockerCluster(Path(name), engine_socket) as found,
    ):
        yield found


@pytest.fixture
async def ground(engine_socket: Path, tmp_path: Path) -> AsyncIterator[DockerGround]:
    made = DockerGround(tmp_path, engine_socket)
    try:
        yield made
    finally:
        await made.close()
        shutil.rmtree(tmp_path)


@pytest.fixture
def private_engine() -> Iterator[docker.DockerEngine]:
    """One that a test may harm."""
    if docker.missing() or docker.given_socket() is not None:
        pytest.skip(docker.missing() or "this test stops its engine: it needs a private one, not DOCKER_HOST")
    with docker.temporary_engine() as engine:
        yield engine


@pytest.fixture
def lasting_engine() -> Iterator[docker.DockerEngine]:
    """One that a test may harm, and whose containers outlive it."""
    if docker.missing() or docker.given_socket() is not None:
        pytest.skip(docker.missing() or "this test kills its engine: it needs a private one, not DOCKER_HOST")
    with docker.temporary_engine(("--live-restore",)) as engine:
        yield engine
