"""The one suite, on every way machines come from; and what only processes can do: be told, be left behind, fail."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from clutch.backends.machines import residue
from clutch.backends.machines.base import Machines
from clutch.backends.machines.local import LocalMachines
from clutch.backends.machines.memory import MemoryMachines, MemoryProvider
from clutch.backends.machines.opening import open_machines
from clutch.backends.machines.site import Site
from clutch.backends.machines.ssh import SshMachines
from clutch.testing import machines_agent, ssh_server
from clutch.testing.machines_suite import CHECKS, CLUSTER, POOL, Check, Ground, order, refused, until
from clutch.wire.errors import BadRequest, Unavailable
from clutch.wire.machines import LocalTemplate, MachineId, SshHost, SshTemplate

AGENT = (sys.executable, str(Path(machines_agent.__file__)))
SECRET = "enrol-me-1234567890"
NASTY = 'it\'s $HOME; `id` "x" \\ *'
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


class MemoryGround:
    def __init__(self) -> None:
        self.provider = MemoryProvider()

    async def open(self) -> Machines:
        return MemoryMachines(self.provider, CLUSTER, POOL)

    def alive(self, machine: MachineId) -> int:
        return int(machine in self.provider.instances)

    def remains(self, machine: MachineId) -> list[str]:
        return []

    def kill(self, machine: MachineId) -> None:
        self.provider.vanish(machine)


class ProcessGround:
    """Machines that are processes here, whoever started them."""

    folder: Path
    """Above the machines' own folders."""

    def __init__(self, tmp_path: Path) -> None:
        token = tmp_path / "token"
        token.write_text(SECRET)
        token.chmod(0o600)
        self.site = Site(
            cluster=CLUSTER,
            pool=POOL,
            masters=("https://m0:8620", "https://m1:8620"),
            token_file=token,
            folder=tmp_path / "here",
            agent=AGENT,
            environment=ENVIRONMENT,
        )
        self.members: list[int] = []

    def data(self, machine: MachineId) -> Path:
        return self.folder / machine / "data"

    def alive(self, machine: MachineId) -> int:
        return len(residue.agents_of(self.data(machine)))

    def told(self, machine: MachineId) -> dict[str, object]:
        path = self.data(machine) / "told.json"
        told = json.loads(path.read_text()) if path.exists() else {}
        self.members += told.get("members", [])
        return told

    def remains(self, machine: MachineId) -> list[str]:
        left = [f"process {pid}" for pid in residue.users_of(self.folder / machine)]
        left += [f"member {pid}" for pid in self.members if _runs(pid)]
        return left + [f"folder {self.folder / machine}"] * (self.folder / machine).exists()

    def shown(self, machine: MachineId) -> list[bytes]:
        """What any other user, or a child, could see of its agent; its token is for its owner only."""
        assert Path(str(self.told(machine)["token_file"])).stat().st_mode & 0o077 == 0
        (pid,) = residue.agents_of(self.data(machine))
        return [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")]

    def kill(self, machine: MachineId) -> None:
        self.told(machine)
        residue.end(residue.agents_of(self.data(machine)), signal.SIGKILL)

    def close(self) -> None:
        for pid in [*residue.users_of(self.folder), *self.members]:
            residue.end([pid], signal.SIGKILL)


class LocalGround(ProcessGround):
    def __init__(self, tmp_path: Path, *arguments: str) -> None:
        super().__init__(tmp_path)
        self.folder = self.site.folder
        self.template = LocalTemplate(arguments=("--note", NASTY, *arguments), stop_s=1.0)

    async def open(self) -> LocalMachines:
        opened = open_machines(self.template, self.site)
        assert isinstance(opened, LocalMachines)
        return opened


class SshGround(ProcessGround):
    """Two hosts that are this one, under two accounts' worth of folders: both reached through a real sshd."""

    def __init__(self, tmp_path: Path, server: ssh_server.SshServer, *arguments: str) -> None:
        super().__init__(tmp_path)
        self.opened = 0
        self.tmp_path = tmp_path
        self.server = server
        self.arguments = arguments
        self.folder = tmp_path / "hosts" / CLUSTER

    def template(self, *hosts: SshHost) -> SshTemplate:
        return SshTemplate(
            hosts=hosts or (self.host("rack-1"),),
            agent=AGENT,
            arguments=("--note", NASTY, *self.arguments),
            folder=str(self.tmp_path / "hosts"),
            identity_file=str(self.server.identity_file),
            known_hosts=str(self.server.known_hosts),
            stop_s=1.0,
        )

    def host(self, name: str) -> SshHost:
        return SshHost(name, "127.0.0.1", self.server.port, self.server.user)

    async def open(self) -> Machines:
        self.opened += 1
        site = msgspec.structs.replace(self.site, folder=self.tmp_path / f"master-{self.opened}")
        return open_machines(self.template(), site)


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ssh_server.SshServer]:
    if ssh_server.found() is None:
        pytest.skip("there is no sshd here: install openssh-server")
    with ssh_server.ssh_server(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
async def ground(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ground]:
    if request.param == "memory":
        yield MemoryGround()
        return
    made: ProcessGround
    if request.param == "local":
        made = LocalGround(tmp_path)
    else:
        made = SshGround(tmp_path, request.getfixturevalue("sshd"))
    yield made  # type: ignore[misc]  # both open machines
    made.close()


NEEDS_TWO = ("check_machines_are_apart",)
"""One real host is one machine; a host that is taken has a test of its own."""
SOON = ("masters_that_launch", "terminated_machine_is_gone", "launch_after_its", "another_master_may", "outlive_their")
"""A call over ssh costs a third of a second: of the checks with ssh, these run always and the others with the slow."""


def _every_way() -> Iterator[object]:
    for way in ("memory", "local", "ssh"):
        for check in CHECKS:
            if way == "ssh" and check.__name__ in NEEDS_TWO:
                continue
            later = way == "ssh" and not any(name in check.__name__ for name in SOON)
            name = f"{way}-{check.__name__.removeprefix('check_')}"
            yield pytest.param(way, check, id=name, marks=[pytest.mark.slow] if later else [])


@pytest.mark.parametrize(("ground", "check"), list(_every_way()), indirect=["ground"])
async def test_machines(check: Check, ground: Ground) -> None:
    await check(ground)


# -- what only processes can do -----------------------------------------------------------------------------------


@pytest.fixture(params=["local", "ssh"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[object]:
    made: list[ProcessGround] = []

    def ground(*arguments: str) -> ProcessGround:
        if request.param == "local":
            made.append(LocalGround(tmp_path, *arguments))
        else:
            made.append(SshGround(tmp_path, request.getfixturevalue("sshd"), *arguments))
        return made[-1]

    yield ground
    for each in made:
        each.close()


async def test_an_agent_is_told_everything_and_its_token_by_file_only(make) -> None:  # type: ignore[no-untyped-def]
    ground = make()
    made = await (await ground.open()).launch(order("gpu-1-7"))
    await until(lambda: bool(ground.told(made.machine)), "it wrote down what it was told")
    told = ground.told(made.machine)
    assert (told["name"], told["pool"], told["master"]) == ("gpu-1-7", POOL, ["https://m0:8620", "https://m1:8620"])
    assert (told["token"], told["note"]) == (SECRET, NASTY), "quoting changes no word"
    assert [SECRET.encode() in shown for shown in ground.shown(made.machine)] == [False, False]


async def test_a_deaf_agent_and_its_members_are_killed(make) -> None:  # type: ignore[no-untyped-def]
    ground = make("--stubborn")
    machines = await ground.open()
    made = await machines.launch(order("gpu-1-7"))
    await until(lambda: bool(ground.told(made.machine)), "its member runs")
    members = ground.told(made.machine)["members"]
    assert len(members) == 2 and all(_runs(pid) for pid in members)
    await machines.terminate(order("gpu-1-7"))
    assert not any(_runs(pid) for pid in members), "also the one that left the folder"
    assert ground.remains(made.machine) == []


async def test_an_agent_that_cannot_start_is_an_error_that_says_so(make) -> None:  # type: ignore[no-untyped-def]
    ground = make("--fails")
    machines = await ground.open()
    error = await refused(Unavailable, machines.launch(order("gpu-1-7")))
    assert "agent.log" in error.next_step
    await machines.terminate(order("gpu-1-7"))
    assert await machines.listing() == []
    assert ground.remains(MachineId("gpu-1-7")) == []


LAUNCHER = """
import asyncio, os, sys, msgspec
from clutch.backends.machines.opening import open_machines
from clutch.backends.machines.site import Site
from clutch.wire.machines import MachineTemplate, Order
template = msgspec.json.decode(sys.argv[1], type=MachineTemplate)
site = msgspec.json.decode(sys.argv[2], type=Site, dec_hook=lambda kind, text: kind(text))
async def main():
    await open_machines(template, site).launch(Order("launch:gpu-1-7", "gpu-1-7", "gpu"))
    print("launched", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


async def test_a_machine_outlives_a_master_that_is_killed(make) -> None:  # type: ignore[no-untyped-def]
    ground = make()
    machines = await ground.open()
    words = [msgspec.json.encode(part, enc_hook=str).decode() for part in (machines.template, machines.site)]
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LAUNCHER, *words, stdout=subprocess.PIPE, start_new_session=True
    )
    assert child.stdout is not None
    async with asyncio.timeout(60):
        assert (await child.stdout.readline()).strip() == b"launched"
    child.kill()
    await child.wait()
    later = await ground.open()
    (found,) = await later.listing()
    assert found.machine == "gpu-1-7" and found.running
    assert ground.alive(found.machine) == 1
    again = await later.launch(order("gpu-1-7"))
    assert (again.instance, ground.alive(found.machine)) == (found.instance, 1)
    await later.terminate(order("gpu-1-7"))
    assert ground.remains(found.machine) == []


async def test_a_program_that_is_not_there_is_the_users_error(tmp_path: Path) -> None:
    ground = LocalGround(tmp_path)
    site = msgspec.structs.replace(ground.site, agent=("no-such-program-here",))
    await refused(BadRequest, LocalMachines(ground.template, site).launch(order("gpu-1-7")))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "ended", "locks"])
async def test_a_name_is_no_path(name: str, tmp_path: Path) -> None:
    machines = await LocalGround(tmp_path).open()
    await refused(BadRequest, machines.launch(order(name)))
    await refused(BadRequest, machines.terminate(order(name)))


# -- ssh ----------------------------------------------------------------------------------------------------------


async def test_a_host_is_one_machine(tmp_path: Path, sshd: ssh_server.SshServer) -> None:
    ground = SshGround(tmp_path, sshd)
    machines = await ground.open()
    try:
        await machines.launch(order("gpu-1-1"))
        error = await refused(Unavailable, machines.launch(order("gpu-1-2")))
        assert "no host is free" in error.cause
        await machines.terminate(order("gpu-1-1"))
        assert (await machines.launch(order("gpu-1-3"))).instance == "rack-1"
    finally:
        ground.close()


async def test_a_host_that_cannot_be_reached_is_passed_over_and_never_guessed(
    tmp_path: Path, sshd: ssh_server.SshServer
) -> None:
    ground = SshGround(tmp_path, sshd)
    dead = SshHost("rack-0", "127.0.0.1", 1, sshd.user)
    machines = SshMachines(ground.template(dead, ground.host("rack-1")), ground.site)
    try:
        made = await machines.launch(order("gpu-1-1"))
        assert made.instance == "rack-1"
        error = await refused(Unavailable, machines.listing())
        assert "rack-0" in error.object
        await machines.terminate(order("gpu-1-1"))
        assert ground.alive(made.machine) == 0
        await machines.terminate(order("gpu-1-2"))
    finally:
        ground.close()


async def test_a_machine_on_a_host_that_went_away_still_counts(tmp_path: Path, sshd: ssh_server.SshServer) -> None:
    ground = SshGround(tmp_path, sshd)
    machines = SshMachines(ground.template(), ground.site)
    try:
        await machines.launch(order("gpu-1-1"))
        assert len(await machines.listing()) == 1
        machines._hosts["rack-1"] = gone = SshHost("rack-1", "127.0.0.1", 1, sshd.user)
        machines.template = msgspec.structs.replace(machines.template, hosts=(gone,))
        assert [instance.machine for instance in await machines.listing()] == ["gpu-1-1"]
        await refused(Unavailable, machines.terminate(order("gpu-1-1")))
        assert ground.alive(MachineId("gpu-1-1")) == 1
    finally:
        ground.close()


async def test_an_unknown_host_key_is_refused(tmp_path: Path, sshd: ssh_server.SshServer) -> None:
    ground = SshGround(tmp_path, sshd)
    empty = tmp_path / "known"
    empty.write_text("")
    template = msgspec.structs.replace(ground.template(), known_hosts=str(empty))
    error = await refused(Unavailable, SshMachines(template, ground.site).listing())
    assert "ssh" in error.cause


@pytest.mark.parametrize(
    "host",
    [SshHost("-oProxyCommand=x"), SshHost("a", "-x"), SshHost("a", user="-l"), SshHost("a b"), SshHost("a", port=0)],
)
def test_a_host_that_is_an_option_is_refused(host: SshHost, tmp_path: Path, sshd: ssh_server.SshServer) -> None:
    ground = SshGround(tmp_path, sshd)
    with pytest.raises(BadRequest):
        SshMachines(ground.template(host), ground.site)


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_the_suite_would_notice_a_member_left_behind() -> None:
    assert _runs(os.getpid())
    assert not _runs(2**22 + 1)
