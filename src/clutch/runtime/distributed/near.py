"""Between ranks of one cell: a star of unix sockets around its head.

These sockets are spoken to by the calling thread itself, without a thread of a library in between: on a busy machine
that is most of what a small message costs. A large one goes as a segment, whose descriptor travels with the message.

Whoever waits looks up every ``SLICE_S`` to see whether the group has failed meanwhile, and gives up at its deadline.
"""

from __future__ import annotations

import array
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn, TypeVar

import msgspec

from clutch.runtime.distributed.calls import Call
from clutch.runtime.distributed.payload import Packed
from clutch.runtime.distributed.segments import Segment, extent, laid_out, received_segment, write_segment
from clutch.wire.errors import Corrupt, TimedOut

SLICE_S = 0.05
INLINE_BYTES = 32 << 10
"""What is larger goes as a segment."""
MESSAGE_BYTES = 128 << 10
SEGMENTS_MAX = 240
"""The kernel passes at most 253 descriptors with a message."""
_ANCILLARY = socket.CMSG_SPACE((SEGMENTS_MAX + 1) * 4)
_INLINE = -1


class Item(msgspec.Struct):
    """What one rank brought. ``segment`` is where it lies already, if it lies in one."""

    rank: int
    packed: Packed
    segment: Segment | None = None
    offset: int = 0

    @property
    def size(self) -> int:
        return self.packed.size


class Layout(msgspec.Struct, frozen=True, array_like=True):
    """Where an item lies: in which segment of the message (or in the message), and how long its parts are."""

    rank: int
    segment: int
    offset: int
    body_size: int
    sizes: tuple[int, ...] = ()


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """What stands in front of a message. A long list of items is itself in the first segment."""

    call: Call
    phase: int
    source: int
    items: tuple[Layout, ...] = ()
    listed_bytes: int = 0


class Arrived(msgspec.Struct):
    call: Call
    phase: int
    source: int
    items: list[Item]
    segments: list[Segment]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Envelope).decode
_decode_items = msgspec.msgpack.Decoder(tuple[Layout, ...]).decode
_decode_beginning = msgspec.msgpack.Decoder(tuple[Call, int]).decode
_PREFIX = struct.Struct("<I")
_BEGINNING = struct.Struct("<BH")
_SHORT, _LONG = 1, 2
_FOLLOWS = bytes([_LONG])
"""Says that a message with segments comes next."""
SHORT_BYTES = 4 << 10
"""A value up to so long, without buffers, goes as a short message."""
W = TypeVar("W")


def beginning(call: Call, phase: int) -> bytes:
    """With what every short message of this phase begins, whoever sends it."""
    said = _encode((call, phase))
    return _BEGINNING.pack(_SHORT, len(said)) + said


class Line:
    """One unix socket with one rank at its other end."""

    def __init__(self, wire: socket.socket, rank: int) -> None:
        self.rank = rank
        self._wire = wire
        self._buffer = bytearray(MESSAGE_BYTES)
        self._view = memoryview(self._buffer)
        wire.setblocking(True)
        timeval = struct.pack("ll", 0, int(SLICE_S * 1e6))
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
        for side in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            wire.setsockopt(socket.SOL_SOCKET, side, 4 * MESSAGE_BYTES)

    def send(self, message: Message, until: float, look: Callable[[], None]) -> None:
        """Until the kernel has it. ``look`` raises if there is no sense in waiting any longer."""
        self.say(_FOLLOWS, until, look)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, message.descriptors)] if message.descriptors else []
        self._wait(lambda: self._wire.sendmsg([message.data], rights), until, look)

    def say(self, data: bytes, until: float, look: Callable[[], None]) -> None:
        """Send a short message, which begins as its receiver expects."""
        try:
            self._wire.send(data)
        except OSError:
            self._wait(lambda: self._wire.send(data), until, look)

    def hear(self, expected: bytes, until: float, look: Callable[[], None]) -> bytes | Arrived:
        """What comes behind the expected beginning of a short message, or a message of the other kind."""
        try:
            size = self._wire.recv_into(self._buffer)
        except OSError:
            size = self._wait(lambda: self._wire.recv_into(self._buffer), until, look)
        if not size:
            self._wait_for_verdict(until, look)
        if self._buffer.startswith(expected, 0, size):
            return bytes(self._view[len(expected) : size])
        if self._buffer.startswith(_FOLLOWS, 0, size):
            return self._receive(until, look)
        return self._unexpected(size)

    def _receive(self, until: float, look: Callable[[], None]) -> Arrived:
        size, ancillary, flags, _ = self._wait(lambda: self._wire.recvmsg_into([self._buffer], _ANCILLARY), until, look)
        if not size and not ancillary:
            self._wait_for_verdict(until, look)
        segments = _segments_in(ancillary)
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            _close(segments)
            raise Corrupt("a message that is cut short", object=f"rank {self.rank}")
        return _opened(self._view[:size], segments, self.rank)

    def _unexpected(self, size: int) -> Arrived:
        """A short message of another call."""
        try:
            length = _BEGINNING.unpack_from(self._buffer)[1]
            call, phase = _decode_beginning(self._view[_BEGINNING.size : _BEGINNING.size + length])
        except (msgspec.MsgspecError, struct.error) as error:
            raise Corrupt(f"a message that does not decode: {error}", object=f"rank {self.rank}") from error
        return Arrived(call, phase, self.rank, [], [])

    def _wait(self, attempt: Callable[[], W], until: float, look: Callable[[], None]) -> W:
        """Try again every ``SLICE_S``: the kernel ends each attempt by then."""
        while True:
            try:
                return attempt()
            except BlockingIOError:
                look()
                if time.monotonic() >= until:
                    raise TimedOut("it did not come", object=f"rank {self.rank}") from None
            except ConnectionResetError:
                continue  # said once, before what it sent last
            except BrokenPipeError:
                self._wait_for_verdict(until, look)

    def close(self) -> None:
        self._wire.close()

    def _wait_for_verdict(self, until: float, look: Callable[[], None]) -> NoReturn:
        """Its end is gone. The group knows best why, and hears of it at once; without word it is taken for dead."""
        until = min(until, time.monotonic() + 2.0)
        while time.monotonic() < until:
            look()
            time.sleep(0.002)
        raise LineEnded(self.rank)


class LineEnded(Exception):
    """Its other end is closed and the group has not said why."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"the line of rank {rank} is closed")
        self.rank = rank


class Message:
    """Items on their way to one rank or several. The segments it made are closed by ``close``."""

    def __init__(self, call: Call, phase: int, source: int, items: Sequence[Item]) -> None:
        self._made: list[Segment] = []
        self._passed: dict[int, int] = {}
        tail: list[memoryview] = []
        layouts = self._place(items, tail)
        listed = _encode(layouts) if len(layouts) > 64 else b""
        if len(listed) > INLINE_BYTES:
            first = write_segment([memoryview(listed)], len(listed))
            self._made.append(first)
            self._passed = {first.descriptor: 0, **{fd: number + 1 for fd, number in self._passed.items()}}
            head = _encode(Envelope(call, phase, source, (), len(listed)))
        else:
            head = _encode(Envelope(call, phase, source, tuple(layouts)))
        self.data = b"".join((_PREFIX.pack(len(head)), head, *tail))
        self.descriptors = array.array("i", self._passed)

    def _place(self, items: Sequence[Item], tail: list[memoryview]) -> list[Layout]:
        """Small items in the message, the others where they lie, or in one new segment."""
        room = INLINE_BYTES
        layouts: list[Layout | None] = []
        homeless: list[int] = []
        offset = 0
        for index, item in enumerate(items):
            size = item.packed.size
            if item.segment is not None and len(self._passed) < SEGMENTS_MAX - 1:
                number = self._passed.setdefault(item.segment.descriptor, len(self._passed))
                layouts.append(_layout(item, number, item.offset))
            elif item.segment is None and size <= room:
                room -= size
                tail += [memoryview(item.packed.body), *item.packed.buffers]
                layouts.append(_layout(item, _INLINE, offset))
                offset += size
            else:
                layouts.append(None)
                homeless.append(index)
        if homeless:
            parts: list[memoryview] = []
            at = 0
            number = len(self._passed)
            for index in homeless:
                layouts[index] = _layout(items[index], number, at)
                parts += laid_out(items[index].packed)
                at += extent(items[index].packed)
            made = write_segment(parts, at)
            self._made.append(made)
            self._passed[made.descriptor] = number
        return [layout for layout in layouts if layout is not None]

    def close(self) -> None:
        _close(self._made)


def settled(item: Item) -> Item:
    """The item as others will see it: a large one in a segment, a small one in memory of its own."""
    packed = item.packed
    size = packed.size
    if size <= INLINE_BYTES:
        if not packed.buffers:
            return item
        return Item(item.rank, Packed(bytes(packed.body), [memoryview(bytearray(part)) for part in packed.buffers]))
    segment = write_segment(laid_out(packed), extent(packed))
    return _in_segment(Layout(item.rank, 0, 0, len(packed.body), _sizes(packed)), segment)


def _layout(item: Item, segment: int, offset: int) -> Layout:
    return Layout(item.rank, segment, offset, len(item.packed.body), _sizes(item.packed))


def _sizes(packed: Packed) -> tuple[int, ...]:
    return tuple([buffer.nbytes for buffer in packed.buffers]) if packed.buffers else ()


def _opened(data: memoryview, segments: list[Segment], rank: int) -> Arrived:
    try:
        (head_size,) = _PREFIX.unpack_from(data)
        envelope = _decode(data[4 : 4 + head_size])
        layouts = envelope.items
        passed = segments
        if envelope.listed_bytes:
            layouts = _decode_items(segments[0].view()[: envelope.listed_bytes])
            segments[0].close()
            passed = segments[1:]
        tail = data[4 + head_size :]
        items = [
            _in_segment(layout, passed[layout.segment]) if layout.segment != _INLINE else _in_message(layout, tail)
            for layout in layouts
        ]
    except (msgspec.MsgspecError, struct.error, IndexError, ValueError) as error:
        _close(segments)
        raise Corrupt(f"a message that does not decode: {error}", object=f"rank {rank}") from error
    return Arrived(envelope.call, envelope.phase, envelope.source, items, passed)


def _in_message(layout: Layout, tail: memoryview) -> Item:
    end = layout.offset + layout.body_size
    if end + sum(layout.sizes) > tail.nbytes or layout.offset < 0:
        raise ValueError("an item beyond its message")
    body = bytes(tail[layout.offset : end])
    buffers = []
    for size in layout.sizes:
        buffers.append(memoryview(bytearray(tail[end : end + size])))
        end += size
    return Item(layout.rank, Packed(body, buffers))


def _in_segment(layout: Layout, segment: Segment) -> Item:
    view = segment.view()
    parts = []
    at = layout.offset
    for size in (layout.body_size, *layout.sizes):
        if at < 0 or size < 0 or at + size > segment.size:
            raise ValueError("an item beyond its segment")
        parts.append(view[at : at + size])
        at += -(-size // 64) * 64
    return Item(layout.rank, Packed(parts[0], parts[1:]), segment, layout.offset)


def _segments_in(ancillary: list[tuple[int, int, bytes]]) -> list[Segment]:
    found: list[Segment] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors = array.array("i")
            descriptors.frombytes(data[: len(data) - len(data) % 4])
            found += [received_segment(descriptor) for descriptor in descriptors]
    return found


def _close(segments: Iterable[Segment]) -> None:
    for segment in segments:
        segment.close()


def close_segments(items: Iterable[Item], arrived: Iterable[Arrived] = ()) -> None:
    """What was mapped stays mapped; the descriptors are not needed any longer."""
    for item in items:
        if item.segment is not None:
            item.segment.close()
    for one in arrived:
        _close(one.segments)
