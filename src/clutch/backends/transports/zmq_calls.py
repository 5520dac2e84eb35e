"""Calls over ZeroMQ: DEALER to ROUTER, introduced by name and incarnation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import zmq

from clutch.backends.transports.base import (
    Buffer,
    Counts,
    Identity,
    Options,
    Parcel,
    Request,
    check_deadline,
    check_identity,
    check_size,
    encode_header,
    flatten,
)
from clutch.backends.transports.frames import PROTOCOL, Control, Kind, cut, decode, encode, join, raised
from clutch.backends.transports.inbox import Inbox
from clutch.backends.transports.keys import AllowList
from clutch.backends.transports.roster import Roster
from clutch.backends.transports.zmq_link import Link, gone
from clutch.backends.transports.zmq_socket import FAILED, LoopSocket, connection_of, key_of
from clutch.wire.errors import (
    BadRequest,
    ClutchError,
    Corrupt,
    NotAllowed,
    Stale,
    TimedOut,
    TooLarge,
    TooNew,
    Unavailable,
)

H = TypeVar("H")


class _Peer(msgspec.Struct):
    """One connection that has introduced itself."""

    identity: Identity
    connection: int
    key: str
    limit: int


class ZmqServer(Generic[H]):
    """The ROUTER side."""

    def __init__(
        self, socket: zmq.Socket[bytes], identity: Identity, header: type[H], allow: AllowList | None, options: Options
    ) -> None:
        self.counts = Counts()
        self.endpoint = ""
        self._identity = identity
        self._decoder = msgspec.msgpack.Decoder(header)
        self._allow = allow
        self._options = options
        self._roster = Roster()
        self._peers: dict[bytes, _Peer] = {}
        self._route_of: dict[int, bytes] = {}  # by connection
        self._leaving: list[bytes] = []
        self._inbox: Inbox[Request[H]] = Inbox(options.queue, on_room=lambda: self._wire.wake())
        socket.set(zmq.ROUTER_MANDATORY, 1)
        self._wire = LoopSocket(
            socket, self._on_frames, self._on_event, wants=lambda: not self._inbox.full, on_idle=self._on_idle
        )

    def bind(self, endpoint: str) -> None:
        self._wire.socket.bind(endpoint)
        self.endpoint = bytes(self._wire.socket.get(zmq.LAST_ENDPOINT)).decode().rstrip("\0")

    async def receive(self, *, within_s: float) -> Request[H]:
        check_deadline(within_s)
        return await self._inbox.take(within_s, self.endpoint)

    async def reply(
        self, request: Request[H], header: H, buffers: Sequence[Buffer] = (), *, within_s: float = 5.0
    ) -> None:
        check_deadline(within_s)
        peer = self._peers.get(request.route)
        if peer is None:
            raise gone(request.peer.name)
        views, encoded = flatten(buffers), encode_header(header)
        size = len(encoded) + sum(view.nbytes for view in views)
        check_size(size, min(self._options.max_message_bytes, peer.limit), str(request.peer))
        pieces, sizes = cut(views)
        control = encode(Control(Kind.REPLY, request.number, sizes=sizes))
        until = asyncio.get_running_loop().time() + within_s
        try:
            sent = await self._wire.send((request.route, control, encoded, *pieces), size, until)
        except Unavailable as error:
            raise gone(request.peer.name) from error
        if not sent:
            raise TimedOut(f"it took no answer within {within_s} s", object=str(request.peer))

    async def fail(self, request: Request[H], error: Exception) -> None:
        if not isinstance(error, ClutchError):
            error = Unavailable(f"{type(error).__name__}: {error}", object=self._identity.name)
        self._say(request.route, Control(Kind.FAILURE, request.number, error=error.view()))

    async def close(self) -> None:
        self._wire.close(self._options.linger_s)
        self._inbox.end(Unavailable("this endpoint is closed", object=self.endpoint))

    # ------------------------------------------------------------------------------------------------ arriving

    def _on_frames(self, frames: list[Any]) -> None:
        route = frames[0].bytes
        if len(frames) < 2:
            self.counts.garbage += 1
            return
        try:
            control = decode(frames[1].buffer)
        except Corrupt:
            self.counts.garbage += 1
            return
        if control.kind is Kind.HELLO:
            self._introduce(route, frames[1], control)
            return
        peer = self._peers.get(route)
        if peer is None:
            error = Unavailable("it does not know this connection", object=self._identity.name)
            self._say(route, Control(Kind.REFUSED, 0, error=error.view()))
        elif control.kind is Kind.BYE:
            self._forget(route)
        elif control.kind is Kind.REQUEST and len(frames) >= 3:
            self._take(route, peer, control, frames)
        else:
            self.counts.garbage += 1

    def _take(self, route: bytes, peer: _Peer, control: Control, frames: list[Any]) -> None:
        size = sum(len(frame) for frame in frames[2:])
        try:
            if self._allow is not None and self._allow.name_of(peer.key) != peer.identity.name:
                self.counts.refused += 1
                raise NotAllowed("this key is allowed no more", object=self._identity.name)
            if size > self._options.max_message_bytes:
                self.counts.too_large += 1
                raise TooLarge(
                    f"the message has {size} bytes, at most {self._options.max_message_bytes} are taken",
                    object=f"message to {self._identity.name}",
                )
            header = self._decoder.decode(frames[2].buffer)
            buffers = join([frame.buffer for frame in frames[3:]], control.sizes)
        except (msgspec.MsgspecError, Corrupt) as error:
            self.counts.garbage += 1
            bad = BadRequest(f"the message does not decode: {error}", object=self._identity.name)
            self._say(route, Control(Kind.FAILURE, control.number, error=bad.view()))
        except ClutchError as error:
            self._say(route, Control(Kind.FAILURE, control.number, error=error.view()))
        else:
            self._inbox.put(Request(peer.identity, header, buffers, route, control.number))

    def _introduce(self, route: bytes, frame: Any, control: Control) -> None:
        self._wire.hear()  # what ended before this began is told first: connections have numbers that are used again
        connection, key = connection_of(frame), key_of(frame)
        if connection is None:
            self.counts.garbage += 1
            return
        peer = Identity(control.name, control.number)
        try:
            self._judge(peer, key, control.protocol)
            older = self._roster.admit(peer)
        except ClutchError as error:
            self._say(route, Control(Kind.REFUSED, 0, error=error.view()))
            return
        if older is not None:
            self._overtake(older)
        self._peers[route] = _Peer(peer, connection, key, control.limit)
        self._route_of[connection] = route
        limit = self._options.max_message_bytes
        self._say(route, Control(Kind.WELCOME, self._identity.incarnation, self._identity.name, limit=limit))

    def _judge(self, peer: Identity, key: str, protocol: int) -> None:
        check_identity(peer)
        if protocol != PROTOCOL:
            raise TooNew(f"it speaks protocol {PROTOCOL}, not {protocol}", object=self._identity.name)
        if self._allow is not None and self._allow.name_of(key) != peer.name:
            self.counts.refused += 1
            raise NotAllowed("this key belongs to another name", object=peer.name, next_step="Use its own key.")

    def _overtake(self, older: Identity) -> None:
        for route in [route for route, peer in self._peers.items() if peer.identity == older]:
            error = Stale("a later start of it has taken over", object=str(older), next_step="Stop this process.")
            self._say(route, Control(Kind.REFUSED, 0, error=error.view()))
            del self._route_of[self._peers.pop(route).connection]

    def _say(self, route: bytes, control: Control) -> None:
        """What cannot be told at once is not told: its receiver is gone, or will see its deadline pass."""
        try:
            if not self._wire.send_now((route, encode(control)), 0):
                self.counts.dropped += 1
        except Unavailable:
            self.counts.dropped += 1

    # ------------------------------------------------------------------------------------------------- leaving

    def _on_event(self, event: int, value: int) -> None:
        if event == zmq.EVENT_DISCONNECTED:
            route = self._route_of.pop(value, None)
            if route is not None:
                self._leaving.append(route)
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self.counts.refused += 1
        elif event & FAILED:
            self.counts.garbage += 1

    def _on_idle(self) -> None:
        """Everything a lost peer had sent was read: now it is gone."""
        for route in self._leaving:
            peer = self._forget(route)
            if peer is not None and self._options.report_deaths:
                self._inbox.trouble(gone(peer.identity.name))
        self._leaving.clear()

    def _forget(self, route: bytes) -> _Peer | None:
        peer = self._peers.pop(route, None)
        if peer is not None:
            self._roster.leave(peer.identity)
            if self._route_of.get(peer.connection) == route:
                del self._route_of[peer.connection]
        return peer


class ZmqCaller(Generic[H]):
    """The DEALER side."""

    def __init__(
        self,
        make_link: Callable[[Callable[[list[Any]], None]], Link],
        identity: Identity,
        header: type[H],
        options: Options,
    ) -> None:
        self._identity = identity
        self._decoder = msgspec.msgpack.Decoder(header)
        self._options = options
        self._limit = options.max_message_bytes
        self._server = Identity("")
        self._waiting: dict[int, asyncio.Future[Parcel[H]]] = {}
        self._number = 0
        self._link = make_link(self._on_frames)
        self._link.on_connected = self._introduce
        self._link.on_lost = self._fail_all

    async def call(self, header: H, buffers: Sequence[Buffer] = (), *, within_s: float) -> Parcel[H]:
        check_deadline(within_s)
        link = self._link
        views, encoded = flatten(buffers), encode_header(header)
        size = len(encoded) + sum(view.nbytes for view in views)
        check_size(size, self._options.max_message_bytes, link.address.name)
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        if not link.up:
            await link.wait_up(until)
        check_size(size, self._limit, link.address.name)
        self._number += 1
        number = self._number
        pieces, sizes = cut(views)
        frames = (encode(Control(Kind.REQUEST, number, sizes=sizes)), encoded, *pieces)
        answer: asyncio.Future[Parcel[H]] = loop.create_future()
        self._waiting[number] = answer
        timer = loop.call_at(until, self._late, number, within_s)
        try:
            if not await link.wire.send_in_turn(frames, size, until):
                raise TimedOut(f"it took no request within {within_s} s", object=link.address.name)
            return await answer
        except Unavailable as error:
            if error.object == "transport":  # the socket knows no names
                raise gone(link.address.name) from error
            raise
        finally:
            timer.cancel()
            del self._waiting[number]
            if answer.done() and not answer.cancelled():
                answer.exception()  # it may have failed while the request was still being sent
            answer.cancel()

    async def close(self) -> None:
        if self._link.up:
            self._link.wire.send_now((encode(Control(Kind.BYE, 0)),), 0)
        self._link.close(self._options.linger_s)

    def _introduce(self) -> None:
        hello = Control(
            Kind.HELLO, self._identity.incarnation, self._identity.name, limit=self._options.max_message_bytes
        )
        if not self._link.wire.send_now((encode(hello),), 0):
            self._link.drop(gone(self._link.address.name))

    def _on_frames(self, frames: list[Any]) -> None:
        try:
            control = decode(frames[0].buffer)
        except Corrupt as corrupt:
            self._link.drop(corrupt)
            return
        if control.kind is Kind.WELCOME:
            self._server = Identity(control.name, control.number)
            self._limit = min(self._options.max_message_bytes, control.limit)
            self._link.ready()
        elif control.kind is Kind.REFUSED:
            error = raised(control.error)
            self._link.refuse(error, final=isinstance(error, Stale))
        elif control.kind is Kind.FAILURE:
            self._answer(control.number, raised(control.error))
        elif control.kind is Kind.REPLY and len(frames) >= 2:
            self._answer(control.number, self._read(control, frames))

    def _read(self, control: Control, frames: list[Any]) -> Parcel[H] | ClutchError:
        if sum(len(frame) for frame in frames[1:]) > self._options.max_message_bytes:
            return TooLarge("the answer is larger than this side takes", object=self._link.address.name)
        try:
            header = self._decoder.decode(frames[1].buffer)
            return Parcel(self._server, header, join([frame.buffer for frame in frames[2:]], control.sizes))
        except (msgspec.MsgspecError, Corrupt) as error:
            return BadRequest(f"the answer does not decode: {error}", object=self._link.address.name)

    def _answer(self, number: int, answer: Parcel[H] | ClutchError) -> None:
        waiting = self._waiting.get(number)
        if waiting is None or waiting.done():
            return
        if isinstance(answer, ClutchError):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)

    def _late(self, number: int, within_s: float) -> None:
        self._answer(number, TimedOut(f"no answer within {within_s} s", object=self._link.address.name))

    def _fail_all(self, error: ClutchError) -> None:
        for number in list(self._waiting):
            self._answer(number, error)
