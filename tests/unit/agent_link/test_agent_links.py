"""The master's end of the link, with agents that behave as they like: replaced, refused, cut, never told too soon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from clutch.master.bulk import OutputFrame
from clutch.master.link import AgentLinks, LinkLimits
from clutch.master.monitor import Monitor
from clutch.wire import events as e
from clutch.wire.errors import Stale, Unavailable
from clutch.wire.ids import Fence, MemberId, NodeId, TaskId
from clutch.wire.link import (
    TUNNEL_WINDOW_BYTES,
    BulkDown,
    CloseCode,
    ControlDown,
    ExitNote,
    Frames,
    NodeUse,
    OutputCommitted,
    OutputDone,
    OutputOpen,
    OutputPiece,
    TunnelClose,
    TunnelCredit,
    TunnelData,
    TunnelOpen,
)
from clutch.wire.messages import Hello, Refusal, Report, Wanted
from clutch.wire.programs import Kit, KitRequest
from clutch.wire.resources import Capacity

NODE = NodeId("n1")
MEMBER, FENCE = MemberId(TaskId("t"), "main", 0), Fence(1, 1, 1)
LIMITS = LinkLimits(send_within_s=0.2, silent_after_s=2.0, alive_within_s=0.6, stale_s=0.1)
DEADLINE_S = 10.0


class Socket:
    """One end of a connection in memory. ``stuck``: nobody reads it, so nothing can be sent."""

    def __init__(self, down: Any, stuck: bool = False) -> None:
        self.stuck = stuck
        self.closed: tuple[int, str] | None = None
        self._frames = Frames(down)
        self._up: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._down: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def receive(self) -> bytes:
        data = await self._up.get()
        if data is None:
            raise ConnectionError("closed")
        return data

    async def send(self, data: bytes) -> None:
        if self.closed is not None:
            raise ConnectionError("closed")
        if self.stuck:
            await asyncio.Event().wait()
        self._down.put_nowait(data)

    async def close(self, code: int, reason: str) -> None:
        if self.closed is None:
            self.closed = (code, reason)
            self._up.put_nowait(None)
            self._down.put_nowait(None)

    # -- the agent's end -----------------------------------------------------------------------------------------

    def says(self, message: object) -> None:
        self._up.put_nowait(message if isinstance(message, bytes) else msgspec.msgpack.encode(message))

    def hangs_up(self) -> None:
        self._up.put_nowait(None)

    async def hears(self) -> Any:
        async with asyncio.timeout(DEADLINE_S):
            data = await self._down.get()
        return None if data is None else self._frames.read(data)


class Door:
    """A loop that only remembers, and answers when it is allowed to."""

    def __init__(self) -> None:
        self.serving = asyncio.Event()
        self.serving.set()
        self.heard: asyncio.Queue[Report] = asyncio.Queue()
        self.told: list[e.Event] = []
        self.asked: asyncio.Queue[e.Event] = asyncio.Queue()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    def hear(self, report: Report) -> None:
        self.heard.put_nowait(report)

    def tell(self, event: e.Event) -> None:
        self.told.append(event)

    async def ask(self, event: e.Event) -> None:
        self.asked.put_nowait(event)
        await self.may_answer.wait()


class Lane:
    def __init__(self) -> None:
        self.reached: dict[tuple[MemberId, Fence], OutputCommitted] = {}
        self.batches: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.broken = False

    async def opened(self, member: MemberId, fence: Fence) -> OutputCommitted:
        return self.reached.get((member, fence), OutputCommitted(member, fence, 0, 0))

    async def write(self, frames: Sequence[OutputFrame]) -> list[OutputCommitted]:
        self.batches.append(len(frames))
        await self.gate.wait()
        if self.broken:
            raise Unavailable("the disk is full", object="lane")
        for frame in frames:
            key = (frame.member, frame.fence)
            known = self.reached.get(key, OutputCommitted(*key, 0, 0))
            if isinstance(frame, OutputPiece):
                known = msgspec.structs.replace(known, stdout=frame.offset + len(frame.data))
            elif isinstance(frame, OutputDone):
                known = msgspec.structs.replace(known, done=True)
            self.reached[key] = known
        return [self.reached[key] for key in dict.fromkeys((f.member, f.fence) for f in frames)]


class Kits:
    def __init__(self) -> None:
        self.calls = 0

    async def kit(self, node: NodeId, request: KitRequest) -> Kit:
        self.calls += 1
        await asyncio.sleep(0)
        if request.fence != FENCE:
            raise Stale("a newer incarnation exists", object=str(request.member))
        return Kit(request.member, request.fence, {"NODE": node})


class Ground:
    def __init__(self) -> None:
        self.door, self.lane, self.kits, self.monitor = Door(), Lane(), Kits(), Monitor()
        self.links = AgentLinks(self.lane, self.kits, self.monitor, lambda member, fence: 7, LIMITS)
        self.links.serve(self.door)
        self.tasks: list[asyncio.Task[None]] = []

    def control(self, session: str = "s1", token: str = "n1", stuck: bool = False) -> Socket:
        socket = Socket(ControlDown, stuck)
        self.tasks.append(asyncio.create_task(self.links.control(socket, NODE, session, token)))
        return socket

    def bulk(self, session: str = "s1") -> Socket:
        socket = Socket(BulkDown)
        self.tasks.append(asyncio.create_task(self.links.bulk(socket, NODE, session, "n1")))
        return socket

    async def connected(self, session: str = "s1", stuck: bool = False) -> Socket:
        """A control connection that was let in."""
        socket = self.control(session, stuck=stuck)
        socket.says(report(session))
        async with asyncio.timeout(DEADLINE_S):
            await self.door.heard.get()
        return socket

    async def both(self) -> tuple[Socket, Socket]:
        control = await self.connected()
        return control, self.bulk()

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.fixture
async def ground() -> AsyncIterator[Ground]:
    made = Ground()
    yield made
    await made.end()


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not what():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def report(session: str = "s1", node: NodeId = NODE) -> Report:
    return Report(node, "p", session, 1, 1, 1, 1, 0, Capacity())  # type: ignore[arg-type]


def wanted(sequence: int) -> Wanted:
    return Wanted(NODE, "s1", 1, 1, sequence)


# -- control ------------------------------------------------------------------------------------------------------


async def test_what_is_said_last_takes_the_place_of_what_was_not_sent(ground: Ground) -> None:
    socket = await ground.connected()
    for sequence in range(50):
        ground.links.say(NODE, wanted(sequence))
    ground.links.say(NODE, Hello(1, 1, 1))
    assert await socket.hears() == Hello(1, 1, 1), "who leads comes before what it wants"
    assert await socket.hears() == wanted(49)
    ground.links.say(NodeId("nobody"), wanted(1))


async def test_a_connection_that_does_not_take_what_it_is_sent_is_cut(ground: Ground) -> None:
    socket = await ground.connected(stuck=True)
    ground.links.say(NODE, wanted(1))
    async with asyncio.timeout(DEADLINE_S):
        await ground.tasks[0]
    assert socket.closed is not None and socket.closed[0] == CloseCode.SILENT
    assert ground.door.told == [e.Silent(cause="link", node=NODE)]


async def test_one_that_says_nothing_for_too_long_is_cut(ground: Ground) -> None:
    socket = await ground.connected()
    async with asyncio.timeout(DEADLINE_S):
        await ground.tasks[0]
    assert socket.closed is not None and socket.closed[0] == CloseCode.SILENT


async def test_who_is_not_let_in_hears_why(ground: Ground) -> None:
    stranger = ground.control(token="n2")
    refusal = await stranger.hears()
    assert isinstance(refusal, Refusal) and refusal.error.code == "not_allowed"
    assert await stranger.hears() is None and stranger.closed == (CloseCode.NOT_ALLOWED, refusal.error.cause)
    ground.door.serving.clear()
    early = ground.control()
    refusal = await early.hears()
    assert isinstance(refusal, Refusal) and refusal.error.code == "not_leader"
    await early.hears()
    assert early.closed is not None and early.closed[0] == CloseCode.NOT_LEADER


async def test_the_same_agent_again_takes_its_own_place_at_once(ground: Ground) -> None:
    old = await ground.connected()
    new = await ground.connected()
    assert old.closed is not None and old.closed[0] == CloseCode.REPLACED
    ground.links.say(NODE, wanted(3))
    assert await new.hears() == wanted(3)
    assert not ground.door.told, "it was never away"


async def test_another_agent_of_the_name_is_refused_while_the_first_speaks(ground: Ground) -> None:
    first = await ground.connected()
    second = ground.control("s2")

    async def speak() -> None:
        while True:
            first.says(report())
            await asyncio.sleep(0.02)

    speaking = asyncio.create_task(speak())
    refusal = await second.hears()
    speaking.cancel()
    with suppress(asyncio.CancelledError):
        await speaking
    assert isinstance(refusal, Refusal) and refusal.error.code == "conflict"
    assert await second.hears() is None and second.closed is not None and second.closed[0] == CloseCode.CONFLICT
    ground.links.say(NODE, wanted(1))
    assert await first.hears() == wanted(1)


async def test_another_agent_takes_the_place_of_one_that_is_silent_or_gone(ground: Ground) -> None:
    silent = await ground.connected()
    new = await ground.connected("s2")
    assert silent.closed is not None and silent.closed[0] == CloseCode.REPLACED
    third = ground.control("s3")
    new.hangs_up()
    third.says(report("s3"))
    async with asyncio.timeout(0.5):  # sooner than it would be waited for
        await ground.door.heard.get()


async def test_two_newcomers_at_once_leave_one(ground: Ground) -> None:
    await ground.connected()
    sockets = [ground.control("s2"), ground.control("s2")]
    for socket in sockets:
        socket.says(report("s2"))
    await until(lambda: sum(socket.closed is not None for socket in sockets) == 1)
    assert ground.links.connected() == [NODE]


@pytest.mark.parametrize("junk", [b"", b"\xc1", b"junk", msgspec.msgpack.encode({"type": "report", "node": 3})])
async def test_junk_ends_the_connection_with_a_reason(ground: Ground, junk: bytes) -> None:
    socket = await ground.connected()
    socket.says(junk)
    refusal = await socket.hears()
    assert isinstance(refusal, Refusal) and refusal.error.code == "bad_request"
    await socket.hears()
    assert socket.closed is not None and socket.closed[0] == CloseCode.BAD_REQUEST


async def test_a_message_of_a_later_release_is_ignored_and_one_of_another_node_is_not(ground: Ground) -> None:
    socket = await ground.connected()
    socket.says({"type": "weather", "sun": True})
    socket.says(report())
    async with asyncio.timeout(DEADLINE_S):
        await ground.door.heard.get()
    socket.says(report(node=NodeId("n2")))
    refusal = await socket.hears()
    assert isinstance(refusal, Refusal) and "another node" in refusal.error.cause


async def test_kits_are_given_once_and_refused_in_words(ground: Ground) -> None:
    socket = await ground.connected()
    for _ in range(3):
        socket.says(KitRequest(MEMBER, FENCE))
    assert await socket.hears() == Kit(MEMBER, FENCE, {"NODE": "n1"})
    assert ground.kits.calls == 1
    socket.says(KitRequest(MEMBER, Fence(1, 0, 1)))
    kit = await socket.hears()
    assert isinstance(kit, Kit) and "a newer incarnation exists" in kit.error


async def test_what_is_measured_is_kept_and_bounded(ground: Ground) -> None:
    socket = await ground.connected()
    socket.says(NodeUse(NODE, 1.0, cpu_percent=12.5, exits=(ExitNote(MEMBER, FENCE, "killed by signal 9"),)))
    socket.says(report())
    async with asyncio.timeout(DEADLINE_S):
        await ground.door.heard.get()
    use = ground.monitor.node(NODE)
    assert use is not None and use.cpu_percent == 12.5
    assert ground.monitor.exit_reason(MEMBER, FENCE) == "killed by signal 9"
    for number in range(21_000):
        other = MemberId(TaskId(f"t{number}"), "main", 0)
        ground.monitor.take(NODE, NodeUse(NODE, 1.0, exits=(ExitNote(other, FENCE, "x"),)))
    assert ground.monitor.exit_reason(MEMBER, FENCE) == ""


# -- bulk ---------------------------------------------------------------------------------------------------------


async def test_bulk_belongs_to_a_control_connection(ground: Ground) -> None:
    alone = ground.bulk()
    assert await alone.hears() is None and alone.closed is not None and alone.closed[0] == CloseCode.CONFLICT
    control, bulk = await ground.both()
    bulk.says(OutputOpen(MEMBER, FENCE))
    assert await bulk.hears() == OutputCommitted(MEMBER, FENCE, 0, 0)
    control.hangs_up()
    assert await bulk.hears() is None and bulk.closed is not None


async def test_the_end_of_an_incarnation_is_told_only_when_the_loop_has_taken_it_in(ground: Ground) -> None:
    """Its agent removes the directory on hearing it; a master that dies before would wait for ever for the output."""
    _, bulk = await ground.both()
    ground.door.may_answer.clear()
    bulk.says(OutputPiece(MEMBER, FENCE, "stdout", 0, 1.0, b"abc"))
    bulk.says(OutputDone(MEMBER, FENCE, 3, 0))
    async with asyncio.timeout(DEADLINE_S):
        asked = await ground.door.asked.get()
        while (heard := await bulk.hears()).stdout < 3:
            pass
    assert asked == e.ReachLanes(
        cause="lanes:t/main.0", member=MEMBER, fence=FENCE, metrics_sequence=7, output_offset=3
    )
    assert not heard.done, "it was told too soon"
    ground.door.may_answer.set()
    while not (await bulk.hears()).done:
        pass
    bulk.says(OutputOpen(MEMBER, FENCE))
    assert await bulk.hears() == OutputCommitted(MEMBER, FENCE, 3, 0, True)
    assert ground.door.asked.qsize() == 1, "a new master's loop hears of it again"


async def test_while_one_batch_is_written_the_next_collects(ground: Ground) -> None:
    _, bulk = await ground.both()
    ground.lane.gate.clear()
    for number in range(100):
        bulk.says(OutputPiece(MEMBER, FENCE, "stdout", number, 1.0, b"x"))
        await asyncio.sleep(0)
    await until(lambda: bool(ground.lane.batches))
    ground.lane.gate.set()
    while (await bulk.hears()).stdout < 100:
        pass
    assert sum(ground.lane.batches) == 100 and len(ground.lane.batches) <= 3


async def test_a_lane_that_fails_cuts_the_connection_and_acknowledges_nothing(ground: Ground) -> None:
    _, bulk = await ground.both()
    ground.lane.broken = True
    bulk.says(OutputPiece(MEMBER, FENCE, "stdout", 0, 1.0, b"x"))
    assert await bulk.hears() is None
    assert bulk.closed is not None and bulk.closed[0] == CloseCode.GOING and "disk is full" in bulk.closed[1]


# -- tunnels ------------------------------------------------------------------------------------------------------


async def test_a_tunnel_opens_carries_and_ends(ground: Ground) -> None:
    _, bulk = await ground.both()
    await asyncio.sleep(0)
    opening = asyncio.create_task(ground.links.tunnels.open(NODE, MEMBER, FENCE, 8888))
    asked = await bulk.hears()
    assert asked == TunnelOpen(asked.tunnel, MEMBER, FENCE, 8888)
    bulk.says(TunnelCredit(asked.tunnel, 0))
    tunnel = await opening
    writing = asyncio.create_task(tunnel.write(b"w" * (TUNNEL_WINDOW_BYTES + 10)))
    sent = 0
    while sent < TUNNEL_WINDOW_BYTES:
        sent += len((await bulk.hears()).data)
    assert sent == TUNNEL_WINDOW_BYTES and not writing.done(), "it waits for credit"
    bulk.says(TunnelCredit(asked.tunnel, 10))
    assert len((await bulk.hears()).data) == 10
    await writing
    bulk.says(TunnelData(asked.tunnel, b"answer"))
    assert await tunnel.read() == b"answer"
    assert await bulk.hears() == TunnelCredit(asked.tunnel, 6)
    bulk.says(TunnelClose(asked.tunnel, half=True))
    assert await tunnel.read() == b""
    await tunnel.finish()
    assert await bulk.hears() == TunnelClose(asked.tunnel, half=True)


async def test_a_tunnel_that_cannot_be_opened_or_breaks_says_so(ground: Ground) -> None:
    with pytest.raises(Unavailable, match="not connected"):
        await ground.links.tunnels.open(NODE, MEMBER, FENCE, 1)
    control, bulk = await ground.both()
    await asyncio.sleep(0)
    opening = asyncio.create_task(ground.links.tunnels.open(NODE, MEMBER, FENCE, 1))
    bulk.says(TunnelClose((await bulk.hears()).tunnel, error="nobody listens"))
    with pytest.raises(Unavailable, match="nobody listens"):
        await opening
    opening = asyncio.create_task(ground.links.tunnels.open(NODE, MEMBER, FENCE, 2))
    number = (await bulk.hears()).tunnel
    bulk.says(TunnelCredit(number, 0))
    tunnel = await opening
    for _ in range(5):
        bulk.says(TunnelData(number, b"f" * 65536))  # more than it was allowed
    with pytest.raises(Unavailable, match="more than it may"):
        for _ in range(6):
            await tunnel.read()
    opening = asyncio.create_task(ground.links.tunnels.open(NODE, MEMBER, FENCE, 3))
    bulk.says(TunnelCredit((await _next(bulk, TunnelOpen)).tunnel, 0))
    tunnel = await opening
    control.hangs_up()
    with pytest.raises(Unavailable, match="gone"):
        await tunnel.read()


async def _next(socket: Socket, kind: type) -> Any:
    while not isinstance(heard := await socket.hears(), kind):
        assert heard is not None
    return heard


async def test_a_tunnel_that_nobody_waits_for_any_more_is_closed(ground: Ground) -> None:
    _, bulk = await ground.both()
    await asyncio.sleep(0)
    opening = asyncio.create_task(ground.links.tunnels.open(NODE, MEMBER, FENCE, 1))
    number = (await bulk.hears()).tunnel
    opening.cancel()
    closed = await bulk.hears()
    assert isinstance(closed, TunnelClose) and closed.tunnel == number and not closed.half
