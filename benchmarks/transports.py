"""How fast members speak: our transport beside a bare pyzmq loop without keys, on this machine, in the same run.

    python benchmarks/transports.py [--quick] [--json FILE]

The other side is always a process of its own. Round trips are one at a time, so they measure latency; pushes are as
many as fit. "bare" is blocking pyzmq over tcp: no asyncio, no keys, no headers, no deadlines. Ours over tcp is
encrypted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import zmq

from clutch.backends.transports.base import Address, Identity, Options
from clutch.backends.transports.keys import AllowList, KeyPair, new_keys
from clutch.backends.transports.zmq import ZmqTransport

SIZES = {"64 B": 64, "64 KiB": 64 << 10}
PUSH_BYTES = 1 << 20
WARM_UP = 20
IN_FLIGHT = 16


class Head(msgspec.Struct, frozen=True):
    n: int


class Orders(msgspec.Struct, frozen=True):
    """What the other process is told: ``ours`` or ``bare``, ``answer`` or ``take``."""

    way: str
    does: str
    endpoint: str
    keys: KeyPair
    friend: str
    pushes: int = 0


# -- the other process --------------------------------------------------------------------------------------------


def say(text: str) -> None:
    print(text, flush=True)


async def other_side_ours(orders: Orders) -> None:
    transport = ZmqTransport(Identity("other"), orders.keys)
    allow = AllowList({"bench": orders.friend})
    if orders.does == "answer":
        server = await transport.serve(orders.endpoint, Head, allow=allow, options=Options(report_deaths=False))
        say(server.endpoint)
        while True:
            request = await server.receive(within_s=600)
            await server.reply(request, request.header, request.buffers)
    puller = await transport.pull(orders.endpoint, Head, allow=allow, options=Options(queue=16, report_deaths=False))
    say(puller.endpoint)
    while True:
        for _ in range(orders.pushes):
            await puller.pull(within_s=600)
        say("all")


def other_side_bare(orders: Orders) -> None:
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER if orders.does == "answer" else zmq.PULL)
    socket.set(zmq.RCVHWM, 16)
    socket.bind(orders.endpoint)
    say(bytes(socket.get(zmq.LAST_ENDPOINT)).decode().rstrip("\0"))
    while orders.does == "answer":
        socket.send_multipart(socket.recv_multipart(copy=False), copy=False)
    while True:
        for _ in range(orders.pushes):
            socket.recv(copy=False)
        say("all")


# -- this process -------------------------------------------------------------------------------------------------


class Other:
    def __init__(self, process: subprocess.Popen[str], endpoint: str) -> None:
        self.process = process
        self.endpoint = endpoint

    async def says(self) -> str:
        assert self.process.stdout is not None
        return (await asyncio.to_thread(self.process.stdout.readline)).strip()


def start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@asynccontextmanager
async def other(orders: Orders) -> AsyncIterator[Other]:
    command = [sys.executable, __file__, "--orders", msgspec.json.encode(orders).decode()]
    process = await asyncio.to_thread(start, command)
    try:
        running = Other(process, "")
        running.endpoint = await running.says()
        yield running
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


async def ours(endpoint: str, rounds: int, pushes: int) -> dict[str, float]:
    mine, theirs = new_keys(), new_keys()
    stream_endpoint = endpoint if endpoint.startswith("tcp") else endpoint + "-stream"
    found: dict[str, float] = {}
    transport = ZmqTransport(Identity("bench"), mine)
    async with other(Orders("ours", "answer", endpoint, theirs, mine.public)) as echo:
        caller = await transport.connect(Address("other", echo.endpoint, theirs.public), Head)
        for label, size in SIZES.items():
            payload = bytes(size)
            taken = []
            for n in range(rounds + WARM_UP):
                began = time.perf_counter()
                await caller.call(Head(n), [payload], within_s=30)
                taken.append(time.perf_counter() - began)
            found[f"round trip {label}, us"] = statistics.median(taken[WARM_UP:]) * 1e6
            began = time.perf_counter()
            for n in range(0, rounds, IN_FLIGHT):
                await asyncio.gather(*(caller.call(Head(n), [payload], within_s=30) for _ in range(IN_FLIGHT)))
            found[f"{label}, {IN_FLIGHT} in flight, calls/s"] = rounds / (time.perf_counter() - began)
    async with other(Orders("ours", "take", stream_endpoint, theirs, mine.public, pushes)) as sink:
        pusher = await transport.push(Address("other", sink.endpoint, theirs.public), Head, options=Options(queue=16))
        payload = bytes(PUSH_BYTES)
        for measured in (False, True):
            began = time.perf_counter()
            for n in range(pushes):
                await pusher.push(Head(n), [payload], within_s=60)
            assert await sink.says() == "all"
            if measured:
                found["push 1 MiB, MB/s"] = pushes * PUSH_BYTES / 1e6 / (time.perf_counter() - began)
    await transport.close()
    return found


async def bare(rounds: int, pushes: int) -> dict[str, float]:
    keys = new_keys()
    found: dict[str, float] = {}
    context = zmq.Context()
    async with other(Orders("bare", "answer", "tcp://127.0.0.1:*", keys, "")) as echo:
        socket = context.socket(zmq.DEALER)
        socket.connect(echo.endpoint)
        for label, size in SIZES.items():
            payload = bytes(size)
            taken = []
            for _ in range(rounds + WARM_UP):
                began = time.perf_counter()
                socket.send(payload)
                socket.recv(copy=False)
                taken.append(time.perf_counter() - began)
            found[f"round trip {label}, us"] = statistics.median(taken[WARM_UP:]) * 1e6
            began = time.perf_counter()
            for _ in range(0, rounds, IN_FLIGHT):
                for _ in range(IN_FLIGHT):
                    socket.send(payload)
                for _ in range(IN_FLIGHT):
                    socket.recv(copy=False)
            found[f"{label}, {IN_FLIGHT} in flight, calls/s"] = rounds / (time.perf_counter() - began)
        socket.close(0)
    async with other(Orders("bare", "take", "tcp://127.0.0.1:*", keys, "", pushes)) as sink:
        socket = context.socket(zmq.PUSH)
        socket.set(zmq.SNDHWM, 16)
        socket.connect(sink.endpoint)
        payload = bytes(PUSH_BYTES)
        for measured in (False, True):
            began = time.perf_counter()
            for _ in range(pushes):
                socket.send(payload, copy=False)
            assert await sink.says() == "all"
            if measured:
                found["push 1 MiB, MB/s"] = pushes * PUSH_BYTES / 1e6 / (time.perf_counter() - began)
        socket.close(0)
    context.term()
    return found


async def measure(rounds: int, pushes: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        return {
            "bare tcp": await bare(rounds, pushes),
            "ours ipc": await ours(f"ipc://{folder}/t", rounds, pushes),
            "ours tcp+CURVE": await ours("tcp://127.0.0.1:*", rounds, pushes),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--orders", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.orders:
        orders = msgspec.json.decode(options.orders, type=Orders)
        if orders.way == "bare":
            other_side_bare(orders)
        else:
            asyncio.run(other_side_ours(orders))
        return
    share = 10 if options.quick else 1
    found = asyncio.run(measure(8000 // share, 2000 // share))
    ways = list(found)
    print(f"{'':34}" + "".join(f"{way:>16}" for way in ways) + "      ours/bare (ipc, tcp)")
    for what, plain in found["bare tcp"].items():
        ratios = [found[way][what] / plain for way in ways[1:]]
        figures = "".join(f"{found[way][what]:16,.0f}" for way in ways)
        print(f"{what:34}{figures}      " + ", ".join(f"{ratio:.2f}x" for ratio in ratios))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
