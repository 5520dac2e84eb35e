"""Ranks as processes: this program forks them, hurts them as it is told, and says what each of them saw.

    python comms_house.py < ORDERS

``ORDERS`` is one JSON object: ``nodes`` (how many ranks each has), ``story`` (a function of this file), ``options`` for
it, ``hurt``: a list of [seconds after all have met, rank, signal]. It answers with one JSON object for each rank.

``meeting`` are more arguments of the meeting. ``namespace`` is the network namespace of the last node, ``cable`` what
joins it to the others: a wound may also be "down" or "up", which is done to the cable.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

from clutch.backends.transports.keys import KeyPair, new_keys
from clutch.runtime.distributed import Agreement, Group
from clutch.runtime.distributed.meeting import Meeting
from clutch.testing.ports import free_port
from clutch.wire.errors import ClutchError, PeerLost


def seats(nodes: list[int]) -> list[tuple[int, int]]:
    """Local rank and size of each rank."""
    return [(local_rank, count) for count in nodes for local_rank in range(count)]


def main() -> None:
    orders = json.load(sys.stdin)
    places = seats(orders["nodes"])
    keys = [new_keys() for _ in orders["nodes"]]
    port = orders.get("port") or free_port()
    if orders["story"] == "torch_values":
        import torch  # noqa: F401  once for all ranks, which are forks of this process

    children = []
    for rank, (local_rank, local_size) in enumerate(places):
        member = next(n for n, _ in enumerate(orders["nodes"]) if rank < sum(orders["nodes"][: n + 1]))
        meeting = Meeting(
            ports=(port,),
            keys=keys[member],
            chief_key=keys[0].public,
            allowed=frozenset(pair.public for pair in keys),
            within_s=60.0,
            **orders.get("meeting", {}),
        )
        children.append(start(orders, rank, (local_rank, local_size), meeting))
    answer(orders, children, keys, port)


def start(orders: dict[str, Any], rank: int, place: tuple[int, int], meeting: Meeting) -> tuple[int, int]:
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    os.close(reading)
    code = 1
    try:
        live(orders, rank, place, meeting, writing)
        code = 0
    finally:
        os._exit(code)


def live(orders: dict[str, Any], rank: int, place: tuple[int, int], meeting: Meeting, writing: int) -> None:
    seen: dict[str, Any] = {"rank": rank}

    def said(line: bytes) -> None:
        os.write(writing, line + b"\n")

    try:
        size = sum(orders["nodes"])
        if orders.get("namespace") and rank >= size - orders["nodes"][-1]:
            enter_namespace(orders["namespace"])
        with Group.create(rank, size, meeting, local_rank=place[0], local_size=place[1]) as group:
            said(b"met")
            try:
                seen["result"] = STORIES[orders["story"]](group, **orders.get("options", {}))
            finally:
                seen["at"] = time.monotonic()
    except ClutchError as error:
        seen |= {"error": error.code, "said": str(error), "ranks": list(getattr(error, "ranks", ()))}
        seen["closed_at"] = time.monotonic()
    except BaseException as error:  # the test looks at it
        seen["crash"] = f"{type(error).__name__}: {error}"
    data = json.dumps(seen).encode()
    for at in range(0, len(data), 32768):
        os.write(writing, data[at : at + 32768])
    os.close(writing)


def answer(orders: dict[str, Any], children: list[tuple[int, int]], keys: list[KeyPair], port: int) -> None:
    print(json.dumps({"port": port, "public": keys[0].public}), flush=True)
    outputs = {reading: b"" for _, reading in children}
    hurt: list[list[Any]] = sorted(orders.get("hurt", []))
    hurt_at: dict[int, float] = {}
    met_at = 0.0
    open_pipes = set(outputs)
    stop_at = time.monotonic() + orders.get("within_s", 60.0)
    while open_pipes and time.monotonic() < stop_at:
        wait = 0.2 if not met_at or not hurt else max(0.0, min(0.2, met_at + hurt[0][0] - time.monotonic()))
        for reading in select.select(list(open_pipes), [], [], wait)[0]:
            data = os.read(reading, 65536)
            outputs[reading] += data
            if not data:
                open_pipes.discard(reading)
        if not met_at and all(b"met" in text for text in outputs.values()):
            met_at = time.monotonic()
        while met_at and hurt and time.monotonic() >= met_at + hurt[0][0]:
            _, rank, number = hurt.pop(0)
            hurt_at.setdefault(rank, time.monotonic())
            if number in ("up", "down"):
                subprocess.run(["ip", "link", "set", orders["cable"], number], check=True)
                continue
            os.kill(children[rank][0], number)
            if number == signal.SIGSTOP and [rank, signal.SIGCONT] not in [wound[1:] for wound in hurt]:
                open_pipes.discard(children[rank][1])
    found = []
    for rank, (process, reading) in enumerate(children):
        if reading in open_pipes or (rank in hurt_at and not outputs[reading].endswith(b"}")):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        last = outputs[reading].split(b"\n")[-1]
        found.append(json.loads(last) if last else {"rank": rank, "silent": True})
    print(json.dumps({"ranks": found, "hurt_at": hurt_at}), flush=True)


def enter_namespace(name: str) -> None:
    with open(f"/var/run/netns/{name}") as file:  # noqa: PTH123
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0x40000000):
            raise OSError(ctypes.get_errno(), f"namespace {name}")


# -- stories ------------------------------------------------------------------------------------------------------


def every_collective(group: Group, large: int = 0) -> Any:
    """Each call, with what can be told of it afterwards."""
    import numpy

    me = group.rank
    seen: dict[str, Any] = {"where": [group.local_rank, group.local_size, group.cross_rank, group.cross_size]}
    seen["gather"] = group.gather({"rank": me, "pair": (me, None)})
    seen["allgather"] = group.allgather([me, "x" * me])
    last = group.size - 1
    seen["broadcast"] = [group.broadcast(("root", me), root) for root in {0, last, last // 2}]
    group.barrier()
    seen["reduce"] = group.reduce({"loss": float(me)}, "sum")
    seen["allreduce"] = [group.allreduce(me + 1, name) for name in ("sum", "max", "min", "mean")]
    seen["allreduce own"] = group.allreduce(me, lambda values: [value * 2 for value in values])
    seen["gather_local"] = group.gather_local(me)
    seen["allgather_local"] = group.allgather_local(me)
    seen["broadcast_local"] = group.broadcast_local(me, root=group.local_size - 1)
    group.barrier_local()
    seen["reduce_local"] = group.reduce_local(me, "max")
    seen["allreduce_local"] = group.allreduce_local(me, "sum")
    if large:
        seen["large"] = large_ones(group, numpy, large)
    for turn in range(40):  # quick ranks may not overtake what slow ones have not taken
        found = group.gather(turn * 1000 + me)
        assert found is None or found == [turn * 1000 + rank for rank in range(group.size)]
    return seen


def large_ones(group: Group, numpy: Any, large: int) -> Any:
    me = group.rank
    mine = numpy.full(large + me, me, dtype=numpy.int32)
    came = group.allgather(mine)
    assert [part.shape for part in came] == [(large + rank,) for rank in range(group.size)]
    assert all((part == rank).all() for rank, part in enumerate(came))
    mine[:] = -1  # what was sent is ours again
    came[0][:] = me  # and what came is ours alone
    group.barrier()
    assert (came[0] == me).all()
    some = group.allgather(bytes(large) if me % 2 else me)
    assert some == [bytes(large) if rank % 2 else rank for rank in range(group.size)]
    told = group.broadcast(numpy.arange(large) if me == group.size - 1 else None, group.size - 1)
    assert (told == numpy.arange(large)).all()
    gathered = group.gather(numpy.full(large, me))
    assert gathered is None or all((part == rank).all() for rank, part in enumerate(gathered))
    total = group.allreduce(numpy.ones(large), "sum")
    return [int(total.min()), int(total.max())]


def busy(group: Group, seconds: float = 20.0, size: int = 0) -> Any:
    """Calls of all kinds until something happens."""
    import numpy

    until = time.monotonic() + seconds
    turn = 0
    while time.monotonic() < until:
        turn += 1
        kind = turn % 4
        if kind == 0:
            group.barrier()
        elif kind == 1:
            group.allgather(numpy.zeros(size) if size else turn)
        elif kind == 2:
            group.gather(turn)
        else:
            group.broadcast(turn, turn % group.size)
    return turn


def goes_on(group: Group, seconds: float, size: int = 0) -> Any:
    """Calls until the time is over on one of the ranks; how many of them there were."""
    import numpy

    until = time.monotonic() + seconds
    turn = 0
    while group.allreduce(time.monotonic() < until, min):
        turn += 1
        if size:
            came = group.allgather(numpy.full(size, turn))
            assert all((part == turn).all() for part in came)
    return turn


def holds_on(group: Group, who: int, seconds: float) -> Any:
    """One rank lets no other thread of its process run Python for a while."""
    group.barrier()
    if group.rank == who:
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    return group.allgather(group.rank)


def idle(group: Group, seconds: float = 3.0) -> Any:
    """Nobody speaks for a while; then one call."""
    time.sleep(seconds)
    began = time.monotonic()
    try:
        group.barrier()
    except PeerLost as error:
        return {"took_s": time.monotonic() - began, "ranks": error.ranks, "at": time.monotonic()}
    return "nothing"


def mixed(group: Group, calls: list[list[Any]]) -> Any:
    """Three calls together, then each rank its own."""
    for _ in range(3):
        group.barrier()
    name, *arguments = calls[group.rank]
    getattr(group, name)(*arguments)
    group.barrier()
    return "nothing was found"


def late(group: Group, who: list[int], seconds: float) -> Any:
    """Some ranks do not come in time."""
    group.barrier()
    if group.rank in who:
        time.sleep(seconds)
    began = time.monotonic()
    try:
        group.allgather(1, timeout_s=1.0)
    except ClutchError as error:
        return {"took_s": time.monotonic() - began, "code": error.code, "said": str(error)}
    return "all came"


def leaves(group: Group, who: int) -> Any:
    """One rank closes its group while the others go on."""
    group.barrier()
    if group.rank == who:
        group.close()
        group.close()
        return "left"
    group.allgather(1)
    return "all came"


def agree(group: Group, after: float, asker: int, pace_s: float) -> Any:
    """At which call each rank stops."""
    at = time.monotonic() + after
    agreement = Agreement(group, lambda: group.rank == asker and time.monotonic() >= at)
    slowest = 0.0
    while True:
        began = time.perf_counter()
        if agreement.should_stop():
            return {"calls": agreement.calls, "slowest_s": slowest}
        slowest = max(slowest, time.perf_counter() - began)
        if pace_s:
            time.sleep(pace_s * (1 + (group.rank * 7 + agreement.calls) % 3))


def agree_often(group: Group, rounds: int) -> Any:
    """Many agreements on one group, asked for at random moments by random ranks."""
    import random

    stops = []
    chance = random.Random(group.broadcast(time.time_ns()))
    for _ in range(rounds):
        asker, after = chance.randrange(group.size), chance.random() * 0.05
        pace = chance.choice([0.0, 0.0, 0.001, 0.004])
        stops.append(agree(group, after, asker, pace)["calls"])
        for _ in range(2):  # once true it stays so, and nobody has to be told
            group.barrier()
    return stops


def reducer_fails(group: Group) -> Any:
    """A reducer's own mistake is everybody's error, and the group goes on."""

    def wrong(values: list[Any]) -> Any:
        raise ValueError("no such thing")

    try:
        group.allreduce(1, wrong)
    except ValueError as error:
        first = f"own {error}"
    except ClutchError as error:
        first = str(error)
    return [first, group.allreduce(1, "sum")]


def giant(group: Group, size: int) -> Any:
    """One value of this many bytes, from one rank to all."""
    import numpy

    value = numpy.ones(size, dtype=numpy.uint8) if group.rank == 0 else None
    came = group.broadcast(value, 0, timeout_s=100)
    return [int(came.nbytes), int(came[:: 1 << 20].sum()), int(came[-1])]


def forked(group: Group) -> Any:
    """A fork of a rank may not speak for it, and its end changes nothing."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        said = "spoke"
        try:
            group.barrier()
        except ClutchError as error:
            said = str(error)
        group.close()
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    said = os.read(reading, 1000).decode()
    os.waitpid(child, 0)
    return [said, group.allgather(group.rank)]


def waits_for_stranger(group: Group, seconds: float) -> Any:
    """Calls go on while a stranger knocks; the chief has noted it."""
    until = time.monotonic() + seconds
    while group.allreduce(time.monotonic() < until and not group.notices, min):
        time.sleep(0.01)
    return list(group.notices)


def torch_values(group: Group) -> Any:
    import torch

    came = group.allgather({"w": torch.full((3, 2), float(group.rank)), "h": torch.zeros(5, dtype=torch.bfloat16)})
    assert came[1]["h"].dtype == torch.bfloat16
    total = group.allreduce(torch.arange(20000, dtype=torch.float32), "mean")
    return [[part["w"][0, 0].item() for part in came], total[-1].item()]


STORIES = {name: story for name, story in list(globals().items()) if callable(story) and name.islower()}

if __name__ == "__main__":
    main()
