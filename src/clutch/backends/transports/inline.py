"""Transports inside one process: for tests, for the simulator, and for members that share an interpreter.

Deterministic: no threads, no sockets, no time but the event loop's. Endpoints are ``inline:NAME`` on an ``Exchange``,
which stands for the network; a party's ``die`` is what ``kill -9`` is elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from clutch.backends.transports.base import (
    Address,
    AtBound,
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
from clutch.backends.transports.inbox import Doorbell, Inbox
from clutch.backends.transports.keys import AllowList
from clutch.backends.transports.roster import Roster
from clutch.wire.errors import BadRequest, ClutchError, Conflict, NotAllowed, Stale, TimedOut, Unavailable

H = TypeVar("H")
DEFAULTS = Options()


class Exchange:
    """Who listens where."""

    def __init__(self) -> None:
        self.listeners: dict[str, InlineServer[Any] | InlinePuller[Any]] = {}
        self.opened = Doorbell()
        self._ports = 0

    def listen(self, endpoint: str, listener: InlineServer[Any] | InlinePuller[Any]) -> str:
        if not endpoint.startswith("inline:") or endpoint == "inline:":
            raise BadRequest("not an endpoint inside a process", object=endpoint, next_step="Use inline:NAME.")
        if endpoint == "inline:*":
            self._ports += 1
            endpoint = f"inline:{self._ports}"
        if endpoint in self.listeners:
            raise Conflict("somebody listens there", object=endpoint, next_step="Use another name, or inline:*.")
        self.listeners[endpoint] = listener
        self.opened.ring()
        return endpoint


class InlineTransport:
    """One party. ``public_key`` is only compared with allow-lists: inside a process nothing needs proof."""

    def __init__(self, exchange: Exchange, identity: Identity, public_key: str = "") -> None:
        check_identity(identity)
        self.exchange = exchange
        self.identity = identity
        self.public_key = public_key
        self._open: list[InlineServer[Any] | InlinePuller[Any] | InlineCaller[Any] | InlinePusher[Any]] = []

    async def serve(
        self, endpoint: str, header: type[H], *, allow: AllowList | None = None, options: Options = DEFAULTS
    ) -> InlineServer[H]:
        server = InlineServer(self, endpoint, header, allow, options)
        self._open.append(server)
        return server

    async def connect(self, address: Address, header: type[H], *, options: Options = DEFAULTS) -> InlineCaller[H]:
        caller = InlineCaller(self, address, header, options)
        self._open.append(caller)
        return caller

    async def pull(
        self, endpoint: str, header: type[H], *, allow: AllowList | None = None, options: Options = DEFAULTS
    ) -> InlinePuller[H]:
        puller = InlinePuller(self, endpoint, header, allow, options)
        self._open.append(puller)
        return puller

    async def push(self, address: Address, header: type[H], *, options: Options = DEFAULTS) -> InlinePusher[H]:
        pusher = InlinePusher(self, address, header, options)
        self._open.append(pusher)
        return pusher

    async def close(self) -> None:
        for endpoint in self._open:
            await endpoint.close()

    def die(self) -> None:
        """End without a word to anybody."""
        for endpoint in self._open:
            endpoint.end(died=True)


class _Listener(Generic[H]):
    """What servers and pullers share: a place on the exchange, an inbox, and who is heard."""

    def __init__(
        self, party: InlineTransport, endpoint: str, header: type[H], allow: AllowList | None, options: Options
    ) -> None:
        self.options = options
        self.counts = Counts()
        self.identity = party.identity
        self.decoder = msgspec.msgpack.Decoder(header)
        self.roster = Roster()
        self.peers: dict[_Speaker, None] = {}
        self._exchange = party.exchange
        self._allow = allow
        self.endpoint = ""

    def let_in(self, speaker: _Speaker) -> None:
        name = speaker.identity.name if self._allow is None else self._allow.name_of(speaker.public_key)
        if name == speaker.identity.name:
            return
        self.counts.refused += 1
        if name is None:
            raise NotAllowed("it refuses this key", object=self.identity.name, next_step="Have the key allowed.")
        raise NotAllowed("this key belongs to another name", object=speaker.identity.name, next_step="Use its own key.")

    def read(self, header: bytes) -> H:
        try:
            return self.decoder.decode(header)
        except msgspec.MsgspecError as error:
            self.counts.garbage += 1
            raise BadRequest(f"the header does not decode: {error}", object=self.identity.name) from error

    def unlist(self) -> bool:
        return bool(self._exchange.listeners.pop(self.endpoint, None))


class InlineServer(_Listener[H]):
    """Answers calls of parties of the same exchange."""

    def __init__(
        self, party: InlineTransport, endpoint: str, header: type[H], allow: AllowList | None, options: Options
    ) -> None:
        super().__init__(party, endpoint, header, allow, options)
        self.inbox: Inbox[Request[H]] = Inbox(options.queue)
        self.endpoint = party.exchange.listen(endpoint, self)

    async def receive(self, *, within_s: float) -> Request[H]:
        check_deadline(within_s)
        return await self.inbox.take(within_s, self.endpoint)

    async def reply(
        self, request: Request[H], header: H, buffers: Sequence[Buffer] = (), *, within_s: float = 5.0
    ) -> None:
        check_deadline(within_s)
        caller: InlineCaller[H] = request.route
        views, encoded = flatten(buffers), encode_header(header)
        limit = min(self.options.max_message_bytes, caller.options.max_message_bytes)
        check_size(len(encoded) + sum(view.nbytes for view in views), limit, str(request.peer))
        if caller not in self.peers:
            raise _gone(request.peer.name)
        try:
            caller.answer(request.number, Parcel(self.identity, caller.decoder.decode(encoded), tuple(views)))
        except msgspec.MsgspecError as error:
            caller.answer(request.number, BadRequest(f"the header does not decode: {error}", object=self.identity.name))

    async def fail(self, request: Request[H], error: Exception) -> None:
        if not isinstance(error, ClutchError):
            error = Unavailable(f"{type(error).__name__}: {error}", object=self.identity.name)
        caller: InlineCaller[H] = request.route
        caller.answer(request.number, error)

    def join(self, caller: InlineCaller[H]) -> None:
        self.let_in(caller)
        older = self.roster.admit(caller.identity)
        if older is not None:
            for peer in [peer for peer in self.peers if peer.identity == older]:
                del self.peers[peer]
                peer.refuse(Stale("a later start of it has taken over", object=str(older)))
        self.peers[caller] = None

    def leave(self, peer: _Speaker, died: bool) -> None:
        if peer in self.peers:
            del self.peers[peer]
            self.roster.leave(peer.identity)
            if died and self.options.report_deaths:
                self.inbox.trouble(_gone(peer.identity.name))

    async def close(self) -> None:
        self.end()

    def end(self, died: bool = False) -> None:
        if self.unlist():
            self.inbox.end(Unavailable("this endpoint is closed", object=self.endpoint))
            for peer in list(self.peers):
                peer.lost()


class _Speaker:
    """What callers and pushers share: who they are, and finding whom they speak to."""

    def __init__(self, party: InlineTransport, address: Address, options: Options) -> None:
        self.identity = party.identity
        self.public_key = party.public_key
        self.options = options
        self.address = address
        self.closed = False
        self._exchange = party.exchange

    async def find(self, until: float) -> InlineServer[Any] | InlinePuller[Any]:
        while self.address.endpoint not in self._exchange.listeners:
            if self.closed:
                raise Unavailable("this endpoint is closed", object=self.address.name)
            if not await self._exchange.opened.wait(until):
                raise Unavailable("it cannot be reached", object=self.address.name, next_step="Is it running?")
        return self._exchange.listeners[self.address.endpoint]

    def refuse(self, error: ClutchError) -> None:
        """The other side hears it no more."""

    def lost(self) -> None:
        """The other side is gone."""


class InlineCaller(_Speaker, Generic[H]):
    """Calls one server of the same exchange."""

    def __init__(self, party: InlineTransport, address: Address, header: type[H], options: Options) -> None:
        super().__init__(party, address, options)
        self.decoder = msgspec.msgpack.Decoder(header)
        self._server: InlineServer[H] | None = None
        self._refusal: ClutchError | None = None
        self._waiting: dict[int, asyncio.Future[Parcel[H]]] = {}
        self._number = 0

    async def call(self, header: H, buffers: Sequence[Buffer] = (), *, within_s: float) -> Parcel[H]:
        check_deadline(within_s)
        views, encoded = flatten(buffers), encode_header(header)
        size = len(encoded) + sum(view.nbytes for view in views)
        check_size(size, self.options.max_message_bytes, self.address.name)
        if self.closed:
            raise Unavailable("this endpoint is closed", object=self.address.name)
        if self._refusal is not None:
            raise self._refusal
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        if self._server is None:
            found = await self.find(until)
            if not isinstance(found, InlineServer):
                raise BadRequest("it takes no calls", object=self.address.name)
            if self._server is None:
                found.join(self)
                self._server = found
        server = self._server
        server.let_in(self)
        check_size(size, server.options.max_message_bytes, self.address.name)
        said = server.read(encoded)
        if not await server.inbox.room(until):
            raise TimedOut(f"it took no request within {within_s} s", object=self.address.name)
        self._number += 1
        number = self._number
        answer: asyncio.Future[Parcel[H]] = loop.create_future()
        self._waiting[number] = answer
        server.inbox.put(Request(self.identity, said, tuple(views), self, number))
        try:
            async with asyncio.timeout_at(until):
                return await answer
        except TimeoutError as late:
            raise TimedOut(f"no answer within {within_s} s", object=self.address.name) from late
        finally:
            del self._waiting[number]

    def answer(self, number: int, answer: Parcel[H] | ClutchError) -> None:
        waiting = self._waiting.get(number)
        if waiting is None or waiting.done():
            return
        if isinstance(answer, ClutchError):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)

    def refuse(self, error: ClutchError) -> None:
        self._refusal = error
        self._fail_all(error)

    def lost(self) -> None:
        self._server = None
        self._fail_all(_gone(self.address.name))

    def _fail_all(self, error: ClutchError) -> None:
        for number in list(self._waiting):
            self.answer(number, error)

    async def close(self) -> None:
        self.end()

    def end(self, died: bool = False) -> None:
        if not self.closed:
            self.closed = True
            if self._server is not None:
                self._server.leave(self, died)
            self._fail_all(Unavailable("this endpoint is closed", object=self.address.name))


class InlinePuller(_Listener[H]):
    """Takes what is pushed by parties of the same exchange."""

    def __init__(
        self, party: InlineTransport, endpoint: str, header: type[H], allow: AllowList | None, options: Options
    ) -> None:
        super().__init__(party, endpoint, header, allow, options)
        self.inbox: Inbox[Parcel[H]] = Inbox(options.queue)
        self.endpoint = party.exchange.listen(endpoint, self)

    async def pull(self, *, within_s: float) -> Parcel[H]:
        check_deadline(within_s)
        return await self.inbox.take(within_s, self.endpoint)

    def take(self, pusher: InlinePusher[H], header: bytes, views: list[memoryview]) -> None:
        """What is not taken is counted: a pusher is not answered."""
        if len(header) + sum(view.nbytes for view in views) > self.options.max_message_bytes:
            self.counts.too_large += 1
            return
        peer = pusher.identity
        try:
            said = self.read(header)
            self.roster.check(peer)
        except Stale:
            self.counts.stale += 1
            return
        except BadRequest:
            return
        if pusher not in self.peers:
            self.peers[pusher] = None
            self.roster.leave(peer)
            self.roster.admit(peer)
        parcel = Parcel(peer, said, tuple(views))
        if pusher.options.at_bound is AtBound.DROP_OLDEST:
            pusher.counts.dropped += self.inbox.put_dropping(parcel)
        else:
            self.inbox.put(parcel)

    def leave(self, peer: _Speaker, died: bool) -> None:
        if peer in self.peers:
            del self.peers[peer]
            if died and self.options.report_deaths:
                self.inbox.trouble(_gone(peer.identity.name))

    async def close(self) -> None:
        self.end()

    def end(self, died: bool = False) -> None:
        if self.unlist():
            self.inbox.end(Unavailable("this endpoint is closed", object=self.endpoint))


class InlinePusher(_Speaker, Generic[H]):
    """Pushes to one puller of the same exchange."""

    def __init__(self, party: InlineTransport, address: Address, header: type[H], options: Options) -> None:
        super().__init__(party, address, options)
        self.counts = Counts()
        self._decoder = msgspec.msgpack.Decoder(header)

    async def push(self, header: H, buffers: Sequence[Buffer] = (), *, within_s: float) -> None:
        check_deadline(within_s)
        views, encoded = flatten(buffers), encode_header(header)
        check_size(len(encoded) + sum(v.nbytes for v in views), self.options.max_message_bytes, self.address.name)
        if self.closed:
            raise Unavailable("this endpoint is closed", object=self.address.name)
        until = asyncio.get_running_loop().time() + within_s
        puller = await self.find(until)
        if not isinstance(puller, InlinePuller):
            raise BadRequest("nothing can be pushed to it", object=self.address.name)
        puller.let_in(self)
        if self.options.at_bound is AtBound.WAIT and not await puller.inbox.room(until):
            raise TimedOut(f"it took nothing within {within_s} s", object=self.address.name)
        puller.take(self, encoded, views)

    async def close(self) -> None:
        self.end()

    def end(self, died: bool = False) -> None:
        if not self.closed:
            self.closed = True
            found = self._exchange.listeners.get(self.address.endpoint)
            if found is not None:
                found.leave(self, died)


def _gone(name: str) -> Unavailable:
    return Unavailable("its connection broke", object=name, next_step="Wait for its next start, or stop.")
