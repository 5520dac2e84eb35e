"""One HTTP request into a task's port and its answer back, both streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Protocol

import h11

from clutch.master.proxy.headers import Headers, from_task
from clutch.wire.errors import Unavailable

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
PIECE_BYTES = 64 * 2**10


class Pipe(Protocol):
    """Bytes to and from a port; reading gives ``b""`` at the end."""

    async def read(self) -> bytes: ...

    async def write(self, data: bytes) -> None: ...

    async def close(self) -> None: ...


class Exchange:
    """One request over one pipe. The pipe is not used again: tasks are few and pipes are cheap."""

    def __init__(self, pipe: Pipe, prefix: str) -> None:
        self._pipe = pipe
        self._prefix = prefix
        self._http = h11.Connection(h11.CLIENT)
        self.began = False
        """Whether the caller has been told anything; after that an error can only cut the answer short."""

    async def run(self, method: str, path: bytes, headers: Headers, receive: Receive, send: Send) -> None:
        framing, body = await _framing(headers, receive)
        await self._pipe.write(self._wire(h11.Request(method=method, target=path, headers=[*headers, *framing])))
        async for piece in body:
            await self._pipe.write(self._wire(h11.Data(data=piece)))
        await self._pipe.write(self._wire(h11.EndOfMessage()))
        await self._answer(send)

    def _wire(self, event: h11.Event) -> bytes:
        try:
            return self._http.send(event) or b""
        except h11.LocalProtocolError as error:
            raise Unavailable(f"the request cannot be passed on: {error}", object="proxy") from None

    async def _answer(self, send: Send) -> None:
        while True:
            event = await self._next()
            if isinstance(event, h11.InformationalResponse):
                continue
            if isinstance(event, h11.Response):
                self.began = True
                headers = from_task(event.headers, self._prefix)
                await send({"type": "http.response.start", "status": event.status_code, "headers": headers})
            elif isinstance(event, h11.Data):
                await send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
            elif isinstance(event, h11.EndOfMessage):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return

    async def _next(self) -> h11.Event:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise Unavailable(
                    f"the task did not answer in HTTP: {error}", object="proxy", next_step="Look at its output."
                ) from None
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._pipe.read())
                continue
            if isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                raise Unavailable("the task closed the connection", object="proxy", next_step="Look at its output.")
            assert isinstance(event, h11.Event)
            return event


async def _framing(headers: Headers, receive: Receive) -> tuple[Headers, AsyncIterator[bytes]]:
    """How the body is delimited towards the task, and the body. A body that came whole has a length; a longer one is
    passed on in chunks as it comes."""
    first = await receive()
    body: bytes = first.get("body", b"")
    if first["type"] != "http.request" or not first.get("more_body", False):
        return ([(b"content-length", str(len(body)).encode())] if body else []), _whole(body)
    return [(b"transfer-encoding", b"chunked")], _rest(body, receive)


async def _whole(body: bytes) -> AsyncIterator[bytes]:
    if body:
        yield body


async def _rest(first: bytes, receive: Receive) -> AsyncIterator[bytes]:
    message: Mapping[str, Any] = {"type": "http.request", "body": first, "more_body": True}
    while True:
        if message["type"] != "http.request":
            raise Unavailable("the caller went away", object="proxy")
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body", False):
            return
        message = await receive()
