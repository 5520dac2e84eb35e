"""The one suite, on every transport: inside a process, over ipc, and over tcp with CURVE."""

import asyncio
import os
import random
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import zmq

from clutch.backends.transports.base import Address, Identity, Transport
from clutch.backends.transports.inline import Exchange, InlineTransport
from clutch.backends.transports.keys import AllowList, KeyPair, new_keys
from clutch.backends.transports.zmq import ZmqTransport
from clutch.testing.transports_suite import (
    CHECKS,
    KEY_CHECKS,
    NETWORK_CHECKS,
    Check,
    Child,
    Ground,
    Told,
    act,
)


class InlineChild:
    """A party of the same process that ends without a word."""

    def __init__(self, transport: InlineTransport, told: Told) -> None:
        self._transport = transport
        self._said: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._acting = asyncio.create_task(act(transport, told, self._said.set_result))
        self.said = ""

    async def start(self) -> "InlineChild":
        await asyncio.wait([self._said, self._acting], return_when=asyncio.FIRST_COMPLETED)
        self.said = self._said.result()
        return self

    async def kill(self) -> None:
        self._transport.die()
        self._acting.cancel()
        await asyncio.wait([self._acting])

    def stop(self) -> None:
        raise NotImplementedError


class InlineGround:
    def __init__(self) -> None:
        self._exchange = Exchange()
        self._opened: list[InlineTransport] = []
        self._keys: dict[str, KeyPair] = {}
        self.allow: AllowList | None = AllowList()

    def party(self, name: str, incarnation: int = 0, *, foreign: bool = False) -> InlineTransport:
        keys = self._keys.setdefault(name, new_keys())
        if not foreign:
            assert self.allow is not None
            self.allow.allow(name, keys.public)
        self._opened.append(InlineTransport(self._exchange, Identity(name, incarnation), keys.public))
        return self._opened[-1]

    def endpoint(self) -> str:
        return "inline:*"

    def address(self, name: str, endpoint: str) -> Address:
        return Address(name, endpoint)

    async def spawn(self, does: str, name: str, incarnation: int, where: str | Address) -> Child:
        address, endpoint = (where, "") if isinstance(where, Address) else (Address("", ""), where)
        told = Told(does, Identity(name, incarnation), KeyPair("", ""), endpoint, address)
        return await InlineChild(self.party(name, incarnation), told).start()

    async def junk(self, endpoint: str) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        for transport in self._opened:
            await transport.close()


class ProcessChild:
    """A real process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.said = ""

    async def start(self, told: Told) -> "ProcessChild":
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(told) + b"\n")
        self.said = (await self._process.stdout.readline()).decode().strip()
        assert self.said
        return self

    async def kill(self) -> None:
        if self._process.returncode is None:
            os.kill(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    def stop(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)


class ZmqGround:
    """``folder`` for ipc; without one, tcp."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._count = 0
        self._opened: list[ZmqTransport] = []
        self._children: list[ProcessChild] = []
        self._keys: dict[str, KeyPair] = {}
        self._allowed: dict[str, str] = {}
        self.allow: AllowList | None = AllowList()

    def party(self, name: str, incarnation: int = 0, *, foreign: bool = False) -> Transport:
        transport = ZmqTransport(Identity(name, incarnation), self._keys_of(name, foreign))
        self._opened.append(transport)
        return transport

    def _keys_of(self, name: str, foreign: bool = False) -> KeyPair:
        keys = self._keys.setdefault(name, new_keys())
        if not foreign:
            assert self.allow is not None
            self.allow.allow(name, keys.public)
            self._allowed[name] = keys.public
        return keys

    def endpoint(self) -> str:
        self._count += 1
        return f"ipc://{self._folder}/{self._count}" if self._folder else "tcp://127.0.0.1:*"

    def address(self, name: str, endpoint: str) -> Address:
        return Address(name, endpoint, self._keys_of(name).public)

    async def spawn(self, does: str, name: str, incarnation: int, where: str | Address) -> Child:
        address, endpoint = (where, "") if isinstance(where, Address) else (Address("", ""), where)
        keys = self._keys_of(name)
        self._keys_of("ann")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "clutch.testing.transports_suite", stdin=PIPE, stdout=PIPE
        )
        self._children.append(ProcessChild(process))
        self._keys_of("actor")
        told = Told(does, Identity(name, incarnation), keys, endpoint, address, self._allowed)
        return await self._children[-1].start(told)

    async def junk(self, endpoint: str) -> None:
        await asyncio.to_thread(send_junk, endpoint)

    async def close(self) -> None:
        for child in self._children:
            await child.kill()
        for transport in self._opened:
            await transport.close()


def send_junk(endpoint: str) -> None:
    greeting = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01"
    junk = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        random.Random(1).randbytes(5000),
        greeting + b"NULL".ljust(20, b"\0") + bytes(32) + b"\x04\x26\x05READY" + bytes(60),
        greeting + b"CURVE".ljust(20, b"\0") + bytes(32) + b"\x04\xff" + random.Random(2).randbytes(300),
        greeting[:7],
        b"",
    ]
    for data in junk:
        if endpoint.startswith("ipc://"):
            plain = socket.socket(socket.AF_UNIX)
            plain.connect(endpoint.removeprefix("ipc://"))
        else:
            host, port = endpoint.removeprefix("tcp://").split(":")
            plain = socket.create_connection((host, int(port)))
        with plain:
            plain.settimeout(5)
            try:
                plain.sendall(data)
                plain.shutdown(socket.SHUT_WR)
                while plain.recv(4096):
                    pass
            except OSError:
                pass
    if endpoint.startswith("ipc://"):
        with zmq.Context() as context:  # where no key is asked for, somebody of ours may still talk nonsense
            for kind in (zmq.DEALER, zmq.PUSH):
                with context.socket(kind) as odd:
                    odd.setsockopt(zmq.LINGER, 1000)
                    odd.setsockopt(zmq.SNDTIMEO, 1000)
                    odd.connect(endpoint)
                    try:
                        odd.send_multipart([b""])
                        odd.send_multipart([b"\x80\x04\x95nonsense", b"", b"x" * 1000])
                        odd.send_multipart([msgspec.msgpack.encode([4, -1, "x", [2**62], 0])])
                    except zmq.ZMQError:
                        pass


@pytest.fixture(params=["inline", "ipc", "tcp"])
async def ground(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ground]:
    made: InlineGround | ZmqGround
    if request.param == "inline":
        made = InlineGround()
    elif request.param == "tcp":
        made = ZmqGround(None)
    else:
        folder = tmp_path / "ipc"
        folder.mkdir(0o700)
        made = ZmqGround(folder)
    troubles: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: troubles.append(context.get("exception") or context)
    )
    yield made
    await made.close()
    for trouble in troubles:
        raise trouble if isinstance(trouble, BaseException) else AssertionError(trouble)


def name_of(check: Check) -> str:
    return check.__name__.removeprefix("check_")


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
async def test_transport(ground: Ground, check: Check) -> None:
    await check(ground)


@pytest.mark.parametrize("ground", ["inline", "tcp"], indirect=True)
@pytest.mark.parametrize("check", KEY_CHECKS, ids=name_of)
async def test_keys(ground: Ground, check: Check) -> None:
    await check(ground)


@pytest.mark.parametrize("ground", ["ipc", "tcp"], indirect=True)
@pytest.mark.parametrize("check", NETWORK_CHECKS, ids=name_of)
async def test_network(ground: Ground, check: Check) -> None:
    await check(ground)
