"""Plain processes pass the suite, with control groups and without."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from clutch.agent import shim, spool
from clutch.agent.directory import MemberDirectories
from clutch.backends.containers import cgroups
from clutch.backends.containers.base import Containers, Key
from clutch.backends.containers.cgroups import Cgroups
from clutch.backends.containers.process import ProcessContainers
from clutch.testing.containers_suite import CHECKS, FIRST, LIMIT_CHECKS, Check
from clutch.wire.containers import ContainerSpec, Limits
from clutch.wire.ids import MemberId, TaskId


class ProcessGround:
    def __init__(self, folder: Path, groups: Cgroups) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        self.groups = groups
        self.directories = MemberDirectories(folder / "members")
        self._opened: list[ProcessContainers] = []

    def open(self) -> Containers:
        containers = ProcessContainers(MemberDirectories(self.directories.root), Path(shim.__file__), self.groups)
        self._opened.append(containers)
        return containers

    def base(self) -> ContainerSpec:
        member = MemberId(TaskId("base"), "main", 0)
        return ContainerSpec(member, FIRST, ("true",), str(self.folder), {"PATH": "/usr/local/bin:/usr/bin:/bin"})

    def output(self, key: Key) -> tuple[bytes, bytes]:
        pieces, _ = spool.read(self.directories.path(key) / "output", spool.Cursor(), 2**40)
        streams = {"stdout": b"", "stderr": b""}
        for piece in pieces:
            assert isinstance(piece, spool.Piece) and piece.offset == len(streams[piece.stream])
            streams[piece.stream] += piece.data
        return streams["stdout"], streams["stderr"]

    async def close(self) -> None:
        """Ends what the check left, through the same verbs."""
        containers = self.open()
        for seen in await containers.found():
            key = Key(seen.member, seen.fence)
            await containers.end(key)
            await containers.wait(key, 30.0)
            await containers.forget(key)
        for opened in self._opened:
            await opened.close()


@pytest.fixture(params=["cgroups", "plain"])
async def ground(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ProcessGround]:
    groups = Cgroups.detect() if request.param == "cgroups" else Cgroups.none()
    made = ProcessGround(tmp_path, groups)
    try:
        yield made
    finally:
        await made.close()
        shutil.rmtree(tmp_path)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
async def test_a_process(ground: ProcessGround, check: Check) -> None:
    await check(ground)


@pytest.mark.parametrize("ground", ["cgroups"], indirect=True)
@pytest.mark.parametrize("check", LIMIT_CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
async def test_a_limited_process(ground: ProcessGround, check: Check) -> None:
    probe = ground.groups.make("clutch-probe", Limits(millicpus=1000, memory_bytes=2**30))
    cgroups.remove(probe.paths)
    if probe.notices:
        pytest.skip("; ".join(probe.notices))
    await check(ground)


@pytest.mark.parametrize("ground", ["plain"], indirect=True)
async def test_a_limit_that_cannot_be_enforced_is_a_notice(ground: ProcessGround) -> None:
    containers = ground.open()
    spec = ground.base()
    limited = ContainerSpec(
        spec.member, spec.fence, ("true",), spec.cwd, spec.environment, limits=Limits(millicpus=500, memory_bytes=2**30)
    )
    seen = await containers.start(limited)
    assert [notice for notice in seen.notices if "memory limit" in notice and "no control groups" in notice]
    assert [notice for notice in seen.notices if "0.5 CPUs" in notice]
    assert (await containers.wait(Key(spec.member, spec.fence), 30.0)).code == 0
