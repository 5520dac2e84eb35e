"""What stands in front of every message: a control frame, then the header, then the buffers.

Buffers beyond ``PIECE_BYTES`` travel in pieces, so that a heartbeat never waits behind more than one of them; the
control frame then says the whole sizes, and the receiver joins them (one copy, for these only).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import msgspec

from clutch.backends.transports.base import BUFFERS_MAX, Buffer
from clutch.wire import errors
from clutch.wire.errors import ClutchError, Corrupt, ErrorView

PIECE_BYTES = 8 << 20
PROTOCOL = 1


class Kind(IntEnum):
    HELLO = 1  # a caller says who it is; ``number`` is its incarnation
    WELCOME = 2
    REFUSED = 3  # why this connection is not heard
    REQUEST = 4
    REPLY = 5
    FAILURE = 6  # the answer is an error
    BYE = 7  # the sender leaves; the end of its connection is not a death
    DATA = 8  # pushed; ``number`` is the sender's incarnation


class Control(msgspec.Struct, frozen=True, array_like=True):
    kind: Kind
    number: int
    name: str = ""
    sizes: tuple[int, ...] = ()
    limit: int = 0
    error: ErrorView | None = None
    protocol: int = PROTOCOL


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Control)
_ERRORS = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, ClutchError) and kind is not ClutchError
}


def encode(control: Control) -> bytes:
    return _encoder.encode(control)


def decode(frame: Buffer) -> Control:
    try:
        return _decoder.decode(frame)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"a control frame that does not decode: {error}", object="message") from error


def cut(views: Sequence[memoryview]) -> tuple[list[memoryview], tuple[int, ...]]:
    """The frames to send, and the sizes to declare: none if every buffer is one frame."""
    if all(view.nbytes <= PIECE_BYTES for view in views):
        return list(views), ()
    frames = []
    for view in views:
        frames += [view[at : at + PIECE_BYTES] for at in range(0, max(view.nbytes, 1), PIECE_BYTES)]
    return frames, tuple(view.nbytes for view in views)


def join(frames: Sequence[memoryview], sizes: tuple[int, ...]) -> tuple[memoryview, ...]:
    """The buffers that were cut."""
    if not sizes:
        if len(frames) > BUFFERS_MAX:
            raise Corrupt(f"{len(frames)} buffers", object="message")
        return tuple(frames)
    if len(sizes) > BUFFERS_MAX or min(sizes) < 0 or sum(sizes) != sum(frame.nbytes for frame in frames):
        raise Corrupt("its pieces are not what it declares", object="message")
    buffers = []
    rest = iter(frames)
    for size in sizes:
        whole = memoryview(bytearray(size)) if size > PIECE_BYTES else None
        at = 0
        while True:
            piece = next(rest, None)
            if piece is None or at + piece.nbytes > size or (whole is None and piece.nbytes != size):
                raise Corrupt("its pieces are not what it declares", object="message")
            if whole is None:
                whole = piece
            else:
                whole[at : at + piece.nbytes] = piece
            at += piece.nbytes
            if at == size:
                break
        buffers.append(whole)
    return tuple(buffers)


def raised(view: ErrorView | None) -> ClutchError:
    """An error that crossed the wire, as one to raise."""
    if view is None:
        return Corrupt("an error without a cause", object="message")
    kind = _ERRORS.get(view.code, errors.ClusterError)
    return kind(view.cause, object=view.object, next_step=view.next_step)
