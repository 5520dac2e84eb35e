"""How fast ranks speak: our groups beside two others, as processes of this machine, in the same run.

    python benchmarks/distributed.py [--ranks 16] [--quick] [--only "star;ours, one node"] [--json FILE]

Every rank is a process of its own. Ways:

- ``ours, one node``: unix sockets and sealed memory; what 16 ranks of one machine use.
- ``ours, two nodes`` and ``ours, a node each``: the same ranks told that they are on several nodes, so heads of nodes
  speak over tcp, encrypted, though it is only the loopback.
- ``star``: the design that others use for this: one chief, PUSH/PULL up and PUB/SUB down over tcp, pickled, not
  encrypted, no deadlines, no detection of deaths.
- ``gloo``: ``torch.distributed.all_gather_object``.

Times are those of rank 0. Ways take turns, several times; the median of their rounds counts. With ``read`` each rank
also sums every word that came, because a mapped page costs its reader something that a copied one has cost already.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import zmq

from clutch.backends.transports.keys import new_keys
from clutch.runtime.distributed import Agreement, Group
from clutch.runtime.distributed.meeting import Meeting
from clutch.testing.ports import free_ports

AllGather = Callable[[Any], list[Any]]
WARM_UP = 10
MEGABYTE = 1_000_000


class Star:
    """The design to beat. Serial numbers find a message out of order; nothing finds a rank that is gone."""

    def __init__(self, rank: int, size: int, ports: tuple[int, int]) -> None:
        self._rank, self._size = rank, size
        self._serial = 0
        context = zmq.Context()
        if rank == 0:
            self._down = context.socket(zmq.PUB)
            self._down.bind(f"tcp://*:{ports[0]}")
            self._up = context.socket(zmq.PULL)
            self._up.bind(f"tcp://*:{ports[1]}")
            self._greet_all()
        else:
            self._down = context.socket(zmq.SUB)
            self._down.subscribe(b"")
            self._down.connect(f"tcp://127.0.0.1:{ports[0]}")
            self._up = context.socket(zmq.PUSH)
            self._up.connect(f"tcp://127.0.0.1:{ports[1]}")
            self._greet()

    def _greet_all(self) -> None:
        answered: set[int] = set()
        while len(answered) < self._size - 1:
            self._down.send_pyobj("hello")
            while self._up.poll(50):
                answered.add(self._up.recv_pyobj())
                if len(answered) == self._size - 1:
                    break
        self._down.send_pyobj("go")

    def _greet(self) -> None:
        said = False
        while self._down.recv_pyobj() != "go":
            if not said:
                self._up.send_pyobj(self._rank)
                said = True

    def allgather(self, value: Any) -> list[Any]:
        self._serial += 1
        if self._rank:
            self._up.send_pyobj((self._serial, self._rank, value))
            serial, found = self._down.recv_pyobj()
        else:
            by_rank = {0: value}
            while len(by_rank) < self._size:
                serial, rank, came = self._up.recv_pyobj()
                by_rank[rank] = came
            found = [by_rank[rank] for rank in range(self._size)]
            self._down.send_pyobj((self._serial, found))
            serial = self._serial
        assert serial == self._serial
        return found


class Place:
    """What every rank of one round knows."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.ports = tuple(free_ports(2))
        self.keys = new_keys()


def ours(nodes: int) -> Callable[[int, Place], AllGather]:
    def make(rank: int, place: Place) -> AllGather:
        return make_group(rank, place, nodes).allgather

    return make


def make_group(rank: int, place: Place, nodes: int) -> Group:
    each = place.size // nodes
    meeting = Meeting(ports=place.ports[:1], keys=place.keys)
    return Group.create(rank, place.size, meeting, local_rank=rank % each, local_size=each)


def star(rank: int, place: Place) -> AllGather:
    return Star(rank, place.size, (place.ports[0], place.ports[1])).allgather


def gloo(rank: int, place: Place) -> AllGather:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{place.ports[0]}", rank=rank, world_size=place.size)

    def allgather(value: Any) -> list[Any]:
        found: list[Any] = [None] * place.size
        dist.all_gather_object(found, value)
        return found

    return allgather


def ways(size: int, *, with_gloo: bool) -> dict[str, Callable[[int, Place], AllGather]]:
    found: dict[str, Callable[[int, Place], AllGather]] = {"star": star, "ours, one node": ours(1)}
    if with_gloo:
        found["gloo"] = gloo
    if size % 2 == 0:
        found["ours, two nodes"] = ours(2)
    found["ours, a node each"] = ours(size)
    return found


# -- one round ----------------------------------------------------------------------------------------------------


def in_ranks(size: int, live: Callable[[int, Place], Any]) -> Any:
    """Run it in one process for each rank; what it returned on rank 0."""
    place = Place(size)
    reading, writing = os.pipe()
    children = []
    for rank in range(size):
        process = os.fork()
        if not process:
            code = 1
            try:
                found = live(rank, place)
                if rank == 0:
                    os.write(writing, json.dumps(found).encode())
                code = 0
            except BaseException as error:
                sys.stderr.write(f"rank {rank}: {type(error).__name__}: {error}\n")
            finally:
                os._exit(code)
        children.append(process)
    os.close(writing)
    data = b""
    while piece := os.read(reading, 1 << 16):
        data += piece
    os.close(reading)
    codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in children]
    if any(codes):
        raise SystemExit(f"ranks ended with {codes}")
    return json.loads(data)


def measure(make: Callable[[int, Place], AllGather], plan: dict[str, int], size: int) -> dict[str, list[float]]:
    def live(rank: int, place: Place) -> dict[str, list[float]]:
        allgather = make(rank, place)
        large = numpy.full(MEGABYTE, rank, dtype=numpy.uint8)
        found = {
            "float": timed(lambda: allgather(1.5), plan["float"]),
            "1 MB": timed(lambda: allgather(large), plan["1 MB"]),
            "1 MB, read": timed(
                lambda: [int(part.view(numpy.uint64).sum()) for part in allgather(large)], plan["1 MB"]
            ),
        }
        assert [int(part[-1]) for part in allgather(large)] == list(range(place.size))
        time.sleep(0.2)  # nobody leaves before the last has taken what it was sent
        return found

    return dict(in_ranks(size, live))


def timed(call: Callable[[], Any], times: int) -> list[float]:
    for _ in range(min(WARM_UP, times)):
        call()
    found = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return found


def should_stop(size: int, calls: int) -> list[float]:
    """What a rank pays for asking, at a step of a millisecond."""

    def live(rank: int, place: Place) -> list[float]:
        with make_group(rank, place, 1) as group:
            agreement = Agreement(group, lambda: False)
            group.barrier()
            found = []
            for _ in range(calls):
                time.sleep(0.001)
                began = time.perf_counter()
                agreement.should_stop()
                found.append(time.perf_counter() - began)
            group.barrier()
        return found

    return list(in_ranks(size, live))


def crossing(encrypted: bool, times: int) -> list[float]:
    """Eight megabytes each way between two processes by ZeroMQ alone: what two nodes of eight ranks cannot do without,
    and how much of it is encryption."""

    def live(rank: int, place: Place) -> list[float]:
        context = zmq.Context(io_threads=2)
        pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        for socket in (pull, push) if encrypted else ():
            socket.curve_publickey, socket.curve_secretkey = place.keys.public.encode(), place.keys.secret.encode()
        if encrypted:
            pull.curve_server, push.curve_serverkey = True, place.keys.public.encode()
        pull.bind(f"tcp://127.0.0.1:{place.ports[rank]}")
        push.connect(f"tcp://127.0.0.1:{place.ports[1 - rank]}")
        pieces = [numpy.full(MEGABYTE, rank, dtype=numpy.uint8) for _ in range(8)]

        def exchange() -> None:
            for piece in pieces:
                push.send(memoryview(piece), copy=False)
            for _ in pieces:
                pull.recv(copy=False)

        found = timed(exchange, times)
        time.sleep(0.2)
        return found

    return list(in_ranks(2, live))


# -- all of it ----------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="ways with semicolons between them; the star is always measured")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    plan = {"float": 100, "1 MB": 4} if arguments.quick else {"float": 500, "1 MB": 12}
    rounds = 1 if arguments.quick else 3
    wanted = {name.strip() for name in arguments.only.split(";") if name.strip()}
    with_gloo = (not wanted or "gloo" in wanted) and _has_torch()
    chosen = ways(arguments.ranks, with_gloo=with_gloo)
    chosen = {name: make for name, make in chosen.items() if not wanted or name in wanted | {"star"}}
    found: dict[str, dict[str, list[list[float]]]] = {}
    for _ in range(rounds):
        for name, make in chosen.items():
            sys.stderr.write(f"{name} ...\n")
            for what, times in measure(make, plan, arguments.ranks).items():
                found.setdefault(name, {}).setdefault(what, []).append(times)
    summary = {name: {what: _summary(runs) for what, runs in measured.items()} for name, measured in found.items()}
    asking = should_stop(arguments.ranks, 300)
    crossings = {name: _summary([crossing(name == "CURVE", plan["1 MB"] * 4)]) for name in ("CURVE", "no CURVE")}
    report(summary, asking, arguments.ranks)
    told = ", ".join(f"{name} {one['p50_ms']:.1f} ms" for name, one in crossings.items())
    print(f"8 MB each way between two processes by ZeroMQ alone: {told}")
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"allgather": summary, "should_stop": _summary([asking]), "crossing": crossings}, indent=2)
        )


def _has_torch() -> bool:
    try:
        import torch.distributed  # noqa: F401  # before the ranks are forked, or each would import it
    except ImportError:
        return False
    return True


def _summary(runs: list[list[float]]) -> dict[str, float]:
    return {
        "p50_ms": statistics.median(statistics.median(run) for run in runs) * 1000,
        "p99_ms": max(_percentile(run, 0.99) for run in runs) * 1000,
    }


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def report(summary: dict[str, Any], asking: list[float], ranks: int) -> None:
    print(f"allgather, {ranks} ranks, milliseconds p50 (p99), and how many times as fast as the star\n")
    print(f"{'':22}" + "".join(f"{what:>28}" for what in summary["star"]))
    for name, measured in summary.items():
        row = ""
        for what, one in measured.items():
            faster = summary["star"][what]["p50_ms"] / one["p50_ms"]
            text = f"{one['p50_ms']:.3f} ({one['p99_ms']:.1f}) {faster:.1f}x"
            row += f"{text:>28}"
        print(f"{name:22}{row}")
    one = _summary([asking])
    print(f"\nshould_stop, {ranks} ranks: p50 {one['p50_ms'] * 1000:.1f} us, p99 {one['p99_ms'] * 1000:.0f} us")


if __name__ == "__main__":
    main()
