"""The proxy's door: who may enter, where it leads, and the two ways through it."""

from __future__ import annotations

import asyncio
from typing import Protocol
from urllib.parse import quote

from clutch.master.access.caller import Caller
from clutch.master.idle import IdleWatch
from clutch.master.loop import Clock, Loop
from clutch.master.proxy import headers, tickets
from clutch.master.proxy.http import Exchange, Pipe, Receive, Scope, Send
from clutch.master.proxy.ports import Target, parse, target
from clutch.master.proxy.websocket import Bridge
from clutch.wire.access import CallerKind, Role
from clutch.wire.errors import ClutchError, NotAllowed, TimedOut
from clutch.wire.ids import Fence, MemberId, NodeId, TaskId
from clutch.wire.link import MemberUse
from clutch.wire.proof import PROOF_HEADER, proof

OPEN_TIMEOUT_S = 10.0
PREFIX = "/proxy"


class Identity(Protocol):
    """As much of access as the proxy needs."""

    async def identify(self, bearer: str) -> Caller: ...

    async def as_user(self, user: str) -> Caller:
        """What this user may do now; ``NotAuthenticated`` for one that is gone or not active."""
        ...

    def task_token(self, member: MemberId, fence: Fence) -> str: ...


class Roads(Protocol):
    """A way to a member's port."""

    async def open(self, node: NodeId, member: MemberId, fence: Fence, port: int) -> Pipe: ...


class Uses(Protocol):
    """What agents last measured of a node's members."""

    def members(self, node: NodeId) -> tuple[MemberUse, ...]: ...


class Proxy:
    """``/proxy/TASK/PORT/...``, HTTP and WebSocket. Needs the role editor in the task's workspace: behind a port may be
    a terminal."""

    def __init__(
        self, loop: Loop, clock: Clock, identity: Identity, roads: Roads, uses: Uses, keys: tickets.Keys
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._identity = identity
        self._roads = roads
        self._uses = uses
        self._keys = keys
        self.idle = IdleWatch()

    def address(self, caller: Caller, task: TaskId, port: int) -> str:
        """The path that opens this port in a browser, with a ticket in it."""
        until = self._clock.now() + tickets.TICKET_S
        ticket = tickets.make(self._keys, tickets.Ticket(caller.name, task, until))
        return f"{PREFIX}/{quote(task)}/{port}/?{tickets.QUERY}={ticket}"

    async def enter(self, scope: Scope, task: TaskId) -> str:
        """The ticket with which somebody came in from a browser, else empty. Raises when they may not enter."""
        found = self._loop.state.tasks.get(task)
        bearer = headers.bearer_in(scope["headers"])
        if bearer:
            caller, text = await self._identity.identify(bearer), ""
        else:
            text = headers.ticket_in(scope.get("query_string", b"")) or headers.cookie_in(scope["headers"])
            ticket = tickets.check(self._keys, text, task, self._clock.now())
            caller = await self._identity.as_user(ticket.user)
        if caller.kind is not CallerKind.USER:
            raise NotAllowed(f"{caller} may not use the proxy", object=f"task {task}")
        # Where nothing is found, somebody who may not look must not learn it.
        caller.require(found.spec.workspace if found else "", f"task {task}", Role.EDITOR)
        return text

    async def handle(self, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        """Answer one request. Raises before anything was said, or not at all."""
        task, port, rest = parse(path)
        ticket = await self.enter(scope, task)
        prefix = f"{PREFIX}/{quote(task)}/{port}"
        if scope["type"] == "http" and headers.ticket_in(scope.get("query_string", b"")):
            await self._keep_ticket(scope, send, prefix, rest, ticket)
            return
        place = target(self._loop.state, task, port, self._seen(task))
        self.idle.opened(task, self._clock.now())
        try:
            await self._through(scope, receive, send, (place, prefix, rest))
        finally:
            self.idle.closed(task, self._clock.now())

    def _seen(self, task: TaskId) -> tuple[MemberUse, ...]:
        nodes = {m.placement.node for m in self._loop.state.members_of(task) if m.placement is not None}
        return tuple(use for node in sorted(nodes) for use in self._uses.members(node))

    async def _keep_ticket(self, scope: Scope, send: Send, prefix: str, rest: str, ticket: str) -> None:
        """Put the ticket into a cookie and show the page at an address that can be shared."""
        query = headers.without_ticket(scope["query_string"])
        place = rest + (f"?{query.decode('ascii')}" if query else "")
        secure = "; Secure" if scope.get("scheme") == "https" else ""
        cookie = f"{tickets.COOKIE}={ticket}; Path={prefix}; HttpOnly; SameSite=Lax{secure}"
        said = [(b"location", f"{prefix}{place}".encode()), (b"set-cookie", cookie.encode())]
        said += [(b"content-length", b"0"), (b"referrer-policy", b"no-referrer")]
        await send({"type": "http.response.start", "status": 303, "headers": said})
        await send({"type": "http.response.body", "body": b""})

    async def _through(self, scope: Scope, receive: Receive, send: Send, way: tuple[Target, str, str]) -> None:
        place, prefix, rest = way
        passed = headers.to_task(scope["headers"], prefix, f"localhost:{place.port}")
        token = self._identity.task_token(place.member, place.fence)
        passed.append((PROOF_HEADER.lower().encode(), proof(token).encode()))
        query = headers.without_ticket(scope.get("query_string", b""))
        path = rest + (f"?{query.decode('latin-1')}" if query else "")
        pipe = await self._open(place)
        try:
            if scope["type"] == "websocket":
                wished = tuple(scope.get("subprotocols") or ())
                await Bridge(pipe, path, passed, wished).run(receive, send)
                return
            exchange = Exchange(pipe, prefix)
            try:
                await exchange.run(scope["method"], path.encode("ascii"), [*passed, _CLOSE], receive, send)
            except ClutchError:
                if not exchange.began:
                    raise
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await pipe.close()

    async def _open(self, place: Target) -> Pipe:
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                return await self._roads.open(place.node, place.member, place.fence, place.port)
        except TimeoutError:
            raise TimedOut(
                f"node {place.node} did not open the port within {OPEN_TIMEOUT_S:g} s",
                object=f"port {place.port} of {place.member}",
                next_step="Look whether its agent is connected: clutch agent list.",
            ) from None


_CLOSE = (b"connection", b"close")
