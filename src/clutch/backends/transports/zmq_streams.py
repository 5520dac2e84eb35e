"""Streams over ZeroMQ: PUSH to PULL. Every message says who sent it, because there is no way back to ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec
import zmq

from clutch.backends.transports.base import (
    AtBound,
    Buffer,
    Counts,
    Identity,
    Options,
    Parcel,
    check_deadline,
    check_size,
    encode_header,
    flatten,
)
from clutch.backends.transports.frames import Control, Kind, cut, decode, encode, join
from clutch.backends.transports.inbox import Inbox
from clutch.backends.transports.keys import AllowList
from clutch.backends.transports.roster import Roster
from clutch.backends.transports.zmq_link import Link, gone
from clutch.backends.transports.zmq_socket import FAILED, LoopSocket, connection_of, key_of
from clutch.wire.errors import ClutchError, Corrupt, Stale, TimedOut, Unavailable

H = TypeVar("H")
PUMP_WAITS_S = 3600.0


class ZmqPuller(Generic[H]):
    """The PULL side."""

    def __init__(self, socket: zmq.Socket[bytes], header: type[H], allow: AllowList | None, options: Options) -> None:
        self.counts = Counts()
        self.endpoint = ""
        self._decoder = msgspec.msgpack.Decoder(header)
        self._allow = allow
        self._options = options
        self._roster = Roster()
        self._peer_of: dict[int, Identity] = {}  # by connection
        self._leaving: dict[int, Identity] = {}
        self._inbox: Inbox[Parcel[H]] = Inbox(options.queue, on_room=lambda: self._wire.wake())
        self._wire = LoopSocket(
            socket, self._on_frames, self._on_event, wants=lambda: not self._inbox.full, on_idle=self._on_idle
        )

    def bind(self, endpoint: str) -> None:
        self._wire.socket.bind(endpoint)
        self.endpoint = bytes(self._wire.socket.get(zmq.LAST_ENDPOINT)).decode().rstrip("\0")

    async def pull(self, *, within_s: float) -> Parcel[H]:
        check_deadline(within_s)
        return await self._inbox.take(within_s, self.endpoint)

    async def close(self) -> None:
        self._wire.close()
        self._inbox.end(Unavailable("this endpoint is closed", object=self.endpoint))

    def _on_frames(self, frames: list[Any]) -> None:
        connection = connection_of(frames[0])
        try:
            control = decode(frames[0].buffer)
        except Corrupt:
            self.counts.garbage += 1
            return
        if connection is None:
            self.counts.garbage += 1
            return
        peer = Identity(control.name, control.number)
        if self._allow is not None and self._allow.name_of(key_of(frames[0])) != peer.name:
            self.counts.refused += 1
        elif control.kind is Kind.BYE:
            self._peer_of.pop(connection, None)
            self._leaving.pop(connection, None)
        elif control.kind is Kind.DATA and len(frames) >= 2:
            self._take(peer, connection, control, frames)
        else:
            self.counts.garbage += 1

    def _take(self, peer: Identity, connection: int, control: Control, frames: list[Any]) -> None:
        if self._peer_of.get(connection) != peer:
            try:
                self._roster.leave(peer)
                self._roster.admit(peer)
            except ClutchError:
                self.counts.stale += 1
                return
            if connection not in self._leaving:
                self._peer_of[connection] = peer
        else:
            try:
                self._roster.check(peer)
            except Stale:
                self.counts.stale += 1
                return
        if sum(len(frame) for frame in frames[1:]) > self._options.max_message_bytes:
            self.counts.too_large += 1
            return
        try:
            header = self._decoder.decode(frames[1].buffer)
            buffers = join([frame.buffer for frame in frames[2:]], control.sizes)
        except (msgspec.MsgspecError, Corrupt):
            self.counts.garbage += 1
            return
        self._inbox.put(Parcel(peer, header, buffers))

    def _on_event(self, event: int, value: int) -> None:
        if event == zmq.EVENT_DISCONNECTED:
            peer = self._peer_of.pop(value, None)
            if peer is not None:
                self._leaving[value] = peer
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self.counts.refused += 1
        elif event & FAILED:
            self.counts.garbage += 1

    def _on_idle(self) -> None:
        """Everything a lost pusher had sent was read: now it is gone."""
        for peer in self._leaving.values():
            if self._options.report_deaths:
                self._inbox.trouble(gone(peer.name))
        self._leaving.clear()


class ZmqPusher(Generic[H]):
    """The PUSH side."""

    def __init__(
        self, make_link: Callable[[Callable[[list[Any]], None]], Link], identity: Identity, options: Options
    ) -> None:
        self.counts = Counts()
        self._identity = identity
        self._options = options
        self._plain = encode(Control(Kind.DATA, identity.incarnation, identity.name))
        self._link = make_link(lambda frames: None)
        self._unsent: Inbox[tuple[tuple[Any, ...], int]] = Inbox(options.queue)
        self._pump: asyncio.Task[None] | None = None
        if options.at_bound is AtBound.DROP_OLDEST:
            self._pump = asyncio.create_task(self._send_unsent())

    async def push(self, header: H, buffers: Sequence[Buffer] = (), *, within_s: float) -> None:
        check_deadline(within_s)
        link = self._link
        views, encoded = flatten(buffers), encode_header(header)
        size = len(encoded) + sum(view.nbytes for view in views)
        check_size(size, self._options.max_message_bytes, link.address.name)
        if link.closed:
            raise Unavailable("this endpoint is closed", object=link.address.name)
        pieces, sizes = cut(views)
        control = self._plain
        if sizes:
            control = encode(Control(Kind.DATA, self._identity.incarnation, self._identity.name, sizes))
        frames = (control, encoded, *pieces)
        if self._pump is not None:
            self.counts.dropped += self._unsent.put_dropping((frames, size))
            return
        until = asyncio.get_running_loop().time() + within_s
        if not await self._send(frames, size, until):
            raise TimedOut(f"it took nothing within {within_s} s", object=link.address.name)

    async def close(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
            with suppress(asyncio.CancelledError):
                await self._pump
        if self._link.up:
            bye = encode(Control(Kind.BYE, self._identity.incarnation, self._identity.name))
            self._link.wire.send_now((bye,), 0)
        self._link.close(self._options.linger_s)

    async def _send(self, frames: tuple[Any, ...], size: int, until: float) -> bool:
        """Queue it on a connection that stands; a connection that breaks meanwhile is waited for again."""
        while True:
            if not self._link.up:
                await self._link.wait_up(until)
            wire = self._link.wire
            try:
                return await wire.send_in_turn(frames, size, until)
            except Unavailable:
                if not wire.closed:
                    raise

    async def _send_unsent(self) -> None:
        """One message at a time leaves the queue for ZeroMQ, whose own queue is as short as it can be."""
        loop = asyncio.get_running_loop()
        sent = True
        frames: tuple[Any, ...] = ()
        size = 0
        while not self._link.closed:
            try:
                if sent:
                    frames, size = await self._unsent.take(PUMP_WAITS_S, self._link.address.name)
                sent = False
                sent = await self._send(frames, size, loop.time() + PUMP_WAITS_S)
            except ClutchError:
                continue  # nobody listens yet, or not to us: keep the newest until somebody does
