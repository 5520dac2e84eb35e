"""WebSockets as the master's rooms see them: bytes in, bytes out, an end. The HTTP framework stays behind this file."""

from __future__ import annotations

from typing import Any, Protocol

from litestar import WebSocket
from litestar.exceptions import WebSocketDisconnect


class Socket(Protocol):
    """One accepted WebSocket."""

    async def receive(self) -> bytes:
        """The next message. ``ConnectionError`` when it is closed."""
        ...

    async def send(self, data: bytes) -> None:
        """``ConnectionError`` when it is closed."""
        ...

    async def close(self, code: int, reason: str) -> None:
        """Nothing if it is closed already."""
        ...


class LitestarSocket:
    """Implements ``Socket`` over Litestar's."""

    def __init__(self, socket: WebSocket[Any, Any, Any]) -> None:
        self._socket = socket
        self._closed = False

    async def receive(self) -> bytes:
        try:
            return await self._socket.receive_bytes()
        except (WebSocketDisconnect, RuntimeError, KeyError) as gone:
            self._closed = True
            raise ConnectionError(str(gone)) from gone

    async def send(self, data: bytes) -> None:
        if self._closed:
            raise ConnectionError("it is closed")
        try:
            await self._socket.send_bytes(data)
        except (WebSocketDisconnect, RuntimeError, OSError) as gone:
            self._closed = True
            raise ConnectionError(str(gone)) from gone

    async def close(self, code: int, reason: str) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            await self._socket.close(code=code, reason=reason.encode()[:120].decode(errors="ignore"))
        except (WebSocketDisconnect, RuntimeError, OSError):
            return
