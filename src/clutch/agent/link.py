"""The agent's side of the link: two connections to whichever master leads, made again whenever they break.

Control has one place for each kind of thing to say, and a newer one takes the place of one that was not sent yet: what
an agent says is state. So nothing grows while no master answers, and members never notice.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any, Protocol

import msgspec
import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from clutch.agent.relay import Relay
from clutch.agent.shelf import ShelfDoor
from clutch.agent.tunnels import AgentTunnels, Reach
from clutch.wire.errors import BadRequest, TimedOut
from clutch.wire.ids import Fence, MemberId
from clutch.wire.link import (
    BULK_PATH,
    CONTROL_MAX_BYTES,
    CONTROL_PATH,
    FRAME_MAX_BYTES,
    NODE_HEADER,
    PROTOCOL,
    PROTOCOL_HEADER,
    SESSION_HEADER,
    BulkDown,
    ControlDown,
    Frames,
    NodeUse,
    OutputCommitted,
)
from clutch.wire.messages import Hello, Refusal, Report, Wanted
from clutch.wire.metrics import MetricsCommitted
from clutch.wire.programs import Kit, KitRequest

WAIT_LEAST_S, WAIT_MOST_S = 0.1, 3.0
STEADY_AFTER_S = 5.0
"""A connection that held so long was a good one: the next wait begins small again."""
OPEN_WITHIN_S = 5.0
PING_EVERY_S, PONG_WITHIN_S = 2.0, 5.0
REPORT_PAUSE_S = 0.01
KIT_AGAIN_S = 3.0
WRITE_BUFFER_BYTES = 2**20

_BROKEN = (OSError, WebSocketException, TimeoutError, BadRequest)


class LinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    masters: tuple[str, ...]
    node: str
    session: str
    token: str = ""
    ca_file: Path | None = None


class Ears(Protocol):
    """Who hears what the master says on control, and that a connection was made or lost."""

    def heard(self, message: Hello | Wanted | Refusal) -> None: ...
    def connected(self, master: str, address: str) -> None: ...
    def disconnected(self, master: str, reason: str) -> None: ...


class Link:
    """``run`` keeps it up until it is cancelled."""

    def __init__(
        self, settings: LinkSettings, relay: Relay, chance: Random, shelf: ShelfDoor | None = None
    ) -> None:  # fmt: skip
        self._settings = settings
        self._relay = relay
        self._chance = chance
        self._shelf = shelf
        self._frames = Frames(ControlDown), Frames(BulkDown)
        self._encode = msgspec.msgpack.Encoder().encode
        self._report: Report | None = None
        self._use: NodeUse | None = None
        self._kits: dict[tuple[MemberId, Fence], asyncio.Future[Kit]] = {}
        self._kits_to_ask: dict[tuple[MemberId, Fence], None] = {}
        self._connected_at = 0.0
        self._wake = asyncio.Event()
        self._log = structlog.get_logger("clutch.agent")

    # -- what the agent says -------------------------------------------------------------------------------------

    def report(self, report: Report) -> None:
        self._report = report
        self._wake.set()

    def use(self, use: NodeUse) -> None:
        """Exit notes of one that was not sent yet are kept; figures are replaced."""
        if self._use is not None and self._use.exits:
            use = msgspec.structs.replace(use, exits=tuple(dict.fromkeys([*self._use.exits, *use.exits])))
        self._use = use
        self._wake.set()

    async def kit(self, request: KitRequest, timeout_s: float) -> Kit:
        """What a start needs, from the master. Asked again until it answers; ``TimedOut`` after that."""
        key = (request.member, request.fence)
        answer = self._kits.setdefault(key, asyncio.get_running_loop().create_future())
        deadline = time.monotonic() + timeout_s
        try:
            while (left_s := deadline - time.monotonic()) > 0:
                self._kits_to_ask[key] = None
                self._wake.set()
                done, _ = await asyncio.wait([answer], timeout=min(KIT_AGAIN_S, left_s))
                if done:
                    return answer.result()
        finally:
            self._kits.pop(key, None)
            self._kits_to_ask.pop(key, None)
        raise TimedOut(f"no master gave its kit within {timeout_s:g} s", object=str(request.member))

    # -- connections ---------------------------------------------------------------------------------------------

    async def run(self, ears: Ears, reach: Reach) -> None:
        """Every master in turn without a pause, since at most one of them leads; then a pause that grows until a
        connection has held for a while."""
        masters = self._settings.masters
        wait_s = WAIT_LEAST_S
        while True:
            for master in masters:
                self._connected_at = 0.0
                reason = await self._until_broken(master, ears, reach)
                ears.disconnected(master, reason)
                if self._connected_at and time.monotonic() - self._connected_at > STEADY_AFTER_S:
                    wait_s = WAIT_LEAST_S
            await asyncio.sleep(wait_s * self._chance.uniform(0.5, 1.0))
            wait_s = min(wait_s * 2, WAIT_MOST_S)

    async def _until_broken(self, master: str, ears: Ears, reach: Reach) -> str:
        """Be connected to this master; why it ended."""
        try:
            async with self._connect(master, CONTROL_PATH) as socket:
                self._connected_at = time.monotonic()
                ears.connected(master, str((socket.local_address or ("",))[0]))
                await _together(self._hear(socket, ears), self._say(socket), self._keep_bulk(master, reach))
        except _BROKEN as broken:
            return _words(broken)
        return "it was closed"

    def _connect(self, master: str, path: str) -> connect:
        settings = self._settings
        secure = master.startswith("https://")
        headers = {
            NODE_HEADER: settings.node,
            SESSION_HEADER: settings.session,
            PROTOCOL_HEADER: str(PROTOCOL),
            "Authorization": f"Bearer {settings.token}",
        }
        context = ssl.create_default_context(cafile=settings.ca_file) if secure else None
        return connect(
            "ws" + master.removeprefix("http").rstrip("/") + path,
            additional_headers=headers,
            ssl=context,
            compression=None,
            proxy=None,
            open_timeout=OPEN_WITHIN_S,
            ping_interval=PING_EVERY_S,
            ping_timeout=PONG_WITHIN_S,
            close_timeout=1.0,
            max_size=CONTROL_MAX_BYTES if path == CONTROL_PATH else FRAME_MAX_BYTES,
            write_limit=WRITE_BUFFER_BYTES,
        )

    # -- control -------------------------------------------------------------------------------------------------

    async def _hear(self, socket: ClientConnection, ears: Ears) -> None:
        while True:
            message = self._frames[0].read(await _receive(socket))
            if isinstance(message, Kit):
                answer = self._kits.get((message.member, message.fence))
                if answer is not None and not answer.done():
                    answer.set_result(message)
            elif message is not None:
                ears.heard(message)

    async def _say(self, socket: ClientConnection) -> None:
        """Kits first, since somebody waits; then figures, so that the reason of an exit is there before the exit."""
        for key in self._kits:
            self._kits_to_ask[key] = None
        while True:
            while self._kits_to_ask:
                key = next(iter(self._kits_to_ask))
                del self._kits_to_ask[key]
                await socket.send(self._encode(KitRequest(*key)))
            if self._use is not None:
                use, self._use = self._use, None
                await socket.send(self._encode(use))
            if self._report is not None:
                report, self._report = self._report, None
                await socket.send(self._encode(report))
                await asyncio.sleep(REPORT_PAUSE_S)  # many changes at once are one report
            if not self._anything_to_say():
                self._wake.clear()
                await self._wake.wait()

    def _anything_to_say(self) -> bool:
        return bool(self._kits_to_ask) or self._use is not None or self._report is not None

    # -- bulk ----------------------------------------------------------------------------------------------------

    async def _keep_bulk(self, master: str, reach: Reach) -> None:
        """Make the second connection again as long as the first one stands."""
        wait_s = WAIT_LEAST_S
        while True:
            began = time.monotonic()
            try:
                async with self._connect(master, BULK_PATH) as socket:
                    await self._bulk(socket, reach)
            except _BROKEN as broken:
                self._log.debug("bulk is not connected", master=master, reason=_words(broken))
            if time.monotonic() - began > STEADY_AFTER_S:
                wait_s = WAIT_LEAST_S
            await asyncio.sleep(wait_s * self._chance.uniform(0.5, 1.0))
            wait_s = min(wait_s * 2, WAIT_MOST_S)

    async def _bulk(self, socket: ClientConnection, reach: Reach) -> None:
        async def send(frame: object) -> None:
            await socket.send(self._encode(frame))

        tunnels = AgentTunnels(send, reach, self._shelf)
        self._relay.reconnected()
        try:
            await _together(self._ship(socket), self._take(socket, tunnels))
        finally:
            self._relay.disconnected()
            await tunnels.close()

    async def _take(self, socket: ClientConnection, tunnels: AgentTunnels) -> None:
        while True:
            message = self._frames[1].read(await _receive(socket))
            if isinstance(message, OutputCommitted):
                self._relay.committed(message)
            elif isinstance(message, MetricsCommitted):
                self._relay.metrics.committed(message)
            elif message is not None:
                tunnels.heard(message)

    async def _ship(self, socket: ClientConnection) -> None:
        while True:
            await self._relay.wake.wait()
            for frame in self._relay.take():
                await socket.send(self._encode(frame))


async def _together(*works: Coroutine[Any, Any, None]) -> None:
    """All of them until the first ends; the others are ended with it. Not a task group: one that fails in the moment
    in which it is cancelled forgets the cancellation (CPython 3.11), and these fail whenever a link breaks."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


async def _receive(socket: ClientConnection) -> bytes:
    data = await socket.recv(decode=False)
    return bytes(data)


def _words(error: BaseException) -> str:
    if isinstance(error, ConnectionClosed) and error.rcvd is not None:
        return f"the master closed it ({error.rcvd.code} {error.rcvd.reason})".replace(" )", ")")
    if isinstance(error, InvalidStatus):
        return f"the master answered {error.response.status_code}"
    return str(error) or type(error).__name__
