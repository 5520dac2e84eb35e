"""Transports over ZeroMQ: ``tcp://`` always with CURVE, ``ipc://`` in a folder that is ours alone.

Over tcp both sides have key pairs. The side that connects knows the key of whom it connects to; the side that listens
has an allow-list, asked at every handshake (ZAP, RFC 27). A foreign key gets no further than that and is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import zmq
from zmq.utils import z85

from clutch.backends.transports.base import Address, AtBound, Identity, Options, check_identity
from clutch.backends.transports.keys import AllowList, KeyPair, check_key, check_private
from clutch.backends.transports.zmq_calls import ZmqCaller, ZmqServer
from clutch.backends.transports.zmq_link import Link
from clutch.backends.transports.zmq_socket import prepare
from clutch.backends.transports.zmq_streams import ZmqPuller, ZmqPusher
from clutch.wire.errors import BadRequest, Conflict, Unavailable

H = TypeVar("H")
DEFAULTS = Options()
SOCKETS_MAX = 16_383
_ZAP = "inproc://zeromq.zap.01"
_KNOWN = "Use tcp://HOST:PORT (or :* for any port) or ipc:///PRIVATE/FOLDER/NAME."


class ZmqTransport:
    """One party: its identity, its keys and everything it opened. Made inside a running loop, and closed there."""

    def __init__(self, identity: Identity, keys: KeyPair) -> None:
        check_identity(identity)
        check_key(keys.public, identity.name)
        self.identity = identity
        self._keys = keys
        self._context = zmq.Context(io_threads=1)
        self._context.set(zmq.MAX_SOCKETS, SOCKETS_MAX)
        self._open: list[ZmqServer[Any] | ZmqCaller[Any] | ZmqPuller[Any] | ZmqPusher[Any]] = []
        self._closed = False
        self._domains: dict[bytes, AllowList] = {}
        self._zap: zmq.Socket[bytes] = self._context.socket(zmq.REP)
        self._zap.set(zmq.LINGER, 0)
        self._zap.bind(_ZAP)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._zap.FD, self._on_zap)

    @property
    def public_key(self) -> str:
        return self._keys.public

    async def serve(
        self, endpoint: str, header: type[H], *, allow: AllowList | None = None, options: Options = DEFAULTS
    ) -> ZmqServer[H]:
        """Answer calls at this endpoint. Over tcp, ``allow`` says whose."""
        socket = self._listening(zmq.ROUTER, endpoint, allow, options)
        server = ZmqServer(socket, self.identity, header, allow if _is_tcp(endpoint) else None, options)
        await self._bind(server, endpoint)
        return server

    async def connect(self, address: Address, header: type[H], *, options: Options = DEFAULTS) -> ZmqCaller[H]:
        """Call whoever is at this address. Does not wait for it."""
        caller = ZmqCaller(self._linking(zmq.DEALER, address, options), self.identity, header, options)
        self._open.append(caller)
        return caller

    async def pull(
        self, endpoint: str, header: type[H], *, allow: AllowList | None = None, options: Options = DEFAULTS
    ) -> ZmqPuller[H]:
        """Take what is pushed to this endpoint. Over tcp, ``allow`` says by whom."""
        socket = self._listening(zmq.PULL, endpoint, allow, options)
        puller = ZmqPuller(socket, header, allow if _is_tcp(endpoint) else None, options)
        await self._bind(puller, endpoint)
        return puller

    async def push(self, address: Address, header: type[H], *, options: Options = DEFAULTS) -> ZmqPusher[H]:
        """Push to whoever is at this address. Does not wait for it."""
        pusher: ZmqPusher[H] = ZmqPusher(self._linking(zmq.PUSH, address, options), self.identity, options)
        self._open.append(pusher)
        return pusher

    async def close(self) -> None:
        """Close everything. What is queued still goes out, for at most each endpoint's ``linger_s``."""
        if self._closed:
            return
        self._closed = True
        for endpoint in self._open:
            await endpoint.close()
        self._loop.remove_reader(self._zap.FD)
        self._zap.close(0)
        await asyncio.to_thread(self._context.term)

    # ------------------------------------------------------------------------------------------------- sockets

    def _listening(self, kind: int, endpoint: str, allow: AllowList | None, options: Options) -> zmq.Socket[bytes]:
        self._check_open(endpoint)
        if not _is_tcp(endpoint):
            check_private(endpoint)
        elif allow is None:
            raise BadRequest("nobody is allowed in", object=endpoint, next_step="Give an allow-list of public keys.")
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        prepare(socket, options, self._keys if _is_tcp(endpoint) else None)
        if _is_tcp(endpoint) and allow is not None:
            domain = f"clutch-{len(self._domains)}".encode()
            self._domains[domain] = allow
            socket.set(zmq.CURVE_SERVER, 1)
            socket.set(zmq.ZAP_DOMAIN, domain)
        return socket

    async def _bind(self, listener: ZmqServer[Any] | ZmqPuller[Any], endpoint: str) -> None:
        try:
            listener.bind(endpoint)
        except zmq.ZMQError as error:
            await listener.close()
            if error.errno == zmq.EADDRINUSE:
                raise Conflict("somebody listens there", object=endpoint, next_step="Use another port.") from error
            raise BadRequest(f"cannot listen: {error.strerror}", object=endpoint, next_step=_KNOWN) from error
        self._open.append(listener)

    def _linking(self, kind: int, address: Address, options: Options) -> Callable[[Callable[[list[Any]], None]], Link]:
        self._check_open(address.endpoint)
        if _is_tcp(address.endpoint):
            check_key(address.public_key, address.name)
        else:
            check_private(address.endpoint)
        keys = self._keys if _is_tcp(address.endpoint) else None
        if kind == zmq.PUSH and options.at_bound is AtBound.DROP_OLDEST:
            link_options = _short_queue(options)
        else:
            link_options = options

        def make(on_frames: Callable[[list[Any]], None]) -> Link:
            try:
                return Link(lambda: self._context.socket(kind), address, link_options, keys, on_frames)
            except zmq.ZMQError as error:
                raise BadRequest(
                    f"cannot connect: {error.strerror}", object=address.endpoint, next_step=_KNOWN
                ) from error

        return make

    def _check_open(self, endpoint: str) -> None:
        if self._closed:
            raise Unavailable("this transport is closed", object=endpoint)
        if not endpoint.startswith(("tcp://", "ipc://")):
            raise BadRequest("there is no such way to speak", object=endpoint or "endpoint", next_step=_KNOWN)
        if _is_tcp(endpoint):
            host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
            is_number = port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16
            if not host or not (is_number or port == "*"):
                raise BadRequest("no host and port", object=endpoint, next_step=_KNOWN)

    # ------------------------------------------------------------------------------------------------ the gate

    def _on_zap(self) -> None:
        """ZeroMQ asks whether a key may connect."""
        while not self._zap.closed:
            try:
                request = self._zap.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            version, sequence, domain, _, _, mechanism, *credentials = request
            key = z85.encode(credentials[0]).decode() if mechanism == b"CURVE" and credentials else ""
            allow = self._domains.get(domain)
            if allow is not None and allow.name_of(key) is not None:
                answer = (version, sequence, b"200", b"OK", key.encode(), b"")
            else:
                answer = (version, sequence, b"400", b"unknown key", b"", b"")
            self._zap.send_multipart(answer)


def _is_tcp(endpoint: str) -> bool:
    return endpoint.startswith("tcp://")


def _short_queue(options: Options) -> Options:
    """For a pusher that keeps its own queue, because ZeroMQ's cannot drop its oldest."""
    return Options(
        queue=1,
        max_message_bytes=options.max_message_bytes,
        heartbeat_s=options.heartbeat_s,
        dead_after_s=options.dead_after_s,
        linger_s=options.linger_s,
    )
