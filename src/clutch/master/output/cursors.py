"""A cursor as text: how far each stream was read. Opaque to whoever holds it. Pure."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping

import msgspec

from clutch.wire.errors import BadRequest
from clutch.wire.output import STREAMS_MAX

_PLAIN, _PACKED = b"p", b"z"
_PACK_FROM_BYTES = 120
_MAX_BYTES = 32 * STREAMS_MAX


def written(positions: Mapping[int, int]) -> str:
    """The cursor for these offsets by stream id."""
    flat: list[int] = []
    before = 0
    for stream in sorted(positions):
        flat += (stream - before, positions[stream])
        before = stream
    raw = msgspec.msgpack.encode(flat)
    packed = _PLAIN + raw if len(raw) < _PACK_FROM_BYTES else _PACKED + zlib.compress(raw, 9)
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def read(cursor: str) -> dict[int, int]:
    """Offsets by stream id; ``BadRequest`` for anything that ``written`` did not make."""
    try:
        packed = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        raw = packed[1:]
        if packed[:1] == _PACKED:
            unpacker = zlib.decompressobj()
            raw = unpacker.decompress(raw, _MAX_BYTES)
        elif packed[:1] != _PLAIN:
            raise ValueError(packed[:1])
        flat = msgspec.msgpack.decode(raw, type=list[int])
        positions: dict[int, int] = {}
        stream = 0
        for step, position in zip(flat[::2], flat[1::2], strict=True):
            stream += step
            if position < 0 or not 0 < stream < 2**62:
                raise ValueError(position)
            positions[stream] = position
    except (ValueError, binascii.Error, zlib.error, msgspec.MsgspecError) as error:
        raise BadRequest(
            "this is no cursor of an output page", object="output", next_step="Use `after` or `before` of a page."
        ) from error
    return positions
