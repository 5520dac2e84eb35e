"""Between the heads of cells: ZeroMQ with CURVE over tcp. Only heads speak here, each from the thread that calls.

A head pulls from one socket and has a socket of its own towards each head that it speaks to. What comes from whom is
kept apart, because a fast head may be a few calls ahead. A message of more than ``PIECE_BYTES`` goes in pieces, which
are passed on as they come: a long way around a ring costs little more than a short one.

Buffers are sent and passed on without a copy. Callers may write to what they sent and what they got, so a call ends
only when ZeroMQ has let go of it (``flush``).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import zmq

from clutch.backends.transports.keys import KeyPair
from clutch.runtime.distributed.calls import Call, Calls, contradiction
from clutch.runtime.distributed.near import SLICE_S, Item
from clutch.runtime.distributed.payload import Packed
from clutch.runtime.distributed.shape import Seat
from clutch.wire.errors import Corrupt, TimedOut

PIECE_BYTES = 1 << 20
COPY_BELOW_BYTES = 64 << 10
QUEUE = 1000
ZAP_DOMAIN = b"clutch-group"
RECEIVING, SENDING = 0, 1
THREADS = 2
"""Of ZeroMQ. What goes out is encrypted in one while what comes in is decrypted in the other, each at about 1 GB/s."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """One item in a message: its body, and the sizes of its buffers. ``later``: it comes in another message."""

    rank: int
    body: bytes
    sizes: tuple[int, ...] = ()
    later: bool = False


class Heading(msgspec.Struct, frozen=True, array_like=True):
    """The first frame. ``pieces`` messages follow it when the buffers are not in this one."""

    source: int
    call: Call
    phase: int
    parts: tuple[Part, ...] = ()
    pieces: int = 0
    chain: bool = False
    """It goes from head to head; else down a tree."""


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """The first frame of what follows a heading; every first frame begins like it."""

    source: int


class Parcel(msgspec.Struct):
    """A message that came."""

    source: int
    chain: bool
    items: list[Item]
    later: tuple[int, ...] = ()
    """Ranks whose items come by another way, because they are large."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Heading).decode
_decode_source = msgspec.msgpack.Decoder(Piece).decode


class Far:
    """One head's sockets."""

    def __init__(self, context: zmq.Context[Any], rank: int, keys: KeyPair, calls: Calls, host: str) -> None:
        self._context = context
        self._rank = rank
        self._keys = keys
        self._calls = calls
        self._seats: Sequence[Seat] = ()
        self._server_keys: Sequence[str] = ()
        self._pushes: dict[int, zmq.Socket[bytes]] = {}
        self._waiting: dict[int, deque[list[Any]]] = {}
        self._sent: list[zmq.MessageTracker] = []
        self._pull: zmq.Socket[bytes] = context.socket(zmq.PULL)
        _prepare(self._pull, keys, host)
        self._pull.set(zmq.AFFINITY, 1 << RECEIVING)
        self._pull.set(zmq.CURVE_SERVER, 1)
        self._pull.set(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        self._pull.set(zmq.RCVHWM, QUEUE)
        self._pull.set(zmq.RCVTIMEO, int(SLICE_S * 1000))
        self.port = self._pull.bind_to_random_port(f"tcp://{bracketed(host)}")

    def know(self, seats: Sequence[Seat], server_keys: Sequence[str]) -> None:
        """Where the others are, by rank."""
        self._seats = seats
        self._server_keys = server_keys

    # ---------------------------------------------------------------------------------------------------- send

    def send(
        self, to: Sequence[int], call: Call, phase: int, items: Sequence[Item], *, later: Sequence[int] = (),
        chain: bool = False,
    ) -> None:  # fmt: skip
        """Queue it for these heads. It never waits; ``flush`` does."""
        parts = [
            Part(item.rank, bytes(item.packed.body), tuple(b.nbytes for b in item.packed.buffers)) for item in items
        ]
        parts += [Part(rank, b"", later=True) for rank in later]
        buffers = [buffer for item in items for buffer in item.packed.buffers]
        total = sum(buffer.nbytes for buffer in buffers)
        heading = Heading(self._rank, call, phase, tuple(parts), 0, chain)
        if total <= COPY_BELOW_BYTES:
            frames: list[Any] = [_encode(heading), *buffers]
            for rank in to:
                self._push(rank).send_multipart(frames)
            return
        made = [piece for buffer in buffers for piece in _cut(buffer)]
        heading = msgspec.structs.replace(heading, pieces=len(made))
        head, piece_head = _encode(heading), _encode(Piece(self._rank))
        for rank in to:
            push = self._push(rank)
            push.send(head)
            for piece in made:
                self._send_piece(push, piece_head, piece)

    def _send_piece(self, push: zmq.Socket[bytes], head: bytes, piece: memoryview) -> None:
        push.send(head, zmq.SNDMORE)
        tracker = push.send(piece, copy=False, track=True)
        if tracker is not None:
            self._sent.append(tracker)

    def flush(self, until: float, look: Callable[[], None]) -> None:
        """Until what was sent may be changed by whom it belongs to."""
        while self._sent:
            try:
                self._sent[-1].wait(SLICE_S)
                self._sent.pop()
            except zmq.NotDone:
                look()
                if time.monotonic() >= until:
                    raise TimedOut("it was not sent in time", object=f"message of rank {self._rank}") from None

    def _push(self, rank: int) -> zmq.Socket[bytes]:
        found = self._pushes.get(rank)
        if found is None:
            seat = self._seats[rank]
            found = self._context.socket(zmq.PUSH)
            _prepare(found, self._keys, seat.address)
            found.set(zmq.AFFINITY, 1 << SENDING)
            found.set(zmq.SNDHWM, 0)  # what one head waits for another must be able to send
            found.set(zmq.RECONNECT_IVL, 30)
            found.set(zmq.CURVE_SERVERKEY, self._server_keys[rank].encode())
            found.connect(f"tcp://{bracketed(seat.address)}:{seat.port}")
            self._pushes[rank] = found
        return found

    # ------------------------------------------------------------------------------------------------- receive

    def receive(
        self, call: Call, phase: int, source: int | None, until: float, look: Callable[[], None],
        onward: Callable[[Parcel], Sequence[int]] = lambda parcel: (),
    ) -> Parcel:  # fmt: skip
        """What this head (None: any) sent for this call, passed on to the heads that ``onward`` names."""
        sender, frames = self._first(call, phase, source, until, look)
        heading = _heading(frames[0])
        parcel = Parcel(sender, heading.chain, [], tuple(part.rank for part in heading.parts if part.later))
        to = [self._push(rank) for rank in onward(parcel)]
        if to:
            renamed = _encode(msgspec.structs.replace(heading, source=self._rank))
            for push in to:
                push.send_multipart([renamed, *frames[1:]], copy=False)
        if heading.pieces:
            buffers = self._pieces(heading, to, until, look)
        else:
            buffers = [memoryview(bytearray(frame.buffer)) for frame in frames[1:]]  # small, and aligned by this
        parcel.items = _items(heading.parts, buffers)
        return parcel

    def _pieces(
        self, heading: Heading, to: list[zmq.Socket[bytes]], until: float, look: Callable[[], None]
    ) -> list[memoryview]:
        piece_head = _encode(Piece(self._rank))

        def piece() -> memoryview:
            frames = self._next(heading.source, until, look)
            view: memoryview = frames[1].buffer
            for push in to:
                self._send_piece(push, piece_head, view)
            return view

        found: list[memoryview] = []
        for size in (size for part in heading.parts for size in part.sizes):
            if size <= PIECE_BYTES:
                found.append(piece() if size else memoryview(bytearray()))
                continue
            whole = _room(size)
            at = 0
            while at < size:
                came = piece()
                if at + came.nbytes > size or not came.nbytes:
                    raise Corrupt("its pieces are not what it declares", object=f"message of rank {heading.source}")
                whole[at : at + came.nbytes] = came
                at += came.nbytes
            found.append(whole)
        return found

    def _first(
        self, call: Call, phase: int, source: int | None, until: float, look: Callable[[], None]
    ) -> tuple[int, list[Any]]:
        while True:
            for sender in [source] if source is not None else list(self._waiting):
                queue = self._waiting.get(sender)
                if queue and self._is_for(queue[0], call, phase, strict=source is not None):
                    return sender, queue.popleft()
            self._take(until, look, [source] if source is not None else [])

    def _is_for(self, frames: list[Any], call: Call, phase: int, *, strict: bool) -> bool:
        """Raises if it belongs to a call that we are not in, and can never be in."""
        heading = _heading(frames[0])
        if heading.call == call:
            if heading.phase == phase:
                return True
            if not strict:
                return False
        ahead = heading.call.scope != call.scope or heading.call.number > call.number
        if not strict and ahead:
            return False
        own = self._calls.against(heading.call, call)
        raise contradiction(self._rank, own, heading.source, heading.call)

    def _next(self, source: int, until: float, look: Callable[[], None]) -> list[Any]:
        while not self._waiting.get(source):
            self._take(until, look, [source])
        return self._waiting[source].popleft()

    def _take(self, until: float, look: Callable[[], None], missing: list[int]) -> None:
        """One more message from anybody, put to those of its sender."""
        frames: list[Any] = []
        while not frames:
            try:
                frames = self._pull.recv_multipart(copy=False)
            except zmq.Again:  # a slice is over
                look()
                if time.monotonic() >= until:
                    raise TimedOut("nothing came", object=f"rank {missing[0]}" if missing else "group") from None
        try:
            source = _decode_source(frames[0].buffer).source
        except msgspec.MsgspecError as error:
            raise Corrupt(f"a message that does not decode: {error}", object="message of a group") from error
        self._waiting.setdefault(source, deque()).append(frames)

    def close(self, linger_s: float) -> None:
        for push in self._pushes.values():
            push.close(int(linger_s * 1000))
        self._pull.close(0)


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _prepare(socket: zmq.Socket[bytes], keys: KeyPair, host: str) -> None:
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.IPV6, 1 if ":" in host else 0)
    socket.set(zmq.CURVE_PUBLICKEY, keys.public.encode())
    socket.set(zmq.CURVE_SECRETKEY, keys.secret.encode())


def _heading(frame: Any) -> Heading:
    try:
        return _decode(frame.buffer)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"a message that does not decode: {error}", object="message of a group") from error


def _items(parts: Sequence[Part], buffers: list[memoryview]) -> list[Item]:
    """Each item with its own buffers, in the order in which they were sent."""
    sizes = [size for part in parts if not part.later for size in part.sizes]
    if sizes != [buffer.nbytes for buffer in buffers]:
        raise Corrupt("its buffers are not what it declares", object="message of a group")
    rest = iter(buffers)
    return [Item(part.rank, Packed(part.body, [next(rest) for _ in part.sizes])) for part in parts if not part.later]


def _cut(buffer: memoryview) -> list[memoryview]:
    return [buffer[at : at + PIECE_BYTES] for at in range(0, buffer.nbytes, PIECE_BYTES)]


def _room(size: int) -> memoryview:
    """Memory that is not touched before it is needed."""
    import mmap

    return memoryview(mmap.mmap(-1, size))
