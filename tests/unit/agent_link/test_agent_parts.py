"""The small parts of an agent: what is executed, ports, folders, what is measured, who holds leases."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clutch.agent.boot import boot_on_node
from clutch.agent.data import allowed_mounts
from clutch.agent.folders import Note, WorkFolders
from clutch.agent.launch import (
    Place,
    Surroundings,
    backend_for,
    boot_command,
    boots_inside,
    container_spec,
    image_boot_command,
    needs_boot,
    read_program,
)
from clutch.agent.monitor import MEMBERS_AT_ONCE, Devices, Monitor, MonitorSettings, Watched
from clutch.agent.ports import Ports
from clutch.agent.ways import remembered
from clutch.backends.containers.base import Key
from clutch.wire.containers import ContainerSpec, Limits, RunAs, Usage
from clutch.wire.errors import BadRequest, Conflict, DataMissing, Unavailable
from clutch.wire.ids import Fence, MemberId, NodeId, PoolName, TaskId
from clutch.wire.link import NodeUse, SlotUse
from clutch.wire.messages import Phase, WantedMember
from clutch.wire.programs import Image, Kit, Mount, Program, RanksLaunch
from clutch.wire.resources import CUDA, Capacity, Slot

MEMBER, FENCE = MemberId(TaskId("t"), "main", 2), Fence(1, 3, 4)
CAPACITY = Capacity((Slot(0, CUDA, "GPU-a"), Slot(4, CUDA, "GPU-b")), 8000, 2**33)
AROUND = Surroundings(
    node=NodeId("n1"),
    pool=PoolName("p"),
    masters=("http://a:1", "http://b:1"),
    ca_file="",
    capacity=CAPACITY,
    python="/py",
    environment={"PATH": "/bin", "LANG": "C.UTF-8"},
)
PLACE = Place(backend="process", cwd="/w/cwd", tmp="/w/tmp", home="/home/a", ports=(20001,))


def wanted(**more: Any) -> WantedMember:
    return WantedMember(MEMBER, FENCE, Phase.RUN, **more)


def key(number: int = 0) -> Key:
    return Key(MemberId(TaskId(f"t{number}"), "main", 0), Fence(1, 1, 1))


# -- launch -------------------------------------------------------------------------------------------------------


def test_what_a_program_finds_in_its_environment() -> None:
    program = Program(argv=("run",), environment={"A": "own", "LANG": "de", "CLUTCH_TASK": "forged", "S": "own"})
    kit = Kit(MEMBER, FENCE, {"S": "secret", "CLUTCH_TOKEN": "x"}, RunAs(7, 8))
    asked = wanted(slots=(4,), lease_number=9, checkpoint="c1", millicpus=1500, memory_bytes=2**20)
    spec = container_spec(asked, program, kit, AROUND, PLACE)
    assert spec.argv == ("run",) and spec.cwd == "/w/cwd" and spec.run_as == RunAs(7, 8)
    assert spec.slots == (Slot(4, CUDA, "GPU-b"),)
    assert spec.limits == Limits(millicpus=1500, memory_bytes=2**20)
    assert spec.environment == {
        "PATH": "/bin", "LANG": "de", "HOME": "/home/a", "TMPDIR": "/w/tmp", "PWD": "/w/cwd", "A": "own", "S": "secret",
        "CLUTCH_TASK": "t", "CLUTCH_ROLE": "main", "CLUTCH_RANK": "2", "CLUTCH_FENCE": "g1e3i4", "CLUTCH_MEMBERS": "1",
        "CLUTCH_NODE": "n1", "CLUTCH_POOL": "p", "CLUTCH_MASTERS": "http://a:1,http://b:1", "CLUTCH_CHECKPOINT": "c1",
        "CLUTCH_SLOTS": "4", "CLUTCH_LEASE": "9", "CLUTCH_PORT_0": "20001", "CLUTCH_TOKEN": "x",
    }  # fmt: skip


@pytest.mark.parametrize(("program", "members", "boots"), [
    (Program(argv=("a",)), 1, False),
    (Program(argv=("a",)), 2, True),
    (Program(argv=("a",), code="sha256:1"), 1, True),
    (Program(argv=("a",), rendezvous=True), 1, True),
])  # fmt: skip
def test_when_something_comes_before_the_command(program: Program, members: int, boots: bool) -> None:
    assert needs_boot(program, wanted(members=members)) is boots
    spec = container_spec(wanted(members=members), program, Kit(MEMBER, FENCE), AROUND, PLACE)
    assert spec.argv == ((*boot_command("/py"), "a") if boots else ("a",))


def test_an_image_brings_its_own_surroundings() -> None:
    program = Program(argv=("a",), image=Image("busybox", shm_bytes=5), mounts=(Mount("/d", "/e"),))
    kit = Kit(MEMBER, FENCE, registry_auth="u:p")
    place = msgspec.structs.replace(PLACE, backend="docker")
    spec = container_spec(wanted(), program, kit, AROUND, place)
    assert (spec.image, spec.registry_auth, spec.shm_bytes) == ("busybox", "u:p", 5)
    assert spec.mounts == (Mount("/d", "/e"), Mount("/w/tmp", "/w/tmp", read_only=False))
    assert "PATH" not in spec.environment and "HOME" not in spec.environment
    assert spec.environment["TMPDIR"] == "/w/tmp" and spec.run_as is None and spec.argv == ("a",)
    assert backend_for(program, ["process", "docker"], "t") == "docker"
    with pytest.raises(Conflict, match="no Docker engine"):
        backend_for(program, ["process"], "t")


def test_an_image_sees_the_certificates_and_no_more_than_its_agent() -> None:
    around = msgspec.structs.replace(AROUND, ca_file="/c/ca.pem", own=RunAs(7, 8))
    place = msgspec.structs.replace(PLACE, backend="docker")
    program = Program(argv=("a",), image=Image("busybox"), mounts=(Mount("/other", "/w/tmp/"),))
    spec = container_spec(wanted(), program, Kit(MEMBER, FENCE), around, place)
    assert spec.mounts == (Mount("/other", "/w/tmp/"), Mount("/c/ca.pem", "/c/ca.pem"))  # the program's own is kept
    assert spec.run_as == RunAs(7, 8)
    assert container_spec(wanted(), program, Kit(MEMBER, FENCE, run_as=RunAs(1, 2)), around, place).run_as == RunAs(
        1, 2
    )
    process = container_spec(wanted(), Program(argv=("a",)), Kit(MEMBER, FENCE), around, PLACE)
    assert process.run_as is None and process.mounts == ()


def test_ranks_in_an_image_are_started_by_its_own_python() -> None:
    place = msgspec.structs.replace(PLACE, backend="docker")
    program = Program(argv=("a",), image=Image("busybox"), launch=RanksLaunch())
    spec = container_spec(wanted(), program, Kit(MEMBER, FENCE), AROUND, place)
    assert spec.argv == (*image_boot_command("/w/tmp"), "a") and spec.argv[0] == "python3"
    assert boots_inside(program) and needs_boot(program, wanted())
    assert spec.environment["CLUTCH_LAUNCH"] and spec.environment["CLUTCH_LAST_WORDS"].startswith("/w/tmp/")
    assert not boots_inside(Program(argv=("a",), launch=RanksLaunch()))
    assert not boots_inside(Program(argv=("a",), image=Image("busybox"), code="sha256:1"))


def test_a_container_mounts_what_its_node_allows(tmp_path: Path) -> None:
    inside, outside = tmp_path / "allowed" / "data", tmp_path / "allowed-too" / "data"
    for folder in (inside, outside):
        folder.mkdir(parents=True)
    (inside / "out").symlink_to(outside)
    (tmp_path / "link").symlink_to(inside)
    folders, node = (str(tmp_path / "allowed"),), NodeId("n1")
    asked = (Mount(str(tmp_path / "link"), "/d"), Mount(f"{inside}/../data", "/e", read_only=False))
    assert allowed_mounts(asked, folders, node) == (Mount(str(inside), "/d"), Mount(str(inside), "/e", False))
    for bad in (str(outside), f"{inside}/out", f"{inside}/../../allowed-too", "/"):
        with pytest.raises(DataMissing, match="may not be mounted on node n1") as refused:
            allowed_mounts((Mount(bad, "/d"),), folders, node)
        assert bad in str(refused.value)
    assert allowed_mounts((Mount("/", "/d"),), (), node) == (Mount("/", "/d"),)


def test_what_cannot_be_executed_is_refused() -> None:
    for payload in (b"", b"junk", msgspec.msgpack.encode({"argv": [1]}), msgspec.msgpack.encode({"argv": []})):
        with pytest.raises(BadRequest):
            read_program(payload, "t")
    with pytest.raises(Unavailable, match="slot 1 is not on this machine"):
        container_spec(wanted(slots=(0, 1)), Program(argv=("a",)), Kit(MEMBER, FENCE), AROUND, PLACE)


def booted(tmp_path: Path, **environment: str) -> ContainerSpec:
    (tmp_path / "tmp").mkdir()
    return ContainerSpec(MEMBER, FENCE, ("a",), str(tmp_path), {"MINE": "1", **environment}, image="busybox")


async def test_boot_on_the_node_fills_the_folder_and_tells_the_container(tmp_path: Path) -> None:
    spec = booted(tmp_path, PATH="/only/in/the/image", LD_PRELOAD="/only/in/the/image.so")
    after = await boot_on_node(spec, sys.executable, {"PATH": "/bin", "NODES": "own"}, str(tmp_path / "tmp"))
    assert after.environment == spec.environment and after.argv == ("a",)


async def test_what_stops_boot_on_the_node_is_said_in_its_words(tmp_path: Path) -> None:
    spec = booted(tmp_path, CLUTCH_CODE="sha256:no", CLUTCH_MASTERS="http://127.0.0.1:9")
    with pytest.raises(Unavailable, match="this is no digest"):
        await boot_on_node(spec, sys.executable, {"PATH": "/bin"}, str(tmp_path / "tmp"))


# -- ports --------------------------------------------------------------------------------------------------------


def test_ports_are_free_and_nobody_elses() -> None:
    first = 28_000
    with socket.socket() as busy:
        while True:
            try:
                busy.bind(("", first))
                break
            except OSError:
                first += 10
        busy.listen()
        ports = Ports(taken=[first + 1], first=first, last=first + 5)
        got = ports.take((0, 8888, 0))
        assert got[1] == 8888 and len({*got, first, first + 1}) == 5
        with pytest.raises(Unavailable, match="is free"):
            ports.take((0, 0, 0))
        ports.give_back(got)
        assert ports.take((0,))[0] not in (first, first + 1)


# -- folders ------------------------------------------------------------------------------------------------------


def test_a_folder_is_fresh_and_its_note_outlives_the_agent(tmp_path: Path) -> None:
    folders = WorkFolders(tmp_path / "work")
    (tmp_path / "data").mkdir()
    folder = folders.make(key(), None, (Mount(str(tmp_path / "data"), "in/put"),))
    assert (folder.cwd / "in" / "put").resolve() == tmp_path / "data"
    (folder.cwd / "left").touch()
    assert not (folders.make(key(), None, ()).cwd / "left").exists()
    assert folder.tmp.resolve() == folders.path(key()) / "tmp" and len(str(folder.tmp)) == len(f"{tmp_path}/tmp/") + 12
    note = Note("docker", (1, 2), 15, ("slow",))
    folders.keep(key(), note)
    later = WorkFolders(tmp_path / "work")
    assert later.note(key()) == note and later.note(key(1)) == Note()
    later.make(key(1), None, ())
    later.clear_all_but([key()])
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["t0~main~0~g1e1i1"]
    assert [path.resolve() for path in (tmp_path / "tmp").iterdir()] == [later.path(key()) / "tmp"]
    later.remove(key())
    assert not list((tmp_path / "work").iterdir()) and not list((tmp_path / "tmp").iterdir())


# -- the monitor --------------------------------------------------------------------------------------------------


class Many:
    """Members that count how often they are measured."""

    def __init__(self, count: int) -> None:
        self.measured: dict[Key, int] = {}
        self.keys = [key(number) for number in range(count)]
        self.trouble: Exception = Unavailable("it is just gone")

    def watched(self) -> list[Watched]:
        return [Watched(one, "process", "", (), (1,)) for one in self.keys]

    async def usage(self, one: Key) -> Usage:
        self.measured[one] = self.measured.get(one, 0) + 1
        if one == self.keys[0]:
            raise self.trouble
        return Usage(float(self.measured[one]), 100, 2)


def monitor(tmp_path: Path, said: asyncio.Queue[NodeUse]) -> Monitor:
    async def backends() -> tuple[str, ...]:
        return ("process",)

    settings = MonitorSettings(
        node=NodeId("n1"),
        capacity=CAPACITY,
        data=tmp_path,
        labels={"rack": "7"},
        version="1",
        backends=backends,
        measure_s=0.02,
    )
    return Monitor(settings, said.put_nowait)


async def test_members_take_turns_and_all_are_measured(tmp_path: Path) -> None:
    said: asyncio.Queue[NodeUse] = asyncio.Queue()
    members = Many(3 * MEMBERS_AT_ONCE)
    running = asyncio.create_task(monitor(tmp_path, said).run(members))
    first = await said.get()
    assert len(members.measured) == MEMBERS_AT_ONCE and len(first.members) == 3 * MEMBERS_AT_ONCE
    for _ in range(2):
        await said.get()
    assert len(members.measured) == 3 * MEMBERS_AT_ONCE and set(members.measured.values()) == {1}
    members.keys = members.keys[:2]
    async with asyncio.timeout(10):
        while len((last := await said.get()).members) != 2 or last.members[1].cpu_percent == 0:
            pass
    running.cancel()
    assert last.members[1].processes == 2 and last.members[1].ports == (1,) and last.labels == {"rack": "7"}
    assert last.disk_free_bytes > 0 and last.memory_bytes > 0 and last.backends == ("process",)


async def test_an_agent_outlives_whatever_is_wrong_with_a_figure(tmp_path: Path) -> None:
    said: asyncio.Queue[NodeUse] = asyncio.Queue()
    members = Many(2)
    members.trouble = IndexError("a backend's slip")
    running = asyncio.create_task(monitor(tmp_path, said).run(members))
    for _ in range(2):
        found = (await said.get()).members
    running.cancel()
    assert [one.processes for one in found] == [0, 2]


async def test_why_a_member_ended_is_said_at_once_a_few_times_and_again_to_a_new_master(tmp_path: Path) -> None:
    said: asyncio.Queue[NodeUse] = asyncio.Queue()
    one = monitor(tmp_path, said)
    one.exited(key(), "exited with code 3")
    assert [note.reason for note in (await said.get()).exits] == ["exited with code 3"]
    running = asyncio.create_task(one.run(Many(1)))
    told = [bool((await said.get()).exits) for _ in range(6)]
    assert told == [True, True, True, False, False, False]
    one.connected("10.0.0.1")
    async with asyncio.timeout(10):
        while not (again := await said.get()).exits:
            pass
    running.cancel()
    assert again.address == "10.0.0.1"


class Nvml:
    """As much of NVML as is asked: one device answers, the other has no utilisation figure."""

    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return uuid

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802
        return type("Memory", (), {"used": 10, "total": 100})

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802
        if handle == "GPU-b":
            raise self.NVMLError("not supported")
        return type("Rates", (), {"gpu": 55})


def test_devices_are_asked_where_they_can_be() -> None:
    assert Devices(CAPACITY, lambda name: Nvml()).use() == (SlotUse(0, 55, 10, 100), SlotUse(4, -1, 10, 100))

    def missing(name: str) -> Any:
        raise ImportError(name)

    without = Devices(CAPACITY, missing)
    assert not without.any and without.idle == (SlotUse(0), SlotUse(4))


async def test_a_question_is_asked_at_most_so_often() -> None:
    asked = 0

    async def ask() -> str | None:
        nonlocal asked
        asked += 1
        return "27"

    often, seldom = remembered(ask, for_s=-1.0), remembered(ask, for_s=60.0)
    for _ in range(3):
        assert await often() == "27"
    assert asked == 3
    for _ in range(3):
        assert await seldom() == "27"
    assert asked == 4
