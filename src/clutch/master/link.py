"""The master's side of the link: who is connected, what is said to them, and where what they say goes.

Control is state: for each kind of thing to say there is one place, and a newer one takes the place of one that was not
sent yet. A connection that does not take what it is sent is cut; its agent comes again and is told everything anew.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

import msgspec
import structlog

from clutch.master.bulk import BulkConnection, Door, Lane, LeftDesk, MetricsReached
from clutch.master.monitor import Monitor
from clutch.master.sockets import Socket
from clutch.master.tunnels import Tunnels
from clutch.wire.errors import BadRequest, ClutchError, Conflict, NotAllowed, NotLeader
from clutch.wire.events import Silent
from clutch.wire.ids import NodeId
from clutch.wire.link import CloseCode, ControlUp, Frames, NodeUse
from clutch.wire.messages import Hello, Refusal, Report, Wanted
from clutch.wire.programs import Kit, KitRequest

KITS_AT_ONCE = 256


class LinkLimits(msgspec.Struct, frozen=True):
    """How patient a master is with a connection."""

    send_within_s: float = 15.0
    """One that does not take a message in this time is cut."""
    silent_after_s: float = 15.0
    """Agents report every second: a control connection on which nothing comes for so long is dead."""
    alive_within_s: float = 2.5
    """How long an agent has to show that it lives when another of its name knocks,"""
    stale_s: float = 0.4
    """not counting what it may have sent just before it died."""


class Kits(Protocol):
    """Who gives what a start needs and nobody writes down."""

    async def kit(self, node: NodeId, request: KitRequest) -> Kit:
        """``Stale`` for an incarnation that is not the current one or not on this node."""
        ...


class AgentLinks:
    """Implements the loop's ``Links``. Call ``serve`` with the loop before the first connection."""

    def __init__(
        self,
        lane: Lane,
        kits: Kits,
        monitor: Monitor,
        metrics_reached: MetricsReached,
        limits: LinkLimits | None = None,
    ) -> None:
        self.tunnels = Tunnels()
        self.left: LeftDesk | None = None
        """Who takes what dead members left of their metrics; set it before the first connection."""
        self._lane = lane
        self._kits = kits
        self._monitor = monitor
        self._metrics_reached = metrics_reached
        self._limits = limits or LinkLimits()
        self._door: Door | None = None
        self._controls: dict[NodeId, _Control] = {}
        self._bulks: dict[NodeId, BulkConnection] = {}
        self._log = structlog.get_logger("clutch.master.link")

    def serve(self, door: Door) -> None:
        """The loop that hears them."""
        self._door = door

    def say(self, node: NodeId, message: Hello | Wanted | Refusal) -> None:
        """To whoever is connected under this name; lost if nobody is."""
        control = self._controls.get(node)
        if control is not None:
            control.say(message)

    def connected(self) -> list[NodeId]:
        return list(self._controls)

    # -- control -------------------------------------------------------------------------------------------------

    async def control(self, socket: Socket, node: NodeId, session: str, token_node: str) -> None:
        """Serve one control connection until it ends. ``token_node`` is whose token it came with."""
        control = _Control(socket, session, self._limits)
        try:
            door = self._admit(node, session, token_node)
            await self._make_room(node, session)
        except ClutchError as refused:
            await control.refuse(refused, _CODES.get(type(refused), CloseCode.BAD_REQUEST))
            return
        self._controls[node] = control
        self._log.info("agent connected", node=node, session=session)
        try:
            await control.run(lambda message: self._heard(door, node, control, message))
        finally:
            if self._controls.get(node) is control:
                del self._controls[node]
                bulk = self._bulks.get(node)
                if bulk is not None and bulk.session == session:
                    await bulk.cut(CloseCode.GOING, "its control connection is gone")
                door.tell(Silent(cause="link", node=node))
                self._log.info("agent disconnected", node=node, session=session)

    def _admit(self, node: NodeId, session: str, token_node: str) -> Door:
        if self._door is None or not self._door.serving.is_set():
            raise NotLeader("this master does not lead now", object="master", next_step="Ask another address.")
        if not node or not session:
            raise BadRequest("it does not say which node and session it is", object="agent")
        if token_node != node:
            raise NotAllowed(
                f"its token is that of node {token_node}",
                object=f"node {node}",
                next_step=f"Enrol it as {node}, or start it with --name {token_node}.",
            )
        return self._door

    async def _make_room(self, node: NodeId, session: str) -> None:
        """A new connection of the same agent takes the place of its old one; a new agent only if the old one is
        silent. ``Conflict`` if that one lives."""
        while (older := self._controls.get(node)) is not None:
            if older.session != session and await self._lives(older):
                raise Conflict(
                    "another agent of this name is connected and alive",
                    object=f"node {node}",
                    next_step="Stop the other one, or start this one with --name of its own.",
                )
            await older.cut(CloseCode.REPLACED, "a newer connection took its place")
            if self._controls.get(node) is older:
                del self._controls[node]

    async def _lives(self, older: _Control) -> bool:
        """Whether it still says something, now that somebody asks."""
        asked_at = time.monotonic()
        until = asked_at + self._limits.alive_within_s
        while time.monotonic() < until and not older.ended.is_set():
            if older.heard_at > asked_at + self._limits.stale_s:
                return True
            await older.next_word(until - time.monotonic())
        return False

    def _heard(self, door: Door, node: NodeId, control: _Control, message: Report | NodeUse | KitRequest) -> None:
        match message:
            case Report():
                if (message.node, message.session) != (node, control.session):
                    raise BadRequest("the report is of another node or session", object=f"node {node}")
                door.hear(message)
            case NodeUse():
                self._monitor.take(node, message)
            case KitRequest():
                control.answer_kit(self._kits, node, message)

    # -- bulk ----------------------------------------------------------------------------------------------------

    async def bulk(self, socket: Socket, node: NodeId, session: str, token_node: str) -> None:
        """Serve one bulk connection until it ends. It belongs to a control connection of the same session."""
        control = self._controls.get(node)
        try:
            door = self._admit(node, session, token_node)
        except ClutchError as refused:
            await socket.close(_CODES.get(type(refused), CloseCode.BAD_REQUEST), refused.cause)
            return
        if control is None or control.session != session:
            await socket.close(CloseCode.CONFLICT, "its control connection is not here")
            return
        older = self._bulks.get(node)
        if older is not None:
            await older.cut(CloseCode.REPLACED, "a newer connection took its place")
        bulk = self._bulks[node] = BulkConnection(socket, (node, session), self._lane, door, self._metrics_reached)
        bulk.left = self.left
        self.tunnels.put(node, bulk.tunnels)
        try:
            await bulk.run()
        finally:
            self.tunnels.remove(node, bulk.tunnels)
            if self._bulks.get(node) is bulk:
                del self._bulks[node]


_CODES: dict[type[ClutchError], CloseCode] = {
    NotLeader: CloseCode.NOT_LEADER,
    NotAllowed: CloseCode.NOT_ALLOWED,
    Conflict: CloseCode.CONFLICT,
}


class _Control:
    """One control connection."""

    def __init__(self, socket: Socket, session: str, limits: LinkLimits) -> None:
        self.session = session
        self._limits = limits
        self.heard_at = 0.0
        self.ended = asyncio.Event()
        self._socket = socket
        self._frames = Frames(ControlUp)
        self._encode = msgspec.msgpack.Encoder().encode
        self._to_say: dict[type, Hello | Wanted | Refusal] = {}
        self._kits: dict[object, Kit] = {}
        self._making: dict[object, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._word = asyncio.Event()

    def say(self, message: Hello | Wanted | Refusal) -> None:
        self._to_say[type(message)] = message
        self._wake.set()

    async def next_word(self, timeout_s: float) -> None:
        """Until it says something, ends, or the time is over."""
        self._word.clear()
        try:
            async with asyncio.timeout(max(0.0, timeout_s)):
                await self._word.wait()
        except TimeoutError:
            return

    async def refuse(self, error: ClutchError, code: CloseCode) -> None:
        try:
            async with asyncio.timeout(self._limits.send_within_s):
                await self._socket.send(self._encode(Refusal(error.view())))
        except (ConnectionError, TimeoutError):
            return
        await self.cut(code, error.cause)

    async def cut(self, code: CloseCode, reason: str) -> None:
        self.ended.set()
        self._word.set()
        try:
            async with asyncio.timeout(1.0):
                await self._socket.close(code, reason)
        except TimeoutError:
            return

    async def run(self, heard: Heard) -> None:
        tasks = [asyncio.create_task(self._receive(heard)), asyncio.create_task(self._send())]
        ended = asyncio.create_task(self.ended.wait())
        try:
            await asyncio.wait([*tasks, ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.ended.set()
            self._word.set()
            for task in [*tasks, ended, *self._making.values()]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, BadRequest):
                await self.refuse(result, CloseCode.BAD_REQUEST)
            elif isinstance(result, TimeoutError):
                await self.cut(CloseCode.SILENT, "nothing was heard or taken for too long")
            elif isinstance(result, Exception) and not isinstance(result, ConnectionError):
                raise result

    async def _receive(self, heard: Heard) -> None:
        while True:
            async with asyncio.timeout(self._limits.silent_after_s):
                data = await self._socket.receive()
            self.heard_at = time.monotonic()
            self._word.set()
            message = self._frames.read(data)
            if message is not None:
                heard(message)

    async def _send(self) -> None:
        while True:
            self._wake.clear()
            while self._to_say or self._kits:
                waiting: dict[type, Hello | Wanted | Refusal] = self._to_say
                places: tuple[type, ...] = (Hello, Refusal, Wanted)
                first = next((place for place in places if place in waiting), None)
                message = waiting.pop(first) if first is not None else self._kits.pop(next(iter(self._kits)))
                async with asyncio.timeout(self._limits.send_within_s):
                    await self._socket.send(self._encode(message))
            await self._wake.wait()

    def answer_kit(self, kits: Kits, node: NodeId, request: KitRequest) -> None:
        """Once for a request that is repeated meanwhile; one too many is not answered and asked again."""
        if request in self._making or len(self._making) >= KITS_AT_ONCE:
            return
        task = asyncio.create_task(self._make_kit(kits, node, request))
        self._making[request] = task
        task.add_done_callback(lambda _: self._making.pop(request, None))

    async def _make_kit(self, kits: Kits, node: NodeId, request: KitRequest) -> None:
        try:
            kit = await kits.kit(node, request)
        except ClutchError as refused:
            kit = Kit(request.member, request.fence, error=str(refused))
        self._kits[request] = kit
        self._wake.set()


class Heard(Protocol):
    def __call__(self, message: Report | NodeUse | KitRequest) -> None: ...
