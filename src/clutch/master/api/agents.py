"""The two WebSockets of an agent. What is said on them is ``wire.link``'s; this file only lets the agent in."""

from __future__ import annotations

from typing import Any

from litestar import WebSocket, websocket

from clutch.master.access.caller import Caller
from clutch.master.services import Services
from clutch.master.sockets import LitestarSocket
from clutch.wire.access import Needs
from clutch.wire.ids import NodeId
from clutch.wire.link import (
    BULK_PATH,
    CONTROL_PATH,
    NODE_HEADER,
    PROTOCOL,
    PROTOCOL_HEADER,
    SESSION_HEADER,
    CloseCode,
)

SPOKEN = (PROTOCOL, PROTOCOL - 1)
"""Releases N and N-1 work together."""


@websocket(CONTROL_PATH, opt={"needs": Needs.AGENT})
async def control(socket: WebSocket[Any, Any, Any], services: Services, caller: Caller) -> None:
    if await _accepted(socket):
        await services.links.control(LitestarSocket(socket), *_who(socket), caller.name)


@websocket(BULK_PATH, opt={"needs": Needs.AGENT})
async def bulk(socket: WebSocket[Any, Any, Any], services: Services, caller: Caller) -> None:
    if await _accepted(socket):
        await services.links.bulk(LitestarSocket(socket), *_who(socket), caller.name)


ROUTES = [control, bulk]


async def _accepted(socket: WebSocket[Any, Any, Any]) -> bool:
    await socket.accept()
    spoken = socket.headers.get(PROTOCOL_HEADER, "")
    if spoken.isdigit() and int(spoken) in SPOKEN:
        return True
    await socket.close(CloseCode.BAD_REQUEST, f"protocol {spoken[:20]!r} is not spoken here, only {PROTOCOL}")
    return False


def _who(socket: WebSocket[Any, Any, Any]) -> tuple[NodeId, str]:
    return NodeId(socket.headers.get(NODE_HEADER, "")), socket.headers.get(SESSION_HEADER, "")
