"""Containers of a real Docker engine pass the suite that plain processes pass."""

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from clutch.agent import shim, spool
from clutch.agent.directory import MemberDirectories
from clutch.backends.containers.base import Containers, Key
from clutch.backends.containers.docker import DockerContainers
from clutch.backends.containers.docker_spec import DockerSettings, Gpus
from clutch.testing import docker
from clutch.testing.containers_suite import CHECKS, FIRST, LIMIT_CHECKS, Check
from clutch.wire.containers import ContainerSpec, Pull
from clutch.wire.ids import MemberId, TaskId

pytestmark = pytest.mark.skipif(bool(docker.missing()), reason=docker.missing())


class DockerGround:
    def __init__(self, folder: Path, socket: Path) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        self.socket = socket
        self.directories = MemberDirectories(folder / "members")
        self._opened: list[DockerContainers] = []

    def open(self) -> Containers:
        settings = DockerSettings(gpus=Gpus.ENVIRONMENT)  # this engine has no GPUs to request
        directories = MemberDirectories(self.directories.root)
        self._opened.append(DockerContainers(directories, Path(shim.__file__), self.socket, settings))
        return self._opened[-1]

    def base(self) -> ContainerSpec:
        member = MemberId(TaskId("base"), "main", 0)
        return ContainerSpec(
            member, FIRST, ("true",), str(self.folder), {"PATH": "/bin"}, image=docker.BUSYBOX, pull=Pull.NEVER
        )

    def output(self, key: Key) -> tuple[bytes, bytes]:
        pieces, _ = spool.read(self.directories.path(key) / "output", spool.Cursor(), 2**40)
        streams = {"stdout": b"", "stderr": b""}
        for piece in pieces:
            assert isinstance(piece, spool.Piece) and piece.offset == len(streams[piece.stream])
            streams[piece.stream] += piece.data
        return streams["stdout"], streams["stderr"]

    async def close(self) -> None:
        containers = self.open()
        for seen in await containers.found():
            key = Key(seen.member, seen.fence)
            await containers.end(key)
            await containers.wait(key, 30.0)
            await containers.forget(key)
        for opened in self._opened:
            await opened.close()


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    with docker.any_engine() as found:
        yield found


@pytest.fixture
async def ground(socket: Path, tmp_path: Path) -> AsyncIterator[DockerGround]:
    made = DockerGround(tmp_path, socket)
    try:
        yield made
    finally:
        await made.close()
        shutil.rmtree(tmp_path)


@pytest.mark.parametrize("check", (*CHECKS, *LIMIT_CHECKS), ids=lambda check: check.__name__.removeprefix("check_"))
async def test_a_container(ground: DockerGround, check: Check) -> None:
    await check(ground)
