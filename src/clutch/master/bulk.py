"""One bulk connection of an agent: its output into the lane, metrics that dead members left, tunnels to living ones.

While one batch is being made durable the next one collects, so the disk's latency is paid once for all that came
meanwhile. The agent never is more than its window ahead; one that is anyway is not read until the lane has caught up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import structlog

from clutch.master.sockets import Socket
from clutch.master.tunnels import NodeTunnels
from clutch.wire.errors import BadRequest, ClutchError
from clutch.wire.events import Event, ReachLanes
from clutch.wire.ids import Fence, MemberId, NodeId
from clutch.wire.link import (
    METRICS_BATCH_MAX_BYTES,
    OUTPUT_WINDOW_BYTES,
    BulkUp,
    CloseCode,
    Frames,
    MetricsOpen,
    MetricsPiece,
    OutputCommitted,
    OutputDone,
    OutputGap,
    OutputOpen,
    OutputPiece,
)
from clutch.wire.messages import Report
from clutch.wire.metrics import MetricsCommitted

SEND_WITHIN_S = 15.0
ASK_WITHIN_S = 30.0
PENDING_FRAMES_MAX = 4096
QUEUE_MAX = 1024
TELL_EVERY_S = 1.0

OutputFrame = OutputPiece | OutputGap | OutputDone
MetricsReached = Callable[[MemberId, Fence], int]
"""The sequence up to which a dead member's metrics are stored and heard."""


class Lane(Protocol):
    """Where output becomes durable."""

    async def opened(self, member: MemberId, fence: Fence) -> OutputCommitted:
        """What the store has of it."""
        ...

    async def write(self, frames: Sequence[OutputFrame]) -> list[OutputCommitted]:
        """Returns when all of it is durable. Safe to call from several connections at once."""
        ...


class LeftDesk(Protocol):
    """Where metrics go that a dead member left."""

    async def opened(self, member: MemberId, fence: Fence) -> MetricsCommitted: ...

    async def take(self, member: MemberId, fence: Fence, lines: bytes) -> MetricsCommitted:
        """Returns when all of it is durable and the loop has taken it in, or says why it is refused."""
        ...


class Door(Protocol):
    """The part of the master's loop that links use."""

    serving: asyncio.Event

    def hear(self, report: Report) -> None: ...

    def tell(self, event: Event) -> None: ...

    async def ask(self, event: Event) -> Any: ...


class BulkConnection:
    """``run`` serves it until it ends."""

    def __init__(
        self, socket: Socket, agent: tuple[NodeId, str], lane: Lane, door: Door, metrics_reached: MetricsReached
    ) -> None:
        self.node, self.session = agent
        self.tunnels = NodeTunnels(self.node, self._send)
        self._socket = socket
        self._lane = lane
        self._door = door
        self._metrics_reached = metrics_reached
        self._frames = Frames(BulkUp)
        self._encode = msgspec.msgpack.Encoder().encode
        self._sending = asyncio.Lock()
        self._pending: list[OutputFrame] = []
        self._pending_bytes = 0
        self._more = asyncio.Event()
        self._room = asyncio.Event()
        self._opens: asyncio.Queue[OutputOpen] = asyncio.Queue(QUEUE_MAX)
        self._ends: asyncio.Queue[OutputCommitted] = asyncio.Queue(QUEUE_MAX)
        self.left: LeftDesk | None = None
        """Without one, metrics that members left are not taken here."""
        self._left: asyncio.Queue[MetricsOpen | MetricsPiece] = asyncio.Queue(QUEUE_MAX)
        self._parts: dict[tuple[MemberId, Fence], bytearray] = {}
        self._told_at: dict[tuple[MemberId, Fence], float] = {}
        self._cut = asyncio.Event()
        self._log = structlog.get_logger("clutch.master.link")

    async def cut(self, code: CloseCode, reason: str) -> None:
        self._cut.set()
        try:
            async with asyncio.timeout(1.0):
                await self._socket.close(code, reason)
        except TimeoutError:
            return

    async def run(self) -> None:
        works = (self._receive(), self._open(), self._write(), self._conclude(), self._take_left())
        tasks = [asyncio.create_task(work) for work in works]
        cut = asyncio.create_task(self._cut.wait())
        try:
            await asyncio.wait([*tasks, cut], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.tunnels.broke("the connection to its node is gone")
            for task in [*tasks, cut]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, BadRequest):
                await self.cut(CloseCode.BAD_REQUEST, result.cause)
            elif isinstance(result, ClutchError | TimeoutError):
                self._log.warning("output stops for now", node=self.node, error=str(result) or "too slow")
                await self.cut(CloseCode.GOING, str(result) or "too slow")
            elif isinstance(result, Exception) and not isinstance(result, ConnectionError):
                raise result

    async def _send(self, frame: object) -> None:
        async with self._sending, asyncio.timeout(SEND_WITHIN_S):
            await self._socket.send(self._encode(frame))

    # -- in ------------------------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        while True:
            message = self._frames.read(await self._socket.receive())
            match message:
                case OutputPiece() | OutputGap() | OutputDone():
                    await self._collect(message)
                case OutputOpen():
                    await self._opens.put(message)
                case MetricsOpen() | MetricsPiece():
                    await self._left.put(message)
                case None:
                    continue
                case _:
                    self.tunnels.heard(message)

    async def _collect(self, frame: OutputFrame) -> None:
        while self._pending_bytes >= 2 * OUTPUT_WINDOW_BYTES or len(self._pending) >= PENDING_FRAMES_MAX:
            self._room.clear()
            await self._room.wait()
        self._pending.append(frame)
        self._pending_bytes += len(frame.data) if isinstance(frame, OutputPiece) else 0
        self._more.set()

    # -- to the lane and back ------------------------------------------------------------------------------------

    async def _open(self) -> None:
        """Say what is there already. A new master's loop hears of it too: it may wait for exactly that."""
        while True:
            wish = await self._opens.get()
            committed = await self._lane.opened(wish.member, wish.fence)
            if committed.done:
                await self._ends.put(committed)
            else:
                await self._committed(committed)

    async def _write(self) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            batch, self._pending, self._pending_bytes = self._pending, [], 0
            self._room.set()
            for committed in await self._lane.write(batch) if batch else ():
                await self._committed(msgspec.structs.replace(committed, done=False))
                if committed.done:
                    await self._ends.put(committed)

    async def _committed(self, committed: OutputCommitted) -> None:
        """More is durable. While it runs the loop need not hear of each line: it asks only about what has ended."""
        key, now = (committed.member, committed.fence), time.monotonic()
        if now - self._told_at.get(key, 0.0) >= TELL_EVERY_S:
            self._told_at[key] = now
            self._door.tell(self._reached(committed))
        await self._send(committed)

    async def _conclude(self) -> None:
        """All of an incarnation is durable. Its agent removes it on hearing that, so the loop must have taken it in
        first: if this master dies in between, the agent still has it and says so to the next one."""
        while True:
            ended = [await self._ends.get()]
            while not self._ends.empty():
                ended.append(self._ends.get_nowait())
            async with asyncio.timeout(ASK_WITHIN_S):
                await asyncio.gather(*(self._door.ask(self._reached(committed)) for committed in ended))
            for committed in ended:
                self._told_at.pop((committed.member, committed.fence), None)
                await self._send(committed)

    def _reached(self, committed: OutputCommitted) -> ReachLanes:
        member, fence = committed.member, committed.fence
        return ReachLanes(
            cause=f"lanes:{member}",
            member=member,
            fence=fence,
            metrics_sequence=self._metrics_reached(member, fence),
            output_offset=committed.stdout + committed.stderr,
        )

    # -- metrics of the dead -------------------------------------------------------------------------------------

    async def _take_left(self) -> None:
        """One piece after the other. Each incarnation has one under way at most."""
        while True:
            message = await self._left.get()
            if self.left is None:
                continue
            key = (message.member, message.fence)
            if isinstance(message, MetricsOpen):
                self._parts.pop(key, None)
                await self._send(await self.left.opened(*key))
                continue
            whole = self._parts.setdefault(key, bytearray())
            whole += message.lines
            if sum(map(len, self._parts.values())) > 4 * METRICS_BATCH_MAX_BYTES:
                raise BadRequest("batches of metrics in pieces that do not end", object=str(message.member))
            if not message.more:
                del self._parts[key]
                await self._send(await self.left.take(*key, bytes(whole)))
