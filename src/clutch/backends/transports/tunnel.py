"""One end of a tunnel: bytes both ways over frames that somebody else carries, with credit, so that neither end can
flood the other. Agent and master hold one end each; the frames are ``wire.link``'s.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from clutch.wire.errors import ClutchError, Unavailable
from clutch.wire.link import TUNNEL_PIECE_BYTES, TUNNEL_WINDOW_BYTES, TunnelClose, TunnelCredit, TunnelData

Frame = TunnelData | TunnelCredit | TunnelClose
Send = Callable[[Frame], Awaitable[None]]


class TunnelEnd:
    """``read``, ``write``, ``finish`` and ``close`` for who uses it; ``heard`` and ``broke`` for who carries it."""

    def __init__(self, number: int, send: Send) -> None:
        self.number = number
        self.opened = asyncio.Event()
        """Set when the other end has said something, or it is over."""
        self._send = send
        self._credit_bytes = TUNNEL_WINDOW_BYTES
        self._incoming: deque[bytes] = deque()
        self._incoming_bytes = 0
        self._ended = False
        self._finished = False
        self._error: ClutchError | None = None
        self._changed = asyncio.Event()
        self._owed_bytes = 0

    @property
    def is_over(self) -> bool:
        return self._error is not None or (self._ended and self._finished)

    # -- for who carries it --------------------------------------------------------------------------------------

    def heard(self, frame: Frame) -> None:
        """A frame of this tunnel has come in."""
        match frame:
            case TunnelData(_, data):
                if self._incoming_bytes + len(data) > TUNNEL_WINDOW_BYTES:
                    self.broke("the other end sent more than it may")
                    return
                self._incoming.append(data)
                self._incoming_bytes += len(data)
            case TunnelCredit(_, size_bytes):
                self._credit_bytes += size_bytes
            case TunnelClose(_, half, error):
                self._ended = True
                if not half:
                    self.broke(error or "the other end closed it")
        self.opened.set()
        self._changed.set()

    def broke(self, reason: str) -> None:
        """It is over; what was received can still be read."""
        if self._error is None:
            self._error = Unavailable(reason, object=f"tunnel {self.number}")
        self.opened.set()
        self._changed.set()

    def raise_broken(self) -> None:
        if self._error is not None:
            raise self._error

    # -- for who uses it -----------------------------------------------------------------------------------------

    async def read(self) -> bytes:
        """What came next; ``b""`` at its end. ``Unavailable`` when it broke before that."""
        while not self._incoming:
            if self._ended:
                return b""
            self.raise_broken()
            self._changed.clear()
            await self._changed.wait()
        data = self._incoming.popleft()
        self._incoming_bytes -= len(data)
        self._owed_bytes += len(data)
        if not self.is_over and (self._owed_bytes >= TUNNEL_WINDOW_BYTES // 4 or not self._incoming):
            owed, self._owed_bytes = self._owed_bytes, 0
            await self._send(TunnelCredit(self.number, owed))
        return data

    async def write(self, data: bytes) -> None:
        """Send all of it, as fast as the other end takes it."""
        view = memoryview(data)
        while view:
            self.raise_broken()
            if self._finished:
                raise Unavailable("this end has finished", object=f"tunnel {self.number}")
            if self._credit_bytes <= 0:
                self._changed.clear()
                await self._changed.wait()
                continue
            size = min(len(view), self._credit_bytes, TUNNEL_PIECE_BYTES)
            self._credit_bytes -= size
            await self._send(TunnelData(self.number, bytes(view[:size])))
            view = view[size:]

    async def finish(self) -> None:
        """Nothing more comes from this end; the other may go on."""
        if self._error is None and not self._finished:
            self._finished = True
            await self._send(TunnelClose(self.number, half=True))

    async def close(self, error: str = "") -> None:
        """It is over for both ends."""
        if self._error is None:
            self.broke("it was closed")
            await self._send(TunnelClose(self.number, error=error))
