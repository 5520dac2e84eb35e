"""Requests and WebSockets through the proxy's two ways, over real sockets to real servers."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from clutch.master.proxy.http import Exchange
from clutch.master.proxy.websocket import Bridge
from clutch.wire.errors import Unavailable


class TcpPipe:
    """A way to a port on this machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def read(self) -> bytes:
        return await self.reader.read(65536)

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def close(self) -> None:
        self.writer.close()


@asynccontextmanager
async def listening(answer: Any) -> AsyncIterator[TcpPipe]:
    """A pipe to a server that gives each connection to ``answer``."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pipe = TcpPipe(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield pipe
    finally:
        await pipe.close()
        server.close()
        await server.wait_closed()


class Caller:
    """One side of an ASGI exchange."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for message in messages:
            self.incoming.put_nowait(message)
        self.said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def receive(self) -> dict[str, Any]:
        return await self.incoming.get()

    async def send(self, message: Any) -> None:
        self.said.put_nowait(dict(message))

    def all_said(self) -> list[dict[str, Any]]:
        return [self.said.get_nowait() for _ in range(self.said.qsize())]


async def echo_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers with a digest of what it got, in chunks."""
    head = await reader.readuntil(b"\r\n\r\n")
    body = bytearray()
    if b"chunked" in head.lower():
        while size := int((await reader.readline()).split(b";")[0], 16):
            body += await reader.readexactly(size)
            await reader.readline()
    elif b"content-length" in head.lower():
        length = int(next(line for line in head.lower().split(b"\r\n") if b"content-length" in line).split(b":")[1])
        body += await reader.readexactly(length)
    first = head.split(b"\r\n")[0]
    answer = first + b"|" + hashlib.sha256(body).hexdigest().encode()
    writer.write(b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\nX-Seen: yes\r\nConnection: close\r\n\r\n")
    writer.write(f"{len(answer):x}\r\n".encode() + answer + b"\r\n0\r\n\r\n")
    await writer.drain()
    writer.close()


async def test_a_large_body_crosses_as_it_comes() -> None:
    pieces = [bytes([n]) * 100_000 for n in range(20)]
    caller = Caller(*({"type": "http.request", "body": p, "more_body": True} for p in pieces), {"type": "http.request"})
    async with listening(echo_http) as pipe, asyncio.timeout(20):
        await Exchange(pipe, "/proxy/c1/1").run(
            "PUT", b"/a?b=1", [(b"host", b"x"), (b"connection", b"close")], caller.receive, caller.send
        )
    start, *body = caller.all_said()
    assert start["status"] == 201
    assert (b"x-seen", b"yes") in start["headers"]
    whole = b"".join(message["body"] for message in body)
    assert whole == b"PUT /a?b=1 HTTP/1.1|" + hashlib.sha256(b"".join(pieces)).hexdigest().encode()
    assert body[-1]["more_body"] is False


@pytest.mark.parametrize("answer", [b"", b"not http at all\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Len"])
async def test_a_task_that_speaks_no_http_is_an_error_that_says_so(answer: bytes) -> None:
    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    caller = Caller({"type": "http.request"})
    async with listening(rude) as pipe, asyncio.timeout(20):
        with pytest.raises(Unavailable):
            await Exchange(pipe, "/p").run("GET", b"/", [(b"host", b"x")], caller.receive, caller.send)
    assert caller.all_said() == []


@asynccontextmanager
async def socket_pipe(answer: Any, **options: Any) -> AsyncIterator[TcpPipe]:
    async with serve(answer, "127.0.0.1", 0, **options) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        pipe = TcpPipe(*await asyncio.open_connection("127.0.0.1", port))
        try:
            yield pipe
        finally:
            await pipe.close()


async def test_messages_cross_both_ways_and_so_does_the_end() -> None:
    async def echo(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(message)
            if message == "end":
                await connection.close(4321, "as you wish")

    caller = Caller(
        {"type": "websocket.connect"},
        {"type": "websocket.receive", "text": "häl"},
        {"type": "websocket.receive", "bytes": b"\0" * 300_000},
        {"type": "websocket.receive", "text": "end"},
    )
    async with socket_pipe(echo, subprotocols=["one", "two"]) as pipe, asyncio.timeout(20):
        await Bridge(pipe, "/x?y=1", [(b"host", b"h")], ("two",)).run(caller.receive, caller.send)
    accept, first, second, third, close = caller.all_said()
    assert accept["subprotocol"] == "two"
    assert first["text"] == "häl"
    assert second["bytes"] == b"\0" * 300_000
    assert third["text"] == "end"
    assert close == {"type": "websocket.close", "code": 4321, "reason": "as you wish"}


async def test_a_caller_that_leaves_closes_the_tasks_side() -> None:
    closed: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    async def hold(connection: ServerConnection) -> None:
        await connection.wait_closed()
        closed.set_result(connection.close_code)

    caller = Caller({"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1001})
    async with socket_pipe(hold) as pipe, asyncio.timeout(20):
        await Bridge(pipe, "/", [(b"host", b"h")], ()).run(caller.receive, caller.send)
        assert await closed == 1001


async def test_a_port_without_websockets_refuses_the_handshake() -> None:
    caller = Caller({"type": "websocket.connect"})
    async with listening(echo_http) as pipe, asyncio.timeout(20):
        with pytest.raises(Unavailable):
            await Bridge(pipe, "/", [(b"host", b"h")], ()).run(caller.receive, caller.send)
    assert caller.all_said() == []
