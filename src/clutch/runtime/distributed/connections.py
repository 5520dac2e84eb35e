"""The connections that carry notes: on rank 0 one from each rank, on the others one to rank 0.

ZeroMQ sends heartbeats in its own thread, so a rank that computes for minutes is heard and one that is stopped, killed
or cut off is not. It does not judge them: it runs its timers before it reads what has come, and would hang up after
every pause of the machine. What has come is asked of the kernel, and a ``Pulse`` judges.
"""

from __future__ import annotations

import socket as sockets
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from clutch.runtime.distributed.attempts import Attempts
from clutch.runtime.distributed.far import ZAP_DOMAIN, bracketed
from clutch.runtime.distributed.meeting import Meeting
from clutch.runtime.distributed.pulse import Looks, Pulse, State
from clutch.wire.errors import BadRequest, Conflict

HANDSHAKE_S = 10.0
_ZAP = "inproc://zeromq.zap.01"
_WATCHED = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_DISCONNECTED
)
_BYTES_RECEIVED_AT = 128
"""Where ``tcpi_bytes_received`` stands in the kernel's ``struct tcp_info``, of Linux 4.1 and later."""


def bytes_received(descriptor: int) -> int | None:
    """How many bytes the kernel has ever received by this connection, read or not.

    None: it does not say, or ZeroMQ has closed it meanwhile, of which we shall hear.
    """
    try:
        wire = sockets.socket(sockets.AF_INET, sockets.SOCK_STREAM, 0, fileno=descriptor)
    except OSError:
        return None
    try:
        told = wire.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, 256)
    except OSError:
        return None
    finally:
        wire.detach()  # it is ZeroMQ's, and stays open
    if len(told) < _BYTES_RECEIVED_AT + 8:
        return None
    return int(struct.unpack_from("=Q", told, _BYTES_RECEIVED_AT)[0]) or None


class Gate:
    """ZeroMQ asks here whether a key may connect, to whichever socket of its context."""

    def __init__(self, context: zmq.Context[Any], allowed: frozenset[str]) -> None:
        self._allowed = allowed
        self.socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self.socket.set(zmq.LINGER, 0)
        self.socket.bind(_ZAP)

    def asked(self) -> list[bytes] | None:
        """Somebody has come and waits for an answer."""
        try:
            return self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def answer(self, request: list[bytes]) -> str:
        """Who was turned away; empty: nobody."""
        version, sequence, _, address, _, mechanism, *credentials = request
        key = z85.encode(credentials[0]).decode() if mechanism == b"CURVE" and credentials else ""
        if key in self._allowed:
            self.socket.send_multipart((version, sequence, b"200", b"OK", key.encode(), b""))
            return ""
        self.socket.send_multipart((version, sequence, b"400", b"unknown key", b"", b""))
        return f"a program at {address.decode(errors='replace')} with an unknown key"

    def close(self) -> None:
        self.socket.close(0)


class Visitors:
    """Rank 0's side: who came by which connection."""

    def __init__(self, context: zmq.Context[Any], meeting: Meeting, now: float) -> None:
        self.socket, self.port = _listening(context, meeting)
        self.monitor: zmq.Socket[bytes] = self.socket.get_monitor_socket(_WATCHED)
        self._dead_after_s = meeting.dead_after_s
        self._looks = Looks(now)
        self._routes: dict[int, bytes] = {}
        self._ranks: dict[bytes, int] = {}
        self._connections: dict[int, tuple[int, Pulse]] = {}

    def seat(self, route: Any, rank: int) -> None:
        """The rank at the other end of this route has said who it is."""
        self._ranks[route.bytes] = rank
        self._routes[rank] = route.bytes
        with suppress(zmq.ZMQError):
            self._connections[int(route.get(zmq.SRCFD))] = rank, Pulse(self._dead_after_s)

    def rank_of(self, route: Any) -> int | None:
        return self._ranks.get(route.bytes)

    def send(self, to: int | None, encoded: bytes) -> None:
        """To this rank, or to all who are there."""
        for route in self._routes.values() if to is None else [self._routes[to]] if to in self._routes else []:
            self.socket.send_multipart([route, encoded], zmq.NOBLOCK)

    def refuse(self, route: Any, encoded: bytes) -> None:
        self.socket.send_multipart([route.bytes, encoded], zmq.NOBLOCK)

    def forget(self, rank: int) -> None:
        """It hears nothing more."""
        self._routes.pop(rank, None)

    @property
    def somebody_is_there(self) -> bool:
        return bool(self._routes)

    def ended(self) -> Iterator[int]:
        """Descriptors of connections that have ended.

        To be called while whoever comes waits at the gate: they may have been given the number of one that has ended.
        """
        for kind, value, _ in _events(self.monitor):
            if kind == zmq.EVENT_DISCONNECTED:
                yield value

    def unseat(self, descriptor: int) -> int | None:
        """The rank that was there; None: nobody we know."""
        rank, _ = self._connections.pop(descriptor, (None, None))
        return rank

    def silent(self, now: float) -> list[int]:
        """Ranks that have become lost by their silence."""
        counts_s = self._looks.counts(now)
        found = [
            (descriptor, rank)
            for descriptor, (rank, pulse) in self._connections.items()
            if pulse.look(bytes_received(descriptor), counts_s) is State.LOST
        ]
        for descriptor, _ in found:
            del self._connections[descriptor]
        return [rank for _, rank in found]

    def close(self, linger_ms: int) -> None:
        _close(self.socket, self.monitor, linger_ms)


class Upward:
    """Another rank's side. It tries every port at which rank 0 may be; only one of them can prove rank 0's key."""

    def __init__(self, context: zmq.Context[Any], meeting: Meeting, now: float) -> None:
        self.up = False
        """Whether there is a connection to rank 0."""
        self._pulse = Pulse(meeting.dead_after_s)
        self._looks = Looks(now)
        self._endpoints = [f"tcp://{bracketed(meeting.address)}:{port}" for port in meeting.ports]
        self._endpoint = ""
        self._attempts = Attempts()
        self._news, self._news_at = False, now
        self.socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        _prepare(self.socket, meeting)
        self.socket.set(zmq.IMMEDIATE, 1)
        self.socket.set(zmq.RECONNECT_IVL, 30)
        self.socket.set(zmq.RECONNECT_IVL_MAX, 500)
        self.socket.set(zmq.CONNECT_TIMEOUT, 2_000)
        self.socket.set(zmq.CURVE_SERVERKEY, meeting.server_key.encode())
        self.monitor: zmq.Socket[bytes] = self.socket.get_monitor_socket(_WATCHED)
        for endpoint in self._endpoints:
            self.socket.connect(endpoint)

    def send(self, encoded: bytes) -> None:
        if self.up:
            with suppress(zmq.Again):
                self.socket.send(encoded, zmq.NOBLOCK)

    def happened(self) -> Iterator[str]:
        """``up``, ``ended``, ``refused`` (our key) or ``failed`` (``try_again`` later)."""
        for kind, value, endpoint in _events(self.monitor):
            self._news = True
            if kind == zmq.EVENT_CONNECTED:
                self._attempts.begun(endpoint, value)
            elif kind == zmq.EVENT_CONNECT_RETRIED:
                self._attempts.retried(endpoint)
            elif kind == zmq.EVENT_DISCONNECTED:
                self._attempts.ended(endpoint, value)
                if not self.up:
                    yield "failed"
                elif endpoint == self._endpoint:
                    self.up = False
                    yield "ended"
            elif not self.up and kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.up, self._endpoint = True, endpoint
                for other in self._endpoints:
                    if other != endpoint:
                        with suppress(zmq.ZMQError):
                            self.socket.disconnect(other)
                yield "up"
            elif not self.up and kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                yield "refused"

    def try_again(self) -> None:
        """Where ZeroMQ has given up, and only there: another connection may be all but made."""
        if self.up:
            return
        for endpoint in sorted(self._attempts.given_up):
            with suppress(zmq.ZMQError):
                self.socket.disconnect(endpoint)
            self.socket.connect(endpoint)
        self._attempts.given_up.clear()

    def silent(self, now: float) -> bool:
        """Whether rank 0 is lost by its silence. Said once."""
        counts_s = self._looks.counts(now)
        if self.up or self._news:
            self._news, self._news_at = False, now
        elif now - self._news_at > HANDSHAKE_S + 2.0:  # no attempt takes longer: whatever it was, begin anew
            self._news_at = now
            self._attempts.given_up.update(self._endpoints)
            self.try_again()
        descriptor = self._attempts.descriptor(self._endpoint)
        if not self.up or descriptor is None or self._pulse.state is State.LOST:
            return False
        return self._pulse.look(bytes_received(descriptor), counts_s) is State.LOST

    def close(self, linger_ms: int) -> None:
        self.up = False
        _close(self.socket, self.monitor, linger_ms)


def _listening(context: zmq.Context[Any], meeting: Meeting) -> tuple[zmq.Socket[bytes], int]:
    """A socket at the first port that is free. ``Conflict`` if somebody else listens at every one of them."""
    host = meeting.address if meeting.address in ("127.0.0.1", "::1") else "*"
    for port in meeting.ports or (0,):
        socket: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
        _prepare(socket, meeting)
        socket.set(zmq.CURVE_SERVER, 1)
        socket.set(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        socket.set(zmq.BACKLOG, 1024)
        try:
            if port:
                socket.bind(f"tcp://{bracketed(host)}:{port}")
                return socket, port
            return socket, socket.bind_to_random_port(f"tcp://{bracketed(host)}")
        except zmq.ZMQError as error:
            socket.close(0)
            if error.errno != zmq.EADDRINUSE:
                raise BadRequest(f"cannot listen: {error.strerror}", object=f"{host}:{port}") from error
    raise Conflict(
        f"other programs listen at port {', '.join(map(str, meeting.ports))}",
        object="meeting of a group",
        next_step="Reserve another port for it, or give it several.",
    )


def _prepare(socket: zmq.Socket[bytes], meeting: Meeting) -> None:
    """Before anything is bound or connected: later it would not count."""
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.IPV6, 1 if ":" in meeting.address else 0)
    socket.set(zmq.HEARTBEAT_IVL, int(meeting.heartbeat_s * 1000))
    socket.set(zmq.HEARTBEAT_TIMEOUT, 0)
    socket.set(zmq.HEARTBEAT_TTL, 0)
    socket.set(zmq.HANDSHAKE_IVL, int(HANDSHAKE_S * 1000))
    socket.set(zmq.CURVE_PUBLICKEY, meeting.keys.public.encode())
    socket.set(zmq.CURVE_SECRETKEY, meeting.keys.secret.encode())


def _events(monitor: zmq.Socket[bytes]) -> Iterator[tuple[int, int, str]]:
    while not monitor.closed:
        try:
            event = recv_monitor_message(monitor, zmq.NOBLOCK)
        except zmq.Again:
            return
        yield int(event["event"]), int(event["value"]), bytes(event["endpoint"]).decode()


def _close(socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes], linger_ms: int) -> None:
    if not socket.closed:
        socket.disable_monitor()
        monitor.close(0)
        socket.close(linger_ms)
