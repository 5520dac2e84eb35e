"""Tunnels to members' ports, through the bulk connection of their node. For the proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import Any

from clutch.backends.transports.tunnel import TunnelEnd
from clutch.wire.errors import TimedOut, Unavailable
from clutch.wire.ids import Fence, MemberId, NodeId
from clutch.wire.link import TunnelClose, TunnelCredit, TunnelData, TunnelOpen

OPEN_WITHIN_S = 15.0
TUNNELS_MAX = 1024

Tunnel = TunnelEnd
"""``read``, ``write``, ``finish``, ``close``."""


class NodeTunnels:
    """The tunnels of one bulk connection."""

    def __init__(self, node: NodeId, send: Callable[[Any], Awaitable[None]]) -> None:
        self._node = node
        self._send = send
        self._numbers = count(1)
        self._ends: dict[int, TunnelEnd] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def open(self, member: MemberId, fence: Fence, port: int) -> Tunnel:
        if len(self._ends) >= TUNNELS_MAX:
            raise Unavailable(f"{TUNNELS_MAX} tunnels to it are open already", object=f"node {self._node}")
        number = next(self._numbers)
        end = self._ends[number] = TunnelEnd(number, self._carry)
        try:
            async with asyncio.timeout(OPEN_WITHIN_S):
                await self._send(TunnelOpen(number, member, fence, port))
                await end.opened.wait()
            end.raise_broken()
        except TimeoutError:
            self._abandon(end)
            raise TimedOut(f"its agent did not connect to port {port}", object=str(member)) from None
        except asyncio.CancelledError:
            self._abandon(end)
            raise
        finally:
            self._settle(number)
        return end

    def _abandon(self, end: TunnelEnd) -> None:
        """Nobody waits for it any more: its agent must not keep it."""
        closing = asyncio.create_task(self._close(end))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _close(self, end: TunnelEnd) -> None:
        with suppress(ConnectionError, TimeoutError):
            await end.close("nobody waits for it any more")

    def heard(self, frame: TunnelData | TunnelCredit | TunnelClose) -> None:
        end = self._ends.get(frame.tunnel)
        if end is not None:
            end.heard(frame)
            self._settle(frame.tunnel)

    def broke(self, reason: str) -> None:
        """The connection is gone."""
        for end in self._ends.values():
            end.broke(reason)
        self._ends.clear()

    async def _carry(self, frame: TunnelData | TunnelCredit | TunnelClose) -> None:
        await self._send(frame)
        self._settle(frame.tunnel)

    def _settle(self, number: int) -> None:
        end = self._ends.get(number)
        if end is not None and end.is_over:
            del self._ends[number]


class Tunnels:
    """All nodes that have a bulk connection now."""

    def __init__(self) -> None:
        self._nodes: dict[NodeId, NodeTunnels] = {}
        self.changed: Callable[[], None] = lambda: None
        """Called when a node comes or goes."""

    def nodes(self) -> dict[NodeId, NodeTunnels]:
        return dict(self._nodes)

    def put(self, node: NodeId, tunnels: NodeTunnels) -> None:
        self._nodes[node] = tunnels
        self.changed()

    def remove(self, node: NodeId, tunnels: NodeTunnels) -> None:
        if self._nodes.get(node) is tunnels:
            del self._nodes[node]
            self.changed()

    async def open(self, node: NodeId, member: MemberId, fence: Fence, port: int) -> Tunnel:
        """A tunnel to this port of a member. ``Unavailable`` when its agent is not connected or nobody listens."""
        tunnels = self._nodes.get(node)
        if tunnels is None:
            raise Unavailable("its agent is not connected now", object=f"node {node}", next_step="Try again soon.")
        return await tunnels.open(member, fence, port)
