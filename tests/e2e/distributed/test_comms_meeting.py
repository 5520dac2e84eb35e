"""How ranks meet: by ports and keys, by a roster, by the environment, by torch; and who is kept out."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
import zmq
from comms_ground import house

from clutch.backends.transports.keys import KeyPair, new_keys
from clutch.runtime.distributed import Group, notes
from clutch.runtime.distributed.meeting import Meeting, pair_from
from clutch.runtime.distributed.shape import Seat
from clutch.testing.ports import free_port, free_ports
from clutch.wire.errors import BadRequest, ClutchError, Conflict, NotAllowed, TimedOut
from clutch.wire.push import Peer, Roster


def together(works: list[Callable[[], Any]]) -> list[Any]:
    """Each in a thread of its own; what it returned, or the error."""
    found: list[Any] = [None] * len(works)

    def run(index: int) -> None:
        try:
            found[index] = works[index]()
        except ClutchError as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def joined(seat: tuple[int, int], meeting: Meeting, **options: Any) -> Callable[[], list[Any]]:
    def work() -> list[Any]:
        with Group.create(*seat, meeting, **options) as group:
            return group.allgather(group.rank)

    return work


def test_a_group_of_one_needs_no_sockets_and_no_zmq() -> None:
    program = (
        "import sys; from clutch.runtime.distributed import Group, Agreement\n"
        "with Group.from_environment({}) as g:\n"
        "    assert g.allgather((1, 2)) == [(1, 2)] and g.gather(1) == [1] and g.broadcast('x') == 'x'\n"
        "    assert g.reduce(3, 'mean') == 3 and g.allreduce_local([1.0], 'sum') == [1.0]; g.barrier()\n"
        "    assert not Agreement(g, lambda: False).should_stop() and Agreement(g, lambda: True).should_stop()\n"
        "assert not {'zmq', 'numpy', 'torch', 'asyncio'} & set(sys.modules), sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_stranger_is_refused_and_noted_once() -> None:
    with house([2, 1], "waits_for_stranger", options={"seconds": 20.0}) as ranks:
        context = zmq.Context()
        knocks = context.socket(zmq.DEALER)
        monitor = knocks.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        keys = new_keys()
        knocks.curve_publickey, knocks.curve_secretkey = keys.public.encode(), keys.secret.encode()
        knocks.curve_serverkey = ranks.about["public"].encode()
        knocks.connect(f"tcp://127.0.0.1:{ranks.about['port']}")
        assert monitor.poll(20_000), "it was not refused"
        found, _ = ranks.finish()
        knocks.disable_monitor()
        monitor.close(0)
        context.destroy(0)
        assert "with an unknown key tried to join the group of 3 ranks and was refused" in found[0]["result"][0]
        assert ranks.errors.count("clutch: ") == 1


def test_a_program_that_is_not_ours_is_refused_too() -> None:
    with house([2, 1], "waits_for_stranger", options={"seconds": 20.0}) as ranks:
        stop = threading.Event()

        def shout() -> None:
            while not stop.is_set():
                try:
                    with socket.create_connection(("127.0.0.1", ranks.about["port"]), 1) as wire:
                        wire.settimeout(0.5)
                        wire.sendall(b"GET / HTTP/1.1\r\nHost: somebody\r\n\r\n" + b"\0" * 64)
                        wire.recv(100)
                except OSError:
                    stop.wait(0.05)

        thread = threading.Thread(target=shout)
        thread.start()
        found, _ = ranks.finish()
        stop.set()
        thread.join()
        assert "did not introduce itself" in found[0]["result"][0]


def test_a_port_that_is_taken_is_an_error_unless_there_is_another() -> None:
    keys = new_keys()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port, other = taken.getsockname()[1], free_port()
        with pytest.raises(Conflict, match=f"other programs listen at port {port}"):
            Group.create(0, 2, Meeting(ports=(port,), keys=keys, within_s=5))
        meeting = Meeting(ports=(port, other), keys=keys, within_s=20)
        assert together([joined((rank, 2), meeting) for rank in range(2)]) == [[0, 1], [0, 1]]


def strange(port: int, answer: bytes, met: threading.Event) -> None:
    """A program that is at the port before rank 0, and is found there once."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        met.set()
        with listener.accept()[0] as wire:
            wire.recv(64)
            wire.sendall(answer)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["hangs up", "speaks otherwise"])
def test_who_was_at_the_port_before_rank_0_does_no_harm(answer: bytes) -> None:
    """Such as rank 0's last group, which was about to close. Nor does it later, when ranks speak with each other."""
    meeting = Meeting(ports=(free_port(),), keys=new_keys(), within_s=20)
    listens, rank_0_may_come = threading.Event(), threading.Event()

    def before() -> None:
        strange(meeting.ports[0], answer, listens)
        rank_0_may_come.set()

    def work(rank: int) -> list[list[Any]]:
        assert (listens if rank else rank_0_may_come).wait(20)
        with Group.create(rank, 2, meeting) as group:
            until = time.monotonic() + 0.6
            found = [group.allgather(rank)]
            while group.allreduce(time.monotonic() < until, min):
                time.sleep(0.02)
            return [*found, group.allgather(rank)]

    assert together([before, lambda: work(0), lambda: work(1)])[1:] == [[[0, 1], [0, 1]]] * 2


def test_who_does_not_come_is_named_and_who_comes_late_is_not() -> None:
    """Whoever has reached rank 0 hears from it who is missing, by the time of rank 0, which came later."""
    some, whole, nobody = (Meeting(ports=(port,), keys=new_keys(), within_s=1.5) for port in free_ports(3))

    def late(after_s: float, work: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            time.sleep(after_s)  # the moment is the point; nothing is waited for
            return work()

        return run

    *missed, met_0, met_1, met_2, alone = together(
        [
            late(2.5, joined((0, 4), some)), joined((2, 4), some),
            late(2.5, joined((0, 3), whole)), joined((1, 3), whole), late(3.6, joined((2, 3), whole)),
            joined((1, 2), nobody),
        ]
    )  # fmt: skip
    for error in missed:
        assert isinstance(error, TimedOut)
        assert "2 ranks (1, 3) did not come within 1.5 s" in str(error)
    assert met_0 == met_1 == met_2 == [0, 1, 2]
    assert isinstance(alone, TimedOut)
    assert "rank 0 did not come within 1.5 s" in str(alone)


CHIEF = """
import sys
from clutch.runtime.distributed import Group
from clutch.runtime.distributed.meeting import Meeting, pair_from
from clutch.wire.errors import ClutchError
for port in sys.argv[1:]:
    try:
        with Group.create(0, 2, Meeting(ports=(int(port),), keys=pair_from("s"), within_s=5)):
            print("they met", flush=True)
    except ClutchError as error:
        print(type(error).__name__, error, flush=True)
"""


def test_who_comes_and_dies_while_rank_0_is_stopped_is_missed() -> None:
    """Its first words and its end are found at once, in either order: it has come, and it is lost."""
    ports, keys = free_ports(8), pair_from("s")
    hello = notes.encode(notes.Hello(Seat(1, 2, 0, 1, place="elsewhere", address="127.0.0.1", port=1), keys.public))
    chief = subprocess.Popen(
        [sys.executable, "-c", CHIEF, *map(str, ports)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert chief.stdout is not None
    try:
        for port in ports:
            with zmq.Context() as context, context.socket(zmq.DEALER) as rank:
                rank.curve_publickey, rank.curve_secretkey = keys.public.encode(), keys.secret.encode()
                rank.curve_serverkey = keys.public.encode()
                rank.set(zmq.RECONNECT_IVL, 10)
                monitor = rank.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
                rank.connect(f"tcp://127.0.0.1:{port}")
                assert monitor.poll(20_000), "it was not let in"
                os.kill(chief.pid, signal.SIGSTOP)
                rank.send(hello)
                rank.disable_monitor()
                monitor.close(0)
                rank.close(5_000)
            os.kill(chief.pid, signal.SIGCONT)
            assert chief.stdout.readline().startswith("PeerLost rank 1: its connection has ended")
    finally:
        chief.kill()
        chief.communicate()


def test_what_ranks_say_of_themselves_must_fit() -> None:
    keys = new_keys()

    def meet(seats: list[tuple[int, int, int, int]]) -> list[Any]:
        meeting = Meeting(ports=(free_port(),), keys=keys, within_s=3)
        return together([joined(seat[:2], meeting, local_rank=seat[2], local_size=seat[3]) for seat in seats])

    for error in meet([(0, 2, 0, 2), (1, 2, 0, 1)]):
        assert isinstance(error, BadRequest)
        assert "contradict each other" in str(error)
    chief, other = meet([(0, 2, 0, 1), (1, 3, 0, 1)])
    assert isinstance(other, BadRequest)
    assert "this group has 2 ranks" in str(other)
    assert isinstance(chief, TimedOut)
    with pytest.raises(BadRequest, match="rank 2 is not from 0 to 1"):
        Group.create(2, 2)
    with pytest.raises(BadRequest, match="no place to meet"):
        Group.create(0, 2)


def test_a_second_process_of_a_rank_is_refused_and_the_group_goes_on() -> None:
    meeting = Meeting(ports=(free_port(),), keys=new_keys(), within_s=20)
    refused = threading.Event()

    def work(rank: int) -> list[Any]:
        try:
            with Group.create(rank, 2, meeting) as group:
                assert refused.wait(20)
                return group.allgather(rank)
        except Conflict:
            refused.set()
            raise

    chief, *others = together([lambda rank=rank: work(rank) for rank in (0, 1, 1)])  # type: ignore[misc]
    assert chief == [0, 1]
    assert sorted(isinstance(one, Conflict) for one in others) == [False, True]


def test_a_rank_with_a_key_that_is_not_in_the_roster_is_told_so() -> None:
    keys, foreign = new_keys(), new_keys()
    port = free_port()
    chief = Meeting(ports=(port,), keys=keys, within_s=2)
    stranger = Meeting(ports=(port,), keys=foreign, chief_key=keys.public, within_s=2)
    found = together([joined((0, 2), chief), joined((1, 2), stranger)])
    assert isinstance(found[0], TimedOut)
    assert isinstance(found[1], NotAllowed)


def roster_of(pairs: list[KeyPair], port: int, rank: int, nodes: list[str]) -> Roster:
    peers = tuple(
        Peer(
            rank=n, role="main", role_rank=n, node=nodes[n], addresses=("127.0.0.1",), ports=(port,),
            public_key=pair.public, local_rank=nodes[:n].count(nodes[n]),
        )
        for n, pair in enumerate(pairs)
    )  # fmt: skip
    return Roster(
        ready=True, rank=rank, size=len(pairs), peers=peers,
        local_rank=peers[rank].local_rank, local_size=nodes.count(nodes[rank]),
    )  # fmt: skip


def test_members_meet_by_their_roster() -> None:
    pairs = [new_keys() for _ in range(3)]
    port = free_port()
    nodes = ["a", "b", "a"]

    def work(rank: int) -> list[Any]:
        with Group.from_roster(roster_of(pairs, port, rank, nodes), pairs[rank].secret) as group:
            return [group.local_rank, group.local_size, group.cross_rank, group.cross_size, group.allgather_local(rank)]

    found = together([lambda rank=rank: work(rank) for rank in range(3)])  # type: ignore[misc]
    assert found == [[0, 2, 0, 2, [0, 2]], [0, 1, 1, 2, [1]], [1, 2, 0, 2, [0, 2]]]


def test_members_of_one_node_in_different_containers_are_still_one_node() -> None:
    """They cannot open each other's unix sockets, so what is local goes over tcp between their heads."""
    meeting = Meeting(ports=(free_port(),), keys=new_keys(), within_s=20)
    large = numpy.arange(50_000)

    def work(rank: int) -> list[Any]:
        seat = Seat(rank, 4, rank % 3, 3 if rank < 3 else 1, f"node {rank // 3}", place="one" if rank != 1 else "two")
        with Group(seat, meeting) as group:
            group.barrier_local()
            came = group.allgather_local(large + rank)
            assert all(
                (part == large + source).all() for source, part in zip(group.allgather_local(rank), came, strict=True)
            )
            return [
                group.allgather_local(rank), group.broadcast_local(rank, group.local_size - 1),
                group.allreduce_local(rank, "sum"), group.gather_local(rank), group.allgather(rank),
            ]  # fmt: skip

    found = together([lambda rank=rank: work(rank) for rank in range(4)])  # type: ignore[misc]
    everybody = [0, 1, 2, 3]
    assert found == [
        [[0, 1, 2], 2, 3, [0, 1, 2], everybody],
        [[0, 1, 2], 2, 3, None, everybody],
        [[0, 1, 2], 2, 3, None, everybody],
        [[3], 3, 3, [3], everybody],
    ]


FORGETFUL = """
import sys
from clutch.backends.transports.keys import KeyPair
from clutch.runtime.distributed import Group
from clutch.runtime.distributed.meeting import Meeting, pair_from
rank, port = int(sys.argv[1]), int(sys.argv[2])
group = Group.create(rank, 2, Meeting(ports=(port,), keys=pair_from("s"), within_s=60))
group.barrier()
if rank == 0:
    try:
        group.barrier()
    except Exception as error:
        print(error)
"""


def test_a_program_that_forgets_to_close_ends_and_is_missed() -> None:
    port = free_port()
    running = [
        subprocess.Popen([sys.executable, "-c", FORGETFUL, str(rank), str(port)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [process.communicate(timeout=60)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert said[0].startswith("rank 1: it closed its group before barrier() #3.")


def test_processes_of_members_meet_by_their_environment(tmp_path: Path) -> None:
    """Two members with two processes each, as a launcher starts them."""
    pairs = [new_keys() for _ in range(2)]
    port = free_port()
    files = []
    for member in range(2):
        files.append(tmp_path / f"roster-{member}.json")
        files[-1].write_bytes(msgspec.json.encode(roster_of(pairs, 1, member, ["a", "a"])))

    def work(rank: int) -> list[Any]:
        member = rank // 2
        environment = {
            "RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(rank % 2), "LOCAL_WORLD_SIZE": "2",
            "CLUTCH_ROSTER_FILE": str(files[member]), "CLUTCH_SECRET_KEY": pairs[member].secret,
            "CLUTCH_COMMS_ADDRESS": "127.0.0.1", "CLUTCH_COMMS_PORT": str(port),
        }  # fmt: skip
        with Group.from_environment(environment) as group:
            return [group.cross_rank, group.allgather(rank)]

    assert together([lambda rank=rank: work(rank) for rank in range(4)]) == [  # type: ignore[misc]
        [rank // 2, [0, 1, 2, 3]] for rank in range(4)
    ]


def test_processes_of_one_member_know_each_other_by_its_token() -> None:
    port = free_port()

    def work(rank: int, token: str) -> list[Any]:
        environment = {
            "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
            "CLUTCH_TOKEN": token, "CLUTCH_COMMS_PORT": str(port),
        }  # fmt: skip
        with Group.from_environment(environment) as group:
            return group.allgather(rank)

    assert together([lambda: work(0, "secret"), lambda: work(1, "secret")]) == [[0, 1]] * 2
    assert pair_from("secret") == pair_from("secret") != pair_from("secrets")
    with pytest.raises(BadRequest, match="there are no keys"):
        Group.from_environment({"WORLD_SIZE": "2"})
    with pytest.raises(BadRequest, match="WORLD_SIZE"):
        Group.from_environment({"WORLD_SIZE": "two"})


TORCH = """
import json, os, sys
import torch.distributed as dist
from clutch.runtime.distributed import Group
size, port = int(sys.argv[1]), sys.argv[2]
rank = next((rank for rank in range(1, size) if not os.fork()), 0)
dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
found = []
for _ in range(2):
    with Group.from_torch(timeout_s=60) as group:
        found.append([group.local_rank, group.local_size, group.allgather(rank)])
os.write(1, json.dumps(found).encode() + b"\\n")
dist.destroy_process_group()
if not rank:
    assert [os.wait()[1] for _ in range(1, size)] == [0] * (size - 1)
"""


def test_ranks_of_torch_meet_by_its_store() -> None:
    """Forks of one process, which has loaded PyTorch once."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = subprocess.run(
        [sys.executable, "-c", TORCH, "3", str(free_port())], stdout=subprocess.PIPE, timeout=100, env=environment
    )
    found = sorted(json.loads(line) for line in ranks.stdout.splitlines())
    assert ranks.returncode == 0 and found == [[[rank, 3, [0, 1, 2]]] * 2 for rank in range(3)]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_closing_is_clean_and_may_be_repeated() -> None:
    before = {thread.name for thread in threading.enumerate()}
    kept: list[Any] = []
    open_before = 0
    for port in free_ports(3):
        meeting = Meeting(ports=(port,), keys=new_keys(), within_s=20)

        def work(rank: int, meeting: Meeting = meeting) -> str:
            group = Group.create(rank, 3, meeting, local_rank=rank % 2, local_size=2 - rank // 2)
            kept.append([group.allgather(numpy.zeros(100_000)) for _ in range(5)])
            group.close()
            group.close()
            try:
                group.barrier()
            except ClutchError as error:
                return str(error)
            return "it went on"

        found = together([lambda rank=rank: work(rank) for rank in range(3)])  # type: ignore[misc]
        assert found == [f"group of rank {rank}: it is closed." for rank in range(3)]
        open_before = open_before or open_files()
    ours = {thread.name for thread in threading.enumerate()} - before
    assert not {name for name in ours if name.startswith("clutch")}
    assert open_files() <= open_before, "values that are kept hold no files"
