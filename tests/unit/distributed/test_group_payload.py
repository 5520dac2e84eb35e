"""What ranks may say to each other: any plain value arrives as what it was, arrays without a copy."""

import contextlib
import math
import subprocess
import sys
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clutch.runtime.distributed.payload import OUT_OF_BAND_BYTES, Packed, list_of, pack, unpack, unpack_list
from clutch.runtime.distributed.segments import extent, laid_out, received_segment, write_segment
from clutch.wire.errors import BadRequest, ClutchError, Corrupt, TooLarge

DTYPES = ["<f8", "<f4", "<f2", "<i8", "<i4", ">i4", "|u1", "|b1", "<c16", "<M8[ns]", "<m8[s]", "<U3", "|S2"]
TORCH = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool, torch.complex64]
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


def an_array(dtype: str, shape: tuple[int, ...], fill: int) -> Any:
    count = math.prod(shape)
    raw = (bytes([fill % 2]) if dtype == "|b1" else bytes([fill])) * (count * numpy.dtype(dtype).itemsize)
    if dtype == "<U3":
        return numpy.full(shape, chr(97 + fill % 26), dtype)
    return numpy.frombuffer(raw, dtype).reshape(shape)


arrays = st.builds(an_array, st.sampled_from(DTYPES), shapes, st.integers(0, 127))
tensors = st.builds(
    lambda dtype, shape, fill: torch.full(shape, fill).to(dtype), st.sampled_from(TORCH), shapes, st.integers(0, 1)
)
scalars = (
    st.none() | st.booleans() | st.integers(-(1 << 80), 1 << 80) | st.floats() | st.text(max_size=20)
    | st.binary(max_size=20) | st.binary(min_size=OUT_OF_BAND_BYTES, max_size=OUT_OF_BAND_BYTES + 5)
    | st.floats(width=32).map(numpy.float32) | st.integers(0, 255).map(numpy.uint8)
)  # fmt: skip
keys = st.text(max_size=5) | st.integers(-(1 << 63), (1 << 64) - 1) | st.booleans() | st.binary(max_size=3)
values = st.recursive(
    scalars | arrays | tensors,
    lambda inside: (
        st.lists(inside, max_size=4)
        | st.lists(inside, max_size=4).map(tuple)
        | st.dictionaries(keys, inside, max_size=4)
    ),
    max_leaves=12,
)  # fmt: skip


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, numpy.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) or (one != one and other != other)


def carried(packed: Packed) -> Packed:
    """As it comes out at the other end of a wire."""
    return Packed(bytes(packed.body), [memoryview(bytearray(buffer)) for buffer in packed.buffers])


@given(values)
@settings(max_examples=300, deadline=None)
def test_a_value_arrives_as_what_it_was(value: Any) -> None:
    assert same(unpack(carried(pack(value))), value)


@given(st.lists(values, max_size=5))
@settings(max_examples=100, deadline=None)
def test_values_in_sealed_memory_are_the_same(several: list[Any]) -> None:
    for value in several:
        packed = pack(value)
        made = write_segment(laid_out(packed), extent(packed))
        try:
            assert received_segment(made.descriptor).size == extent(packed)
            view = made.view()
            at = 0
            parts = []
            for size in (len(packed.body), *[buffer.nbytes for buffer in packed.buffers]):
                parts.append(view[at : at + size])
                at += -(-size // 64) * 64
            assert same(unpack(Packed(parts[0], parts[1:])), value)
        finally:
            made.close()


@given(st.lists(scalars.filter(lambda value: not isinstance(value, bytes)), max_size=20))
def test_a_list_of_packed_values_is_the_list(several: list[Any]) -> None:
    assert same(unpack_list(list_of([pack(value).body for value in several])), several)


@given(st.binary(max_size=60), st.lists(st.binary(max_size=20), max_size=3))
@settings(max_examples=500, deadline=None)
def test_rubbish_is_refused_not_believed(body: bytes, buffers: list[bytes]) -> None:
    with contextlib.suppress(Corrupt):
        unpack(Packed(body, [memoryview(bytearray(buffer)) for buffer in buffers]))


@given(values, st.data())
@settings(max_examples=200, deadline=None)
def test_a_damaged_value_is_an_error_or_a_value(value: Any, data: st.DataObject) -> None:
    packed = carried(pack(value))
    body = bytearray(packed.body)
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] = data.draw(st.integers(0, 255))
    buffers = packed.buffers[: data.draw(st.integers(0, len(packed.buffers)))]
    with contextlib.suppress(ClutchError):
        unpack(Packed(bytes(body), buffers))


def test_arrays_are_not_copied_on_either_side() -> None:
    array = numpy.arange(1000.0)
    packed = pack({"x": array})
    array[0] = 7.0
    assert numpy.frombuffer(packed.buffers[0], "<f8")[0] == 7.0
    came = carried(packed)
    found = unpack(came)["x"]
    found[1] = 8.0
    assert numpy.frombuffer(came.buffers[0], "<f8")[1] == 8.0
    tensor = torch.arange(1000.0)
    packed = pack(tensor)
    tensor[0] = 7.0
    came = carried(packed)
    found = unpack(came)
    assert found[0] == 7.0
    found[1] = 8.0
    assert numpy.frombuffer(came.buffers[0], "<f4")[1] == 8.0


def test_tensors_that_need_gradients_and_arrays_that_are_not_contiguous_travel() -> None:
    weight = torch.ones(3, 3, requires_grad=True)
    assert not unpack(carried(pack(weight))).requires_grad
    assert torch.equal(unpack(carried(pack(weight.T))), torch.ones(3, 3))
    array = numpy.arange(12).reshape(3, 4)
    assert same(unpack(carried(pack(array.T[::2]))), numpy.ascontiguousarray(array.T[::2]))


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (object(), "builtins.object"),
        ({1, 2}, "builtins.set"),
        ([1, {"a": ValueError()}], "value[1]['a']"),
        (numpy.array([object()]), "dtype object"),
        (numpy.ma.masked_array([1], [True]), "MaskedArray"),
        (torch.ones(3).to_sparse(), "layout torch.sparse_coo"),
        ({(1, 2): 3}, "a key of type tuple"),
        (lambda: 1, "builtins.function"),
        (1 + 2j, "builtins.complex"),
        ("\ud800", "cannot be sent"),
    ],
)
def test_what_cannot_travel_is_named(value: Any, named: str) -> None:
    with pytest.raises(BadRequest) as error:
        pack(value)
    assert named in str(error.value)


def test_what_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TooLarge):
        pack(endless)


def test_nothing_is_unpickled_and_little_is_imported() -> None:
    program = (
        "import sys; from clutch.runtime.distributed import Group, Agreement; "
        "print([name for name in ('zmq', 'numpy', 'torch', 'pickle', 'asyncio') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"
