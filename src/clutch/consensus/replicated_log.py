"""A replicated log for its users: append and know it is committed, follow it from any index, change who keeps it.

    log = await ReplicatedLog.connect(socket_path)
    index = await log.append(b"...", key="cell-17")          # safe to call again with the same key
    async for event in log.follow(from_index=1): ...          # Applied, Restore, SnapshotWanted
    await log.barrier()                                       # this replica now has all that was committed before

This is the user's side, in the user's process; the member itself runs in its own (``consensus.main``), so a user that
holds the interpreter for minutes costs nobody an election. All waits have a deadline; all errors are ``ClutchError``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import msgspec

from clutch.consensus.server import LENGTH, FrameBuffer
from clutch.wire import errors
from clutch.wire.errors import ClutchError, ErrorView, NotLeader, Stale, TimedOut, Unavailable
from clutch.wire.raft import (
    AddLearner,
    Address,
    AppendRequest,
    Applied,
    ClientRequest,
    Consumed,
    Done,
    Entry,
    Failed,
    Promote,
    RaftId,
    ReadBarrier,
    Remove,
    Restore,
    SaveSnapshot,
    ServerMessage,
    SnapshotWanted,
    Status,
    StatusRequest,
    Subscribe,
    Transfer,
)

Event = Applied | Restore | SnapshotWanted
MAX_FRAME_BYTES = 64 << 20
GRACE_S = 2.0
"""How much longer than the member the client waits for the member's own answer."""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[ServerMessage] = msgspec.msgpack.Decoder(ServerMessage)
_ERRORS = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, ClutchError) and kind is not NotLeader
}


def to_error(view: ErrorView, leader: str = "") -> ClutchError:
    """The typed error a view stands for."""
    if view.code == NotLeader.code:
        return NotLeader(view.cause, leader=leader, object=view.object, next_step=view.next_step)
    kind = _ERRORS.get(view.code, ClutchError)
    return kind(view.cause, object=view.object, next_step=view.next_step)


class Application(Protocol):
    """A state machine that lives on a log. ``ReplicatedLog.drive`` feeds it."""

    def apply(self, entries: tuple[Entry, ...]) -> None:
        """Take committed entries, in order, each once."""
        ...

    def save(self, path: Path) -> None:
        """Write the state after everything applied so far."""
        ...

    def restore(self, path: Path, offset: int) -> None:
        """Begin again from the state in this file, which starts at ``offset``."""
        ...


class _Wire(asyncio.BufferedProtocol):
    """The connection to the member."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.waiting: dict[int, asyncio.Future[ServerMessage]] = {}
        self.events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._buffer = FrameBuffer(MAX_FRAME_BYTES)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.room()

    def buffer_updated(self, nbytes: int) -> None:
        for frame in self._buffer.filled(nbytes):
            message = _decoder.decode(frame)
            if isinstance(message, Event):
                self.events.put_nowait(message)
                continue
            waiting = self.waiting.pop(message.id, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        for waiting in self.waiting.values():
            if not waiting.done():
                waiting.set_exception(Unavailable("the member's process is gone", object="replicated log"))
        self.waiting.clear()
        self.events.put_nowait(None)


class ReplicatedLog:
    """One connection to the local member of a group."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire
        self._ids = itertools.count(1)
        self._known = -1  # the highest index this client has seen

    @classmethod
    async def connect(cls, path: Path | str, timeout_s: float = 10.0) -> ReplicatedLog:
        """A connection to the member that listens here, waited for until the deadline."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            try:
                _, wire = await loop.create_unix_connection(_Wire, str(path))
                return cls(wire)
            except (FileNotFoundError, ConnectionRefusedError):
                if loop.time() >= deadline:
                    raise Unavailable("no member listens here", object=str(path)) from None
                await asyncio.sleep(0.02)

    async def close(self) -> None:
        if self._wire.transport is not None:
            self._wire.transport.close()

    async def __aenter__(self) -> ReplicatedLog:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # -------------------------------------------------------------------------------------- the log itself

    async def append(self, data: bytes, key: str = "", timeout_s: float = 10.0) -> int:
        """The index at which the data is committed. With a key, the same call again returns the same index."""
        request = AppendRequest(next(self._ids), key or uuid.uuid4().hex, data, timeout_s, self._known)
        index = await self._index(request, timeout_s)
        self._known = max(self._known, index)
        return index

    async def barrier(self, timeout_s: float = 10.0) -> int:
        """An index that this member has applied, and that is not older than anything acknowledged before the call."""
        return await self._index(ReadBarrier(next(self._ids), timeout_s), timeout_s)

    async def follow(self, from_index: int = 1) -> AsyncIterator[Event]:
        """Every committed entry of clients from this index on, for ever. Behind a snapshot it begins with Restore."""
        await self._index(Subscribe(next(self._ids), from_index), 10.0)
        while (event := await self._wire.events.get()) is not None:
            yield event
            if isinstance(event, Applied):
                self._known = max(self._known, event.upto)
                self._send(Consumed(event.upto))
        raise Unavailable("the member's process is gone", object="replicated log")

    async def save_snapshot(self, index: int, path: Path, timeout_s: float = 60.0) -> int:
        """Give the member the application's state after ``index``; the log before it may go."""
        return await self._index(SaveSnapshot(next(self._ids), index, str(path)), timeout_s)

    async def drive(self, application: Application, scratch: Path) -> None:
        """Feed an application for ever: restore it, apply to it, save it when the log has grown."""
        upto = 0
        saving: asyncio.Task[None] | None = None
        async for event in self.follow():
            match event:
                case Restore():
                    application.restore(Path(event.path), event.offset)
                    upto = event.index
                case Applied():
                    application.apply(event.entries)
                    upto = event.upto
                case SnapshotWanted():
                    if saving is not None:
                        await saving
                    application.save(scratch)
                    saving = asyncio.create_task(self._save(upto, scratch))

    async def _save(self, index: int, path: Path) -> None:
        with contextlib.suppress(Stale):  # a newer one came from the leader meanwhile
            await self.save_snapshot(index, path)

    async def status(self, timeout_s: float = 5.0) -> Status:
        found = await self._ask(StatusRequest(next(self._ids)), timeout_s)
        assert isinstance(found, Status)
        return found

    # ------------------------------------------------------------------------------------------- membership

    async def add_learner(self, address: Address, timeout_s: float = 10.0) -> int:
        """Let a new member follow the log without a vote. Raises NotLeader where this member does not lead."""
        return await self._index(AddLearner(next(self._ids), address, timeout_s), timeout_s)

    async def promote(self, member: RaftId, timeout_s: float = 10.0) -> int:
        """Make a learner that has caught up a voter."""
        return await self._index(Promote(next(self._ids), member, timeout_s), timeout_s)

    async def remove(self, member: RaftId, timeout_s: float = 10.0) -> int:
        return await self._index(Remove(next(self._ids), member, timeout_s), timeout_s)

    async def transfer(self, member: RaftId, timeout_s: float = 5.0) -> int:
        """Hand leadership to another voter."""
        return await self._index(Transfer(next(self._ids), member, timeout_s), timeout_s)

    # -------------------------------------------------------------------------------------------------- inside

    def _send(self, request: ClientRequest) -> None:
        if self._wire.transport is None:
            raise Unavailable("the member's process is gone", object="replicated log")
        payload = _encoder.encode(request)
        if len(payload) < 1 << 16:
            self._wire.transport.write(LENGTH.pack(len(payload)) + payload)
        else:
            self._wire.transport.writelines((LENGTH.pack(len(payload)), payload))

    async def _ask(self, request: ClientRequest, timeout_s: float) -> ServerMessage:
        assert not isinstance(request, Consumed)
        future: asyncio.Future[ServerMessage] = asyncio.get_running_loop().create_future()
        self._wire.waiting[request.id] = future
        self._send(request)
        timer = asyncio.get_running_loop().call_later(timeout_s + GRACE_S, _expire, future)
        try:
            message = await future
        finally:
            timer.cancel()
            self._wire.waiting.pop(request.id, None)
        if isinstance(message, Failed):
            raise to_error(message.error, message.leader)
        return message

    async def _index(self, request: ClientRequest, timeout_s: float) -> int:
        message = await self._ask(request, timeout_s)
        assert isinstance(message, Done)
        return message.index


def _expire(future: asyncio.Future[ServerMessage]) -> None:
    if not future.done():
        future.set_exception(TimedOut("the member did not answer", object="replicated log"))
