"""The agent's end of the link against a scripted master on a real socket: reconnects, conflation, kits, tunnels."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from websockets.asyncio.server import ServerConnection, serve

from clutch.agent.link import Link, LinkSettings
from clutch.agent.relay import Relay
from clutch.backends.containers.base import Key
from clutch.wire.errors import NotFound, TimedOut
from clutch.wire.ids import Fence, MemberId, NodeId, PoolName, TaskId
from clutch.wire.link import (
    BULK_PATH,
    CONTROL_PATH,
    BulkUp,
    CloseCode,
    ControlUp,
    ExitNote,
    Frames,
    NodeUse,
    OutputCommitted,
    OutputOpen,
    TunnelClose,
    TunnelCredit,
    TunnelData,
    TunnelOpen,
)
from clutch.wire.messages import Hello, Report
from clutch.wire.programs import Kit, KitRequest
from clutch.wire.resources import Capacity

MEMBER, FENCE = MemberId(TaskId("t"), "main", 0), Fence(1, 1, 1)
DEADLINE_S = 20.0


class Master:
    """A WebSocket server that does what a test says."""

    def __init__(self) -> None:
        self.sockets: dict[str, asyncio.Queue[ServerConnection]] = {
            CONTROL_PATH: asyncio.Queue(),
            BULK_PATH: asyncio.Queue(),
        }
        self.headers: list[dict[str, str]] = []
        self.turn_away = False
        self.url = ""
        self._ended = asyncio.Event()

    async def handle(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        self.headers.append(dict(socket.request.headers.raw_items()))
        if self.turn_away:
            await socket.close(CloseCode.NOT_LEADER, "this master does not lead now")
            return
        self.sockets[socket.request.path].put_nowait(socket)
        await self._ended.wait()

    async def next(self, path: str) -> ServerConnection:
        async with asyncio.timeout(DEADLINE_S):
            return await self.sockets[path].get()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Master]:
        async with serve(self.handle, "127.0.0.1", 0, compression=None) as server:
            self.url = f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
            yield self
            self._ended.set()


class Ears:
    def __init__(self) -> None:
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self.reasons: list[str] = []

    def heard(self, message: Any) -> None:
        self.messages.put_nowait(message)

    def connected(self, master: str, address: str) -> None:
        assert address == "127.0.0.1"

    def disconnected(self, master: str, reason: str) -> None:
        self.reasons.append(reason)


class Nowhere:
    def __init__(self, port: int = 0) -> None:
        self.port = port

    async def reach(self, key: Key, port: int) -> tuple[str, int]:
        if not self.port:
            raise NotFound("there is no such port", object=str(key.member))
        return "127.0.0.1", self.port


@asynccontextmanager
async def linked(*masters: str, port: int = 0) -> AsyncIterator[tuple[Link, Relay, Ears]]:
    relay, ears = Relay(), Ears()
    link = Link(LinkSettings(masters=masters, node="n1", session="s1", token="secret"), relay, Random(1))
    running = asyncio.create_task(link.run(ears, Nowhere(port)))
    try:
        yield link, relay, ears
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def said(socket: ServerConnection, up: Any = ControlUp) -> Any:
    async with asyncio.timeout(DEADLINE_S):
        return Frames(up).read(await socket.recv())  # type: ignore[arg-type]


async def say(socket: ServerConnection, message: object) -> None:
    await socket.send(msgspec.msgpack.encode(message))


def report(sequence: int) -> Report:
    return Report(NodeId("n1"), PoolName("p"), "s1", sequence, 1, 1, 1, 0, Capacity())


async def test_it_says_who_it_is_and_the_newest_of_what_it_has(tmp_path: Path) -> None:
    async with Master().running() as master, linked(master.url) as (link, _, ears):
        for number in range(20):
            link.report(report(number))
        note = ExitNote(MEMBER, FENCE, "exited with code 1")
        link.use(NodeUse(NodeId("n1"), 1.0, exits=(note,)))
        link.use(NodeUse(NodeId("n1"), 2.0))
        control = await master.next(CONTROL_PATH)
        headers = {name.lower(): value for name, value in master.headers[0].items()}
        assert headers["authorization"] == "Bearer secret" and headers["clutch-node"] == "n1"
        assert headers["clutch-session"] == "s1" and headers["clutch-protocol"] == "1"
        use = await said(control)
        assert use == NodeUse(NodeId("n1"), 2.0, exits=(note,)), "a reason is not lost to newer figures"
        assert await said(control) == report(19)
        await say(control, Hello(1, 1, 1))
        async with asyncio.timeout(DEADLINE_S):
            assert await ears.messages.get() == Hello(1, 1, 1)


async def test_it_goes_from_address_to_address_until_one_leads() -> None:
    async with Master().running() as standby, Master().running() as leader:
        standby.turn_away = True
        async with linked("http://127.0.0.1:9", standby.url, leader.url) as (_, _, ears):
            control = await leader.next(CONTROL_PATH)
            await leader.next(BULK_PATH)
            assert len(ears.reasons) == 2 and "4421" in ears.reasons[1]
            leader.turn_away, standby.turn_away = True, False
            control.transport.abort()
            await standby.next(CONTROL_PATH)


async def test_a_kit_is_asked_for_again_on_a_new_connection_and_not_for_ever() -> None:
    async with Master().running() as master, linked(master.url) as (link, _, _):
        asking = asyncio.create_task(link.kit(KitRequest(MEMBER, FENCE), DEADLINE_S))
        control = await master.next(CONTROL_PATH)
        assert await said(control) == KitRequest(MEMBER, FENCE)
        control.transport.abort()
        control = await master.next(CONTROL_PATH)
        assert await said(control) == KitRequest(MEMBER, FENCE)
        await say(control, Kit(MemberId(TaskId("other"), "main", 0), FENCE))
        await say(control, Kit(MEMBER, FENCE, {"A": "1"}))
        assert (await asking).environment == {"A": "1"}
        with pytest.raises(TimedOut, match="no master gave its kit"):
            await link.kit(KitRequest(MEMBER, FENCE), 0.05)


async def test_bulk_breaks_alone_and_is_made_again(tmp_path: Path) -> None:
    async with Master().running() as master, linked(master.url) as (_, relay, ears):
        await master.next(CONTROL_PATH)
        bulk = await master.next(BULK_PATH)
        relay.watch(Key(MEMBER, FENCE), tmp_path)
        assert await said(bulk, BulkUp) == OutputOpen(MEMBER, FENCE)
        await say(bulk, {"type": "of a later release"})
        await say(bulk, OutputCommitted(MEMBER, FENCE, 0, 0))
        bulk.transport.abort()
        bulk = await master.next(BULK_PATH)
        assert await said(bulk, BulkUp) == OutputOpen(MEMBER, FENCE)
        assert not ears.reasons, "control was never away"


async def test_tunnels_reach_a_port_or_say_why_not() -> None:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data.upper())
        writer.close()

    async with await asyncio.start_server(shout, "127.0.0.1", 0) as server, Master().running() as master:  # noqa: SIM117
        async with linked(master.url, port=server.sockets[0].getsockname()[1]):
            bulk = await master.next(BULK_PATH)
            await say(bulk, TunnelOpen(5, MEMBER, FENCE, 80))
            assert await said(bulk, BulkUp) == TunnelCredit(5, 0)
            await say(bulk, TunnelData(5, b"hello"))
            heard = [await said(bulk, BulkUp), await said(bulk, BulkUp)]
            assert TunnelCredit(5, 5) in heard and TunnelData(5, b"HELLO") in heard
            await say(bulk, TunnelClose(5, half=True))
            assert await said(bulk, BulkUp) == TunnelClose(5, half=True)
    async with Master().running() as master, linked(master.url):
        bulk = await master.next(BULK_PATH)
        await say(bulk, TunnelOpen(6, MEMBER, FENCE, 80))
        answer = await said(bulk, BulkUp)
        assert answer.tunnel == 6 and "there is no such port" in answer.error


async def test_junk_from_a_master_ends_the_connection_and_not_the_agent() -> None:
    async with Master().running() as master, linked(master.url) as (_, _, ears):
        control = await master.next(CONTROL_PATH)
        await control.send(b"\xc1 what is this")
        await master.next(CONTROL_PATH)
        assert "cannot be read" in ears.reasons[0]
