"""One WebSocket into a task's port: messages cross one by one, closing crosses too."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from websockets.client import ClientProtocol
from websockets.datastructures import Headers as WebSocketHeaders
from websockets.exceptions import InvalidHandshake
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from clutch.master.proxy.headers import Headers
from clutch.master.proxy.http import Pipe, Receive, Send
from clutch.wire.errors import ClutchError, Unavailable

MESSAGE_MAX_BYTES = 16 * 2**20


class Bridge:
    """A caller's WebSocket (ASGI) on one side, a task's (over a pipe) on the other."""

    def __init__(self, pipe: Pipe, path: str, headers: Headers, subprotocols: tuple[str, ...]) -> None:
        self._pipe = pipe
        self._headers = headers
        self._task = ClientProtocol(
            parse_uri(f"ws://task{path}"),
            subprotocols=[Subprotocol(name) for name in subprotocols] or None,
            max_size=MESSAGE_MAX_BYTES,
        )
        self._pieces: list[bytes] = []
        self._text = False

    async def run(self, receive: Receive, send: Send) -> None:
        """Until either side closes. The caller's handshake is accepted only after the task's."""
        await receive()  # the caller's handshake
        await self._shake_hands()
        await send({"type": "websocket.accept", "subprotocol": self._task.subprotocol, "headers": []})
        inwards = asyncio.create_task(self._inwards(receive))
        try:
            await self._outwards(send)
        finally:
            inwards.cancel()
            with contextlib.suppress(asyncio.CancelledError, ClutchError):
                await inwards

    async def _shake_hands(self) -> None:
        request = self._task.connect()
        kept = WebSocketHeaders([(n, v) for n, v in request.headers.raw_items() if n.lower() != "host"])
        for name, value in self._headers:
            kept[name.decode("latin-1")] = value.decode("latin-1")
        request.headers = kept
        self._task.send_request(request)
        await self._flush()
        while self._task.state is State.CONNECTING:
            data = await self._pipe.read()
            if not data:
                self._task.receive_eof()
            else:
                self._task.receive_data(data)
            refused = self._task.handshake_exc
            if refused is not None or not data:
                raise Unavailable(
                    f"the task did not accept a WebSocket here: {_why(refused)}", object="proxy"
                ) from None

    async def _outwards(self, send: Send) -> None:
        """From the task to the caller."""
        while True:
            for message in self._messages():
                await send(message)
            await self._flush()
            if self._task.state is State.CLOSED or self._task.close_expected():
                await send({"type": "websocket.close", **self._closing()})
                return
            data = await self._pipe.read()
            if data:
                self._task.receive_data(data)
            else:
                self._task.receive_eof()

    def _messages(self) -> Iterator[dict[str, Any]]:
        for event in self._task.events_received():
            if isinstance(event, Response) or not isinstance(event, Frame):
                continue
            if event.opcode in (Opcode.TEXT, Opcode.BINARY):
                self._text = event.opcode is Opcode.TEXT
                self._pieces = []
            elif event.opcode is not Opcode.CONT:
                continue
            self._pieces.append(bytes(event.data))
            if event.fin:
                whole = b"".join(self._pieces)
                self._pieces = []
                said = {"text": whole.decode("utf-8", "replace")} if self._text else {"bytes": whole}
                yield {"type": "websocket.send", **said}

    def _closing(self) -> dict[str, Any]:
        received = self._task.close_rcvd
        if received is None or received.code in (CloseCode.NO_STATUS_RCVD, CloseCode.ABNORMAL_CLOSURE):
            return {"code": 1000 if received is not None else 1011, "reason": ""}
        return {"code": received.code, "reason": received.reason}

    async def _inwards(self, receive: Receive) -> None:
        """From the caller to the task."""
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                if self._task.state is State.OPEN:
                    code = message.get("code") or 1000
                    self._task.send_close(code if code not in (1005, 1006) else 1000, message.get("reason") or "")
                    await self._flush()
                await self._pipe.close()
                return
            if self._task.state is not State.OPEN:
                return
            if message.get("bytes") is not None:
                self._task.send_binary(message["bytes"])
            else:
                self._task.send_text((message.get("text") or "").encode())
            await self._flush()

    async def _flush(self) -> None:
        for data in self._task.data_to_send():
            if data:
                await self._pipe.write(data)


def _why(error: BaseException | None) -> str:
    return str(error) if isinstance(error, InvalidHandshake) else "it closed the connection"
