"""Tunnels on the agent's side: the master asks for a member's port, and bytes go to and fro until either side ends.

One object per bulk connection: when that is gone, so are its tunnels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from clutch.agent.shelf import ShelfDoor
from clutch.backends.containers.base import Key
from clutch.backends.transports.tunnel import TunnelEnd
from clutch.wire.errors import ClutchError
from clutch.wire.link import SHELF_PORT, TUNNEL_PIECE_BYTES, TunnelClose, TunnelCredit, TunnelData, TunnelOpen

CONNECT_WITHIN_S = 10.0
TUNNELS_MAX = 1024


class Reach(Protocol):
    """Where a member's port is."""

    async def reach(self, key: Key, port: int) -> tuple[str, int]:
        """Host and port to connect to. ``NotFound`` if it is not here or has no such port."""
        ...


class AgentTunnels:
    def __init__(self, send: Callable[[Any], Awaitable[None]], reach: Reach, shelf: ShelfDoor | None = None) -> None:
        self._send = send
        self._reach = reach
        self._shelf = shelf
        self._ends: dict[int, TunnelEnd] = {}
        self._lives: set[asyncio.Task[None]] = set()

    def heard(self, frame: TunnelOpen | TunnelData | TunnelCredit | TunnelClose) -> None:
        if isinstance(frame, TunnelOpen):
            life = asyncio.create_task(self._life(frame))
            self._lives.add(life)
            life.add_done_callback(self._lives.discard)
        elif frame.tunnel in self._ends:
            self._ends[frame.tunnel].heard(frame)

    async def close(self) -> None:
        """The connection is gone."""
        lives = list(self._lives)
        for life in lives:
            life.cancel()
        await asyncio.gather(*lives, return_exceptions=True)

    async def _life(self, wish: TunnelOpen) -> None:
        if len(self._ends) >= TUNNELS_MAX:
            await self._send(TunnelClose(wish.tunnel, error=f"{TUNNELS_MAX} tunnels are open already"))
            return
        end = self._ends[wish.tunnel] = TunnelEnd(wish.tunnel, self._send)
        writer: asyncio.StreamWriter | None = None
        try:
            if wish.port == SHELF_PORT and self._shelf is not None:
                await self._send(TunnelCredit(wish.tunnel, 0))
                await self._shelf.serve(end)
                await end.close()
                return
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
