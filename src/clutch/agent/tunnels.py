"""Tunnels on the agent's side: the master asks for a member's port, and bytes go to and fro until either side ends.

One object per bulk connection: when that is gone, so are its tunnels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from clutch.backends.containers.base import Key
from clutch.backends.transports.tunnel import TunnelEnd
from clutch.wire.errors import ClutchError
from clutch.wire.link import TUNNEL_PIECE_BYTES, TunnelClose, TunnelCredit, TunnelData, TunnelOpen

CONNECT_WITHIN_S = 10.0
TUNNELS_MAX = 1024


class Reach(Protocol):
    """Where a member's port is."""

    async def reach(self, key: Key, port: int) -> tuple[str, int]:
        """Host and port to connect to. ``NotFound`` if it is not here or has no such port."""
        ...


class AgentTunnels:
    def __init__(self, send: Callable[[Any], Awaitable[None]], reach: Reach, group: asyncio.TaskGroup) -> None:
        self._send = send
        self._reach = reach
        self._group = group
        self._ends: dict[int, TunnelEnd] = {}

    def heard(self, frame: TunnelOpen | TunnelData | TunnelCredit | TunnelClose) -> None:
        if isinstance(frame, TunnelOpen):
            self._group.create_task(self._life(frame))
        elif frame.tunnel in self._ends:
            self._ends[frame.tunnel].heard(frame)

    def broke(self) -> None:
        """The connection is gone."""
        for end in self._ends.values():
            end.broke("the connection to the master is gone")

    async def _life(self, wish: TunnelOpen) -> None:
        if len(self._ends) >= TUNNELS_MAX:
            await self._send(TunnelClose(wish.tunnel, error=f"{TUNNELS_MAX} tunnels are open already"))
            return
        end = self._ends[wish.tunnel] = TunnelEnd(wish.tunnel, self._send)
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                host, port = await self._reach.reach(Key(wish.member, wish.fence), wish.port)
                reader, writer = await asyncio.open_connection(host, port)
            await self._send(TunnelCredit(wish.tunnel, 0))
            await _both_ways(end, reader, writer)
        except (ClutchError, OSError, TimeoutError) as failed:
            await end.close(f"port {wish.port} of {wish.member} does not answer: {failed or 'no connection in time'}")
        finally:
            del self._ends[wish.tunnel]
            if writer is not None:
                writer.close()


async def _both_ways(end: TunnelEnd, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async def up() -> None:
        while data := await reader.read(TUNNEL_PIECE_BYTES):
            await end.write(data)
        await end.finish()

    async def down() -> None:
        while data := await end.read():
            writer.write(data)
            await writer.drain()
        end.raise_broken()  # closed as a whole: nobody reads what the program may still say
        if writer.can_write_eof():
            writer.write_eof()

    pumps = [asyncio.ensure_future(up()), asyncio.ensure_future(down())]
    try:
        done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_EXCEPTION)
        for pump in done:
            pump.result()
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
