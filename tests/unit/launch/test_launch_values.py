"""Launchers as values: from a command, an environment and a roster to what is executed."""

from __future__ import annotations

import os
import resource
import socket
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.agent.boot import explained
from clutch.agent.launch import LAST_WORDS
from clutch.runtime.info import Info, read_info
from clutch.runtime.launch.accelerate import Accelerate
from clutch.runtime.launch.base import rank_words
from clutch.runtime.launch.choosing import launcher_for, read_launching
from clutch.runtime.launch.own import Own
from clutch.runtime.launch.plain import Plain
from clutch.runtime.launch.ranks import Ranks
from clutch.runtime.launch.supervisor_main import devices_of, parsed, rank_environment
from clutch.runtime.launch.torchrun import Torchrun
from clutch.runtime.launch.world import world_of, world_variables
from clutch.runtime.rendezvous import ReservedPort, alone, chief_address
from clutch.wire.errors import BadRequest, Unavailable
from clutch.wire.messages import Exit, ExitCause
from clutch.wire.programs import (
    AccelerateLaunch,
    Launching,
    OwnLaunch,
    PlainLaunch,
    Program,
    RanksLaunch,
    TorchrunLaunch,
)
from clutch.wire.push import Announce, Peer, Roster

ARGV = ("python", "train.py", "--", "--x_y")


def roster_of(slots: tuple[int, ...], rank: int = 0) -> Roster:
    """Members with so many slots each, one to a node."""
    peers = tuple(
        Peer(
            rank=number,
            role="main",
            role_rank=number,
            node=f"n{number}",
            addresses=(f"10.0.0.{number}",),
            ports=(4000 + number, 5000 + number, 6000),
            slots=tuple(range(count)),
        )
        for number, count in enumerate(slots)
    )
    return Roster(ready=True, rank=rank, size=len(slots), peers=peers)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=6), st.integers(0, 8))
def test_ranks_are_counted_once_over_all_members(slots: list[int], processes: int) -> None:
    worlds = [
        world_of(roster_of(tuple(slots), rank), processes, oversubscribe=True) for rank in range(len(slots))
    ]  # fmt: skip
    numbers = [world.first + local for world in worlds for local in range(world.local_size)]
    assert numbers == list(range(worlds[0].size)) and len({world.size for world in worlds}) == 1
    assert all(world.local_size >= 1 for world in worlds)
    if not processes:
        assert [world.local_size for world in worlds] == [max(1, count) for count in slots]


def test_more_processes_than_slots_are_refused_unless_that_is_said() -> None:
    with pytest.raises(BadRequest, match=r"3 processes in a member, and main.1 on n1 has 2 slots") as caught:
        world_of(roster_of((4, 2)), 3)
    assert "oversubscribe: true" in caught.value.next_step
    assert world_of(roster_of((4, 2)), 3, oversubscribe=True).counts == (3, 3)
    assert world_of(roster_of((4, 2)), 2).counts == (2, 2)
    assert world_of(roster_of((0, 0)), 3).counts == (3, 3), "there is no device to share"
    with pytest.raises(BadRequest):
        world_of(roster_of((1,)), 5000, oversubscribe=True)


def test_what_every_process_is_told() -> None:
    roster = roster_of((2, 3), rank=1)
    found = world_variables(roster, world_of(roster))
    assert found == {
        "MASTER_ADDR": "10.0.0.0",
        "MASTER_PORT": "4000",
        "CLUTCH_WORLD_RANK": "1",
        "CLUTCH_WORLD_SIZE": "2",
        "CLUTCH_CHIEF_ADDRESS": "10.0.0.0",
        "CLUTCH_CHIEF_PORT": "4000",
        "CLUTCH_COMMS_ADDRESS": "10.0.0.0",
        "CLUTCH_COMMS_PORT": "5000",
        "WORLD_SIZE": "5",
        "LOCAL_WORLD_SIZE": "3",
        "CROSS_RANK": "1",
        "CROSS_SIZE": "2",
    }
    mine = rank_environment(found, 2, 1, 3, own_devices=False)
    assert (mine["RANK"], mine["LOCAL_RANK"]) == ("3", "1")
    info = read_info(mine)
    assert (info.rank, info.size, info.process_rank, info.process_size, info.local_rank) == (1, 2, 3, 5, 1)


def test_plain_counts_members_and_nodes() -> None:
    same = roster_of((1, 1, 1), rank=2)
    peers = tuple(msgspec.structs.replace(peer, node="n0" if peer.rank < 2 else "n1") for peer in same.peers)
    found = Plain().launch(("x",), {}, msgspec.structs.replace(same, peers=peers)).environment
    assert (found["RANK"], found["WORLD_SIZE"], found["CROSS_RANK"], found["CROSS_SIZE"]) == ("2", "3", "1", "2")
    assert found["CLUTCH_COMMS_PORT"] == "5000"


@given(st.integers(1, 12), st.integers(1, 12))
def test_devices_are_shared_out(devices: int, count: int) -> None:
    names = [f"GPU-{number}" for number in range(devices)]
    found = [devices_of(names, local, count) for local in range(count)]
    assert all(found) and {name for part in found for name in part} == set(names)
    if count <= devices:
        assert [name for part in found for name in part] == names, "each device has one rank"
    else:
        assert all(len(part) == 1 for part in found)


def test_each_rank_sees_its_own_device() -> None:
    common = {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b", "ROCR_VISIBLE_DEVICES": "", "PATH": "/bin"}
    seen = [rank_environment(common, 0, local, 2, own_devices=True) for local in range(2)]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in seen] == ["GPU-a", "GPU-b"]
    assert {one["ROCR_VISIBLE_DEVICES"] for one in seen} == {""}, "none stays none"
    assert rank_environment(common, 0, 1, 2, own_devices=False)["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"


def test_ranks() -> None:
    launch = Ranks(RanksLaunch(grace_s=1.5)).launch(ARGV, {"A": "1"}, roster_of((2, 3), rank=1))
    way, *rest = launch.argv[launch.argv.index("ranks") :]
    options, command = parsed(rest)
    assert way == "ranks" and tuple(command) == ARGV
    assert options == {"first": "2", "count": "3", "grace": "1.5", "own-devices": ""}
    assert launch.environment["A"] == "1" and launch.environment["WORLD_SIZE"] == "5"
    shared = Ranks(RanksLaunch(share_devices=True)).launch(ARGV, {}, roster_of((2,)))
    assert "--own-devices" not in shared.argv


def test_torchrun() -> None:
    said = TorchrunLaunch(arguments=("--log-dir=x",))
    launch = Torchrun(said).launch(ARGV, {}, roster_of((2, 3), rank=1))
    words = launch.argv[launch.argv.index("torchrun") :]
    assert words == (
        "torchrun", "--nnodes=2", "--nproc-per-node=3", "--node-rank=1", "--master-addr=10.0.0.0",
        "--master-port=4000", "--max-restarts=0", "--log-dir=x", "--no-python", *rank_words(),
    )  # fmt: skip
    assert msgspec.json.decode(launch.environment["CLUTCH_COMMAND"]) == list(ARGV)
    assert "torchrun is not installed in this environment: pip install torch" in launch.argv


def test_accelerate() -> None:
    launch = Accelerate(AccelerateLaunch()).launch(ARGV, {}, roster_of((2, 3), rank=1))
    words = launch.argv[launch.argv.index("accelerate") :]
    assert words[:2] == ("accelerate", "launch") and words[-len(rank_words()) - 1] == "--no_python"
    assert {"--num_processes=6", "--num_machines=2", "--machine_rank=1", "--multi_gpu"} <= set(words)
    single = Accelerate(AccelerateLaunch()).launch(ARGV, {}, roster_of((1,)))
    assert "--multi_gpu" not in single.argv and "--num_processes=1" in single.argv


@pytest.mark.parametrize(
    "said",
    [PlainLaunch(), RanksLaunch(processes=2), TorchrunLaunch(), AccelerateLaunch(), OwnLaunch(spot="m:C")],
    ids=lambda said: type(said).__name__,
)  # fmt: skip
def test_a_launcher_travels_in_its_program(said: Launching) -> None:
    program = Program(argv=ARGV, launch=said)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(program), type=Program) == program
    assert msgspec.json.decode(msgspec.json.encode(program), type=Program) == program
    assert read_launching(msgspec.json.encode(said).decode()) == said
    assert launcher_for(said, "/").launch is not None


def test_what_names_no_launcher() -> None:
    assert read_launching("") == PlainLaunch()
    for said in ("torchrun", '{"name": "mpirun"}', "{", '{"name":"ranks","processes":-1}'):
        with pytest.raises(BadRequest, match="CLUTCH_LAUNCH"):
            read_launching(said)


def test_a_class_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "launch_mine.py").write_text(
        "class Mine:\n"
        "    def __init__(self, words=()): self.words = words\n"
        "    def launch(self, argv, environment, roster):\n"
        "        from clutch.runtime.launch.base import Launch\n"
        "        return Launch((*self.words, *argv), {'SIZE': environment['WORLD_SIZE']})\n"
        "class Slow:\n"
        "    def launch(self, argv, environment, roster):\n"
        "        import time\n"
        "        while True:\n"
        "            try: time.sleep(60)\n"
        "            except Exception: pass\n"
    )
    before = list(sys.path)
    try:
        said = OwnLaunch(spot="launch_mine:Mine", options={"words": ["mpirun"]})
        launch = Own(said, str(tmp_path)).launch(("a",), {"CLUTCH_LAST_WORDS": "/x"}, roster_of((2, 3)))
        assert launch.argv[-2:] == ("mpirun", "a") and "around" in launch.argv
        assert not any(str(tmp_path) in word for word in launch.argv), "no file of the user's is loaded into ours"
        assert launch.environment == {"SIZE": "5", "CLUTCH_LAST_WORDS": "/x"}
        with pytest.raises(BadRequest, match="did not answer within 1 s"):
            Own(OwnLaunch(spot="launch_mine:Slow"), str(tmp_path), within_s=1).launch(("a",), {}, None)
    finally:
        sys.path[:] = before
        sys.modules.pop("launch_mine", None)


def test_a_member_alone_meets_itself() -> None:
    info = Info(task="t", node="n", slots=(0, 1))
    roster = alone(info, Announce(addresses=("127.0.0.1",), ports=(1, 2), slots=(0, 1), public_key="k"))
    assert roster.ready and roster.size == 1 and chief_address(roster) == "127.0.0.1"
    assert world_of(roster).counts == (2,)


def test_a_reserved_port_is_given_to_nobody_who_asks_for_any() -> None:
    port = ReservedPort()
    try:
        with socket.socket() as blunt, pytest.raises(OSError, match="in use"):
            blunt.bind(("", port.number))
        with socket.socket() as server:  # as servers bind
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("", port.number))
            server.listen()
        assert os.get_inheritable(port.keep())
        others = [ReservedPort() for _ in range(200)]
        assert port.number not in {other.number for other in others}
        assert len({other.number for other in others}) == 200
        for other in others:
            other.close()
    finally:
        port.close()


def test_a_node_without_a_free_port_says_so() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(Unavailable, match="no port is free on this node: Too many open files"):
            ReservedPort()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("exit", "words", "cause", "reason"),
    [
        (Exit(7), "rank 3 exited with code 7", ExitCause.OWN, "rank 3 exited with code 7"),
        (Exit(118), "boot: no torchrun", ExitCause.REFUSED, "no torchrun"),
        (Exit(118), "rank 0 exited with code 118", ExitCause.OWN, "rank 0 exited with code 118"),
        (Exit(117), "boot: 1 of 2 did not come: main.1", ExitCause.NEVER_STARTED, "1 of 2 did not come: main.1"),
        (Exit(117), "", ExitCause.NEVER_STARTED, "its boot found no master"),
        (Exit(0), "rank 3", ExitCause.OWN, ""),
        (Exit(-9, ExitCause.ENDED, reason="it was told to end"), "rank 3", ExitCause.ENDED, "it was told to end"),
        (Exit(-9, ExitCause.OUT_OF_MEMORY, reason="its limit"), "rank 3", ExitCause.OUT_OF_MEMORY, "its limit: rank 3"),
    ],
)  # fmt: skip
def test_an_exit_is_explained_by_its_last_words(
    tmp_path: Path, exit: Exit, words: str, cause: ExitCause, reason: str
) -> None:
    if words:
        (tmp_path / LAST_WORDS).write_text(words)
    found = explained(exit, tmp_path)
    assert (found.code, found.cause, found.reason) == (exit.code, cause, reason)


def test_last_words_are_read_only_from_a_plain_file(tmp_path: Path) -> None:
    """The folder is the user's and the agent may be root: nothing else is opened, and nothing waits."""
    place = tmp_path / LAST_WORDS
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    place.symlink_to(secret)
    assert explained(Exit(7), tmp_path).reason == ""
    place.unlink()
    os.mkfifo(place)
    assert explained(Exit(7), tmp_path).reason == ""
    place.unlink()
    os.link(secret, place)
    assert explained(Exit(7), tmp_path).reason == ""
    place.unlink()
    place.mkdir()
    assert explained(Exit(7), tmp_path).reason == ""
    place.rmdir()
    place.write_bytes(b"\x00\xff\n\x1b[31m" + b"x" * 10_000)
    assert len(explained(Exit(7), tmp_path).reason) <= 500 and "\x1b" not in explained(Exit(7), tmp_path).reason
