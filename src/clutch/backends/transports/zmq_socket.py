"""A ZeroMQ socket on an asyncio loop: read while there is room, send with a deadline, hear of its connections.

ZeroMQ signals *changes* on one file descriptor and forgets them when the socket is used, so after each use the socket
is looked at once more (``wake``). Heartbeats are ZeroMQ's own and run in its thread: a loop that is busy with
a training step for minutes does not look dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from clutch.backends.transports.base import Options
from clutch.backends.transports.inbox import Doorbell
from clutch.backends.transports.keys import KeyPair
from clutch.wire.errors import Unavailable

AT_ONCE = 128
COPY_BELOW_BYTES = 64 << 10
LOOK_AGAIN_S = 0.02
HANDSHAKE_MS = 10_000
FRAME_SLACK_BYTES = 1 << 20
FAILED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_IN = int(zmq.POLLIN)  # plain numbers: the named ones cost a microsecond each time they are joined
_LAST = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
WATCHED = FAILED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class LoopSocket:
    """One socket and its monitor. All calls are from the loop's thread."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        on_frames: Callable[[list[Any]], None],
        on_event: Callable[[int, int], None],
        *,
        wants: Callable[[], bool] = lambda: True,
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.socket = socket
        self._on_frames = on_frames
        self._on_event = on_event
        self._wants = wants
        self._on_idle = on_idle
        self._monitor = socket.get_monitor_socket(WATCHED)
        self._writable = Doorbell()
        self._turn = asyncio.Lock()
        self._queued = 0
        self._scheduled = False
        self.closed = False
        self._loop.add_reader(socket.FD, self._pump)
        self._loop.add_reader(self._monitor.FD, self._on_monitor)
        self._loop.call_soon(self._on_monitor)

    def wake(self) -> None:
        """Look at the socket soon."""
        if not self._scheduled and not self.closed:
            self._scheduled = True
            self._loop.call_soon(self._pump)

    def hear(self) -> None:
        """Tell of connections made and lost until now."""
        while not self.closed:
            try:
                event = recv_monitor_message(self._monitor, zmq.NOBLOCK)
            except zmq.Again:
                return
            self._on_event(int(event["event"]), int(event["value"]))

    def send_now(self, frames: Sequence[Any], size: int) -> bool:
        """Queue a message; False if its queue is full. ``Unavailable`` if there is no such connection."""
        if self.closed:
            raise Unavailable("this connection is closed", object="transport")
        copy = size < COPY_BELOW_BYTES
        try:
            try:
                self._put(frames, copy)
            except zmq.Again:
                self.socket.get(zmq.EVENTS)  # makes it notice room, or a connection, that came a moment ago
                self._put(frames, copy)
        except zmq.Again:
            self._look()
            return False
        except zmq.ZMQError as error:
            raise Unavailable(f"the connection says: {error.strerror}", object="transport") from error
        self._look()
        return True

    async def send(self, frames: Sequence[Any], size: int, until: float) -> bool:
        """Queue a message as soon as there is room; False when the loop's time has reached ``until``."""
        while not self.send_now(frames, size):
            look_again = min(until, self._loop.time() + LOOK_AGAIN_S)
            if not await self._writable.wait(look_again) and self._loop.time() >= until:
                return False
        return True

    async def send_in_turn(self, frames: Sequence[Any], size: int, until: float) -> bool:
        """As ``send``, in the order of the calls."""
        if not self._queued and self.send_now(frames, size):
            return True
        self._queued += 1
        try:
            async with asyncio.timeout_at(until):
                await self._turn.acquire()
            try:
                return await self.send(frames, size, until)
            finally:
                self._turn.release()
        except TimeoutError:
            return False
        finally:
            self._queued -= 1

    def close(self, linger_s: float = 0.0) -> None:
        """Close now; what is queued goes out in the background for at most ``linger_s``."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self.socket.FD)
        self._loop.remove_reader(self._monitor.FD)
        self.socket.disable_monitor()
        self._monitor.close(0)
        self.socket.close(int(linger_s * 1000))
        self._writable.ring()

    def _open(self) -> bool:
        return not self.closed

    def _put(self, frames: Sequence[Any], copy: bool) -> None:
        """All frames or, with ``Again``, none: only the first can be refused."""
        send = self.socket.send
        for frame in frames[:-1]:
            send(frame, _MORE, copy=copy)
        send(frames[-1], _LAST, copy=copy)

    def _get(self) -> list[Any] | None:
        """The next message; None if it went with its connection between looking and taking."""
        try:
            frames: Any = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        return list(frames)

    def _look(self) -> None:
        """Look soon if using the socket has swallowed the sign that something came."""
        if self._wants() and int(self.socket.get(zmq.EVENTS)) & _IN:
            self.wake()

    def _on_monitor(self) -> None:
        self.hear()
        self.wake()

    def _pump(self) -> None:
        self._scheduled = False
        if self.closed:
            return
        for _ in range(AT_ONCE):
            came = int(self.socket.get(zmq.EVENTS)) & _IN  # also takes the sign away, or the loop would spin
            if not self._wants():
                break
            frames = self._get() if came else None
            if frames is None:
                self._on_idle()
                break
            self._on_frames(frames)
            if not self._open():
                return
        else:
            self.wake()  # more may wait; let others have their turn first
        if self._writable:
            self._writable.ring()


def prepare(socket: zmq.Socket[bytes], options: Options, keys: KeyPair | None) -> None:
    """Limits, heartbeats and our key, before anything is bound or connected: later they would not count."""
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.SNDHWM, options.queue)
    socket.set(zmq.RCVHWM, options.queue)
    socket.set(zmq.MAXMSGSIZE, options.max_message_bytes + FRAME_SLACK_BYTES)
    socket.set(zmq.HEARTBEAT_IVL, int(options.heartbeat_s * 1000))
    socket.set(zmq.HEARTBEAT_TIMEOUT, int(options.dead_after_s * 1000))
    socket.set(zmq.HEARTBEAT_TTL, int(options.dead_after_s * 1000))
    socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    if keys is not None:
        socket.set(zmq.CURVE_PUBLICKEY, keys.public.encode())
        socket.set(zmq.CURVE_SECRETKEY, keys.secret.encode())


def prepare_to_connect(socket: zmq.Socket[bytes], server_key: str) -> None:
    """Messages are queued only for a connection that stands; connecting is tried again and again."""
    socket.set(zmq.IMMEDIATE, 1)
    socket.set(zmq.RECONNECT_IVL, 30)
    socket.set(zmq.RECONNECT_IVL_MAX, 500)
    socket.set(zmq.CONNECT_TIMEOUT, 2000)
    if server_key:
        socket.set(zmq.CURVE_SERVERKEY, server_key.encode())


def connection_of(frame: Any) -> int | None:
    """The number of the connection by which a frame came; numbers of ended connections are used again.

    None for a connection without a handshake: ZeroMQ takes any bytes for the first version of its protocol.
    """
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return None


def key_of(frame: Any) -> str:
    """The key that its sender proved to have; empty where none is asked for."""
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return ""
