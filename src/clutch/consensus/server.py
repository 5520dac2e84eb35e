"""The local door of a member: a Unix socket on which its user's process appends, reads and follows.

Only the same user (or root) may connect. Frames are a length and a msgpack value (``wire.raft.ClientRequest`` in,
``ServerMessage`` out). A connection has bounded buffers: a follower of the log gets more only when it has consumed what
it has, and one that sends more than an entry may have is refused.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from clutch.consensus import snapshots
from clutch.consensus.proposals import Done
from clutch.wire.errors import BadRequest, ClutchError, NotAllowed, NotLeader, TooLarge
from clutch.wire.raft import (
    AddLearner,
    AppendRequest,
    Applied,
    ClientRequest,
    Consumed,
    Failed,
    Promote,
    ReadBarrier,
    Remove,
    Restore,
    SaveSnapshot,
    ServerMessage,
    SnapshotWanted,
    StatusRequest,
    Subscribe,
    Transfer,
)
from clutch.wire.raft import Done as DoneMessage

if TYPE_CHECKING:
    from clutch.consensus.driver import Driver

LENGTH = struct.Struct("<I")
FRAME_SLACK_BYTES = 64 << 10
SCRATCH_BYTES = 256 << 10
FOLLOW_BYTES = 4 << 20
"""Sent ahead of what a follower has consumed."""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[ClientRequest] = msgspec.msgpack.Decoder(ClientRequest)


class FrameBuffer:
    """Bytes in, whole frames out. Meant for ``asyncio.BufferedProtocol``: a large frame is received where it stays."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._scratch = bytearray(SCRATCH_BYTES)
        self._filled = 0
        self._large: bytearray | None = None  # a frame larger than the scratch, being filled
        self._large_filled = 0

    def room(self) -> memoryview:
        """Where the next bytes go."""
        if self._large is not None:
            return memoryview(self._large)[self._large_filled :]
        return memoryview(self._scratch)[self._filled :]

    def filled(self, count: int) -> list[memoryview]:
        """Every frame that is complete now. Raises TooLarge for one that could never be.

        What is returned is valid until ``room`` is asked for again.
        """
        if self._large is not None:
            self._large_filled += count
            if self._large_filled < len(self._large):
                return []
            frame, self._large = self._large, None
            return [memoryview(frame)]
        self._filled += count
        found: list[memoryview] = []
        at = 0
        while self._filled - at >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._scratch, at)
            if length > self._max_bytes:
                raise TooLarge(f"a frame of {length} bytes, at most {self._max_bytes} are taken", object="client")
            if self._filled - at < LENGTH.size + length:
                if LENGTH.size + length > SCRATCH_BYTES:
                    self._begin_large(at + LENGTH.size, length)
                    at = self._filled
                break
            found.append(memoryview(self._scratch)[at + LENGTH.size : at + LENGTH.size + length])
            at += LENGTH.size + length
        left = self._filled - at
        if left and at:
            kept = bytes(self._scratch[at : self._filled])
            found = [memoryview(bytes(f)) for f in found]
            self._scratch[:left] = kept
        self._filled = left
        return found

    def _begin_large(self, start: int, length: int) -> None:
        self._large = bytearray(length)
        self._large_filled = self._filled - start
        self._large[: self._large_filled] = self._scratch[start : self._filled]


class Connection(asyncio.BufferedProtocol):
    """One local client."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._driver = server.driver
        self._transport: asyncio.Transport | None = None
        self._buffer = FrameBuffer(server.driver.limits.max_entry_bytes + FRAME_SLACK_BYTES)
        self._out: list[bytes] = []
        self._cursor: int | None = None  # the last index sent to a follower
        self._ahead: list[tuple[int, int]] = []  # (index, bytes) sent and not consumed
        self._asked_snapshot = False

    # ------------------------------------------------------------------------------------------- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("socket")
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, _ = struct.unpack("3i", credentials)
        if uid not in (0, os.getuid()):
            self._reply(Failed(0, NotAllowed("another user's member", object=f"uid {uid}").view()))
            self.flush()
            transport.close()
            return
        self._server.connections[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.pop(self, None)
        self._transport = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.room()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._buffer.filled(nbytes):
                self._take(_decoder.decode(frame))
        except (TooLarge, msgspec.MsgspecError) as error:
            reason = error if isinstance(error, TooLarge) else BadRequest(str(error), object="client")
            self._reply(Failed(0, reason.view()))
            self.flush()
            if self._transport is not None:
                self._transport.close()
            return
        self._driver.work()

    # ------------------------------------------------------------------------------------------ requests

    def _take(self, request: ClientRequest) -> None:
        driver, requests = self._driver, self._driver.member.requests
        match request:
            case AppendRequest():
                full = driver.disk_full()
                if full is not None:
                    self._answer(request.id)(full)
                    return
                ticks = driver.ticks_of(request.timeout_s)
                requests.append(request.key, request.data, request.since, ticks, self._answer(request.id))
            case Consumed():
                self._ahead = [(index, size) for index, size in self._ahead if index > request.index]
            case Subscribe():
                self._cursor = max(0, request.from_index - 1)
                self._ahead = []
                self._reply(DoneMessage(request.id, request.from_index))
            case StatusRequest():
                self._reply(driver.status(request.id))
            case SaveSnapshot():
                driver.save_snapshot(request.index, Path(request.path), self._after_snapshot(request.id))
            case _:
                self._take_timed(request)

    def _take_timed(self, request: ReadBarrier | AddLearner | Promote | Remove | Transfer) -> None:
        requests = self._driver.member.requests
        ticks = self._driver.ticks_of(request.timeout_s)
        done = self._answer(request.id)
        match request:
            case ReadBarrier():
                requests.read(ticks, done)
            case AddLearner():
                requests.add_learner(request.address, ticks, done)
            case Promote():
                requests.promote(request.member, ticks, done)
            case Remove():
                requests.remove(request.member, ticks, done)
            case Transfer():
                requests.transfer(request.member, ticks, done)

    def _answer(self, request_id: int) -> Done:
        def done(outcome: int | ClutchError) -> None:
            if isinstance(outcome, ClutchError):
                leader = outcome.leader if isinstance(outcome, NotLeader) else ""
                self._reply(Failed(request_id, outcome.view(), leader))
            else:
                self._reply(DoneMessage(request_id, outcome))

        return done

    def _after_snapshot(self, request_id: int) -> Done:
        """Another snapshot is asked for only after this one has made the log shorter, or failed to."""
        answer = self._answer(request_id)

        def done(outcome: int | ClutchError) -> None:
            self._asked_snapshot = False
            answer(outcome)

        return done

    # ------------------------------------------------------------------------------------------- answers

    def _reply(self, message: ServerMessage) -> None:
        payload = _encoder.encode(message)
        self._out.append(LENGTH.pack(len(payload)))
        self._out.append(payload)

    def flush(self) -> None:
        """Send what has gathered, and to a follower what it may have."""
        if self._transport is None:
            return
        if self._cursor is not None:
            self._follow()
        if self._out:
            pieces, self._out = self._out, []
            self._transport.writelines(pieces)

    def _follow(self) -> None:
        member = self._driver.member
        assert self._cursor is not None
        while sum(size for _, size in self._ahead) < FOLLOW_BYTES and self._cursor < member.raft.state.log.applied:
            found = member.applied_after(self._cursor, FOLLOW_BYTES // 4)
            if found is None:
                self._restore()
                continue
            entries, upto = found
            if upto == self._cursor:
                break
            self._reply(Applied(tuple(entries), upto))
            self._cursor = upto
            self._ahead.append((upto, sum(len(e.data) + 64 for e in entries)))
        if member.wants_snapshot and not self._asked_snapshot:
            self._asked_snapshot = True
            self._reply(SnapshotWanted(member.raft.state.log.applied))

    def _restore(self) -> None:
        """What it asks for is inside a snapshot: let it start there."""
        member = self._driver.member
        snapshot = member.raft.state.log.snapshot
        name = snapshots.file_name(snapshot)
        _, offset = snapshots.read_head(member.files, name)
        self._reply(Restore(snapshot.index, str(self._driver.folder / name), offset))
        self._cursor = snapshot.index


class Server:
    """The socket and its connections."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.connections: dict[Connection, None] = {}
        self._server: asyncio.Server | None = None

    async def listen(self, path: Path) -> None:
        self._remove(path)
        loop = asyncio.get_running_loop()
        before = os.umask(0o177)
        try:
            self._server = await loop.create_unix_server(lambda: Connection(self), path=str(path))
        finally:
            os.umask(before)

    def _remove(self, path: Path) -> None:
        """A socket left behind by a killed process: the folder's lock says that nobody else uses it."""
        path.unlink(missing_ok=True)

    def flush(self) -> None:
        for connection in list(self.connections):
            connection.flush()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.flush()
            if connection._transport is not None:
                connection._transport.close()
