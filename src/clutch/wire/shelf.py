"""What a master and an agent's shelf of blobs say to each other, over a tunnel of their bulk connection.

Each message is its length in four bytes and then msgpack. One question is under way on a tunnel at a time:

    ``ShelfList``                                       -> ``ShelfPage``..., ``ShelfDone``
    ``ShelfBegin``, ``ShelfPiece``..., ``ShelfCommit``  -> ``ShelfKept``
    ``ShelfGet``                                        -> ``ShelfPiece``..., ``ShelfDone``
    ``ShelfVerify``, ``ShelfDrop``, ``ShelfSweep``      -> ``ShelfDone``

or ``ShelfFailed`` in place of any answer. A tunnel that ends in the middle of a write leaves nothing behind.
"""

from __future__ import annotations

import msgspec

from clutch.wire.errors import BadRequest, ErrorView

MESSAGE_MAX_BYTES = 4 * 2**20
PAGE_ENTRIES = 500
_LENGTH_BYTES = 4


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One version of a blob as it lies on a shelf. ``gone``: it was deleted, and this is what remembers it."""

    key: str
    stamp: int
    """Of two versions of a key the one with the higher stamp is valid."""
    size_bytes: int
    sha256: str
    modified_at: float
    gone: bool = False


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """What a version is sealed with when all its bytes are there."""

    stamp: int
    sha256: str
    modified_at: float
    gone: bool = False


class ShelfList(msgspec.Struct, frozen=True, tag="list"):
    pass


class ShelfBegin(msgspec.Struct, frozen=True, tag="begin"):
    key: str


class ShelfPiece(msgspec.Struct, frozen=True, tag="piece"):
    data: bytes


class ShelfCommit(msgspec.Struct, frozen=True, tag="commit"):
    mark: Mark


class ShelfGet(msgspec.Struct, frozen=True, tag="get"):
    """Bytes ``start`` to ``stop`` of this version and no other."""

    key: str
    stamp: int
    start: int
    stop: int


class ShelfVerify(msgspec.Struct, frozen=True, tag="verify"):
    key: str
    stamp: int


class ShelfDrop(msgspec.Struct, frozen=True, tag="drop"):
    """This version, or an older one, is not wanted here any more."""

    key: str
    stamp: int


class ShelfSweep(msgspec.Struct, frozen=True, tag="sweep"):
    older_than_s: float


class ShelfPage(msgspec.Struct, frozen=True, tag="page"):
    entries: tuple[Entry, ...]


class ShelfKept(msgspec.Struct, frozen=True, tag="kept"):
    """It is durable on this shelf."""

    entry: Entry


class ShelfDone(msgspec.Struct, frozen=True, tag="done"):
    count: int = 0


class ShelfFailed(msgspec.Struct, frozen=True, tag="failed"):
    error: ErrorView


Question = ShelfList | ShelfBegin | ShelfPiece | ShelfCommit | ShelfGet | ShelfVerify | ShelfDrop | ShelfSweep
Answer = ShelfPage | ShelfKept | ShelfPiece | ShelfDone | ShelfFailed

_encode = msgspec.msgpack.Encoder().encode


def packed(message: Question | Answer) -> bytes:
    """The message with its length before it."""
    body = _encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


class Messages:
    """Bytes in, whole messages out."""

    def __init__(self, kinds: object) -> None:
        self._decode = msgspec.msgpack.Decoder(kinds).decode
        self._held = bytearray()

    def feed(self, data: bytes) -> None:
        self._held += data

    def next(self) -> object | None:
        """The next whole message, or None until more has come. ``BadRequest`` for what is none."""
        if len(self._held) < _LENGTH_BYTES:
            return None
        size = int.from_bytes(self._held[:_LENGTH_BYTES], "big")
        if size > MESSAGE_MAX_BYTES:
            raise BadRequest(f"a message of {size} bytes", object="shelf")
        if len(self._held) < _LENGTH_BYTES + size:
            return None
        body = bytes(self._held[_LENGTH_BYTES : _LENGTH_BYTES + size])
        del self._held[: _LENGTH_BYTES + size]
        try:
            message: object = self._decode(body)
        except msgspec.MsgspecError as wrong:
            raise BadRequest(f"a message cannot be read: {wrong}", object="shelf") from wrong
        return message
