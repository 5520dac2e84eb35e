"""What ranks may say to each other: plain values as msgpack, arrays and tensors as raw buffers beside it.

Exactly these types travel, and arrive as what they were: None, bool, int, float, str, bytes, list, tuple, dict with
plain keys, NumPy arrays and numbers, PyTorch tensors (from a GPU: through the host, they arrive on the CPU). Anything
else is refused by the name of its type. Nothing is ever unpickled: a value that arrives runs no code.

A buffer is not copied here. What is unpacked are views of what was received, which belong to the receiver alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from clutch.wire.errors import BadRequest, Corrupt, TooLarge

OUT_OF_BAND_BYTES = 4 << 10
"""Bytes from so many on travel beside the message, as arrays do."""
DEPTH_MAX = 64
_TUPLE, _ARRAY, _TENSOR, _BIG_INT, _NUMBER, _BYTES = 1, 2, 3, 4, 5, 6
_INT_MIN, _INT_LIMIT = -(1 << 63), 1 << 64
_SCALARS = frozenset((type(None), bool, float, str))
_KEYS = frozenset((type(None), bool, int, float, str, bytes))
_NUMPY_KINDS = "biufcSUmM"
_UNDECODABLE = (
    msgspec.MsgspecError, ValueError, TypeError, IndexError, AttributeError, OverflowError, RuntimeError,
)  # fmt: skip
_encode = msgspec.msgpack.Encoder().encode
_plain_decode = msgspec.msgpack.Decoder().decode


class Packed(msgspec.Struct):
    """A value on its way: ``body`` refers to ``buffers`` by their number."""

    body: Any
    buffers: list[memoryview]

    @property
    def size(self) -> int:
        return len(self.body) + sum(buffer.nbytes for buffer in self.buffers)


def pack(value: Any) -> Packed:
    """``BadRequest`` names what cannot be sent, and where in the value it is."""
    if type(value) in _SCALARS:
        return Packed(_encoded(value), [])
    buffers: list[memoryview] = []
    return Packed(_encoded(_Packer(buffers).walk(value, "value", 0)), buffers)


def unpack(packed: Packed) -> Any:
    """The value. Its arrays and tensors are views of the buffers, which must be writable."""
    try:
        if not packed.buffers:
            return _bare.decode(packed.body)
        hook = _Unpacker(packed.buffers).hook
        return msgspec.msgpack.Decoder(ext_hook=hook).decode(packed.body)
    except _UNDECODABLE as error:
        raise Corrupt(f"a value that does not decode: {error}", object="message of a group") from error


def list_of(bodies: list[Any]) -> bytes:
    """The body of a list of values that have no buffers, made of their bodies."""
    return b"".join((b"\xdd", len(bodies).to_bytes(4, "big"), *bodies))


def unpack_list(body: Any) -> list[Any]:
    found: list[Any] = unpack(Packed(body, []))
    return found


def _encoded(tree: Any) -> bytes:
    try:
        return _encode(tree)
    except (UnicodeEncodeError, ValueError) as error:
        raise BadRequest(f"a text or number that cannot be sent: {error}", object="value") from error


class _Packer:
    def __init__(self, buffers: list[memoryview]) -> None:
        self._buffers = buffers

    def walk(self, value: Any, path: str, depth: int) -> Any:
        kind = type(value)
        if kind in _SCALARS:
            return value
        if kind is int:
            return value if _INT_MIN <= value < _INT_LIMIT else _big(value)
        if kind is bytes:
            return value if len(value) < OUT_OF_BAND_BYTES else self._beside(_BYTES, memoryview(value))
        if depth >= DEPTH_MAX:
            raise TooLarge(f"more than {DEPTH_MAX} levels of lists and dicts", object=path)
        if kind is list:
            return [self.walk(one, f"{path}[{at}]", depth + 1) for at, one in enumerate(value)]
        if kind is tuple:
            inside = [self.walk(one, f"{path}[{at}]", depth + 1) for at, one in enumerate(value)]
            return msgspec.msgpack.Ext(_TUPLE, _encoded(inside))
        if kind is dict:
            return {_key(key, path): self.walk(one, f"{path}[{key!r:.40}]", depth + 1) for key, one in value.items()}
        return self._foreign(value, path)

    def _foreign(self, value: Any, path: str) -> Any:
        """Of a library that is imported already, or nothing that we know."""
        numpy = sys.modules.get("numpy")
        if numpy is not None and type(value) is numpy.ndarray:
            return self._array(numpy, value, path)
        if numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind in _NUMPY_KINDS:
            return msgspec.msgpack.Ext(_NUMBER, _encoded([value.dtype.str, value.tobytes()]))
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return self._tensor(torch, value, path)
        kind = type(value)
        raise BadRequest(
            f"a {kind.__module__}.{kind.__qualname__} cannot be sent between ranks",
            object=path,
            next_step="Send plain values, NumPy arrays or PyTorch tensors made from it.",
        )

    def _array(self, numpy: Any, value: Any, path: str) -> Any:
        if value.dtype.kind not in _NUMPY_KINDS:
            raise BadRequest(
                f"an array of dtype {value.dtype} cannot be sent between ranks",
                object=path,
                next_step="Send one array for each plain dtype.",
            )
        flat = numpy.ascontiguousarray(value).reshape(-1)
        view = memoryview(flat.view(numpy.uint8)) if flat.nbytes else memoryview(b"")
        return self._beside(_ARRAY, view, value.dtype.str, value.shape)

    def _tensor(self, torch: Any, value: Any, path: str) -> Any:
        if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
            raise BadRequest(
                f"a tensor of layout {value.layout} on {value.device} cannot be sent between ranks",
                object=path,
                next_step="Send a dense tensor.",
            )
        flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        view = memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else memoryview(b"")
        return self._beside(_TENSOR, view, str(value.dtype).removeprefix("torch."), value.shape)

    def _beside(self, code: int, view: memoryview, dtype: str = "", shape: Sequence[int] = ()) -> Any:
        self._buffers.append(view)
        return msgspec.msgpack.Ext(code, _encode([len(self._buffers) - 1, dtype, list(shape)]))


class _Unpacker:
    def __init__(self, buffers: list[memoryview]) -> None:
        self._buffers = buffers
        self._makers: dict[int, Callable[[Any], Any]] = {
            _TUPLE: self._tuple,
            _ARRAY: self._array,
            _TENSOR: self._tensor,
            _BIG_INT: _small,
            _NUMBER: _number,
            _BYTES: self._bytes,
        }

    def hook(self, code: int, data: memoryview) -> Any:
        maker = self._makers.get(code)
        if maker is None:
            raise ValueError(f"an extension of unknown kind {code}")
        return maker(data)

    def _tuple(self, data: memoryview) -> Any:
        return tuple(msgspec.msgpack.Decoder(ext_hook=self.hook).decode(data))

    def _bytes(self, data: memoryview) -> bytes:
        return bytes(self._buffers[_plain_decode(data)[0]])

    def _array(self, data: memoryview) -> Any:
        import numpy

        number, dtype, shape = _plain_decode(data)
        if dtype[1:2] not in _NUMPY_KINDS:
            raise ValueError(f"an array of dtype {dtype!r}")
        buffer = self._buffers[number]
        if not buffer.nbytes:
            return numpy.empty(_empty(shape), dtype)
        return numpy.frombuffer(buffer, numpy.uint8).view(dtype).reshape(shape)

    def _tensor(self, data: memoryview) -> Any:
        import torch

        number, name, shape = _plain_decode(data)
        dtype = getattr(torch, name)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"a tensor of dtype {name!r}")
        buffer = self._buffers[number]
        if not buffer.nbytes:
            return torch.empty(_empty(shape), dtype=dtype)
        return torch.frombuffer(buffer, dtype=dtype).reshape(shape)


def _key(key: Any, path: str) -> Any:
    if type(key) not in _KEYS:
        raise BadRequest(
            f"a key of type {type(key).__qualname__} cannot be sent between ranks",
            object=path,
            next_step="Use texts, bytes or numbers as keys.",
        )
    if type(key) is int and not _INT_MIN <= key < _INT_LIMIT:
        raise BadRequest("a key beyond 64 bits cannot be sent between ranks", object=path)
    return key


def _empty(shape: list[int]) -> list[int]:
    """The shape of what has no bytes, which must not ask for any."""
    if 0 not in shape:
        raise ValueError(f"nothing is there for shape {shape}")
    return shape


def _big(value: int) -> Any:
    return msgspec.msgpack.Ext(_BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


def _small(data: memoryview) -> int:
    return int.from_bytes(data, "little", signed=True)


def _number(data: memoryview) -> Any:
    import numpy

    dtype, raw = _plain_decode(data)
    if dtype[1:2] not in _NUMPY_KINDS:
        raise ValueError(f"a number of dtype {dtype!r}")
    return numpy.frombuffer(raw, dtype)[0]


_bare = msgspec.msgpack.Decoder(ext_hook=_Unpacker([]).hook)
