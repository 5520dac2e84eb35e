"""Heads and parts: which part holds which bytes."""

from hypothesis import given
from hypothesis import strategies as st

from clutch.backends.blobs.layout import PARTS_MAX, WINDOW_BYTES, Head, part_size_for, window_for


@given(st.integers(1, 50), st.integers(1, 400), st.data())
def test_parts_cover_a_range_exactly(part_bytes: int, size: int, data: st.DataObject) -> None:
    content = bytes(n % 251 for n in range(size))
    parts = [content[first : first + part_bytes] for first in range(0, size, part_bytes)]
    head = Head(size, "s", "u", part_bytes, tuple(str(n) for n in range(len(parts))))
    assert [head.part_size(n) for n in range(len(parts))] == [len(part) for part in parts]
    start = data.draw(st.integers(0, size - 1))
    stop = data.draw(st.integers(start + 1, size))
    covering = head.covering(start, stop)
    assert all(0 <= first < last <= head.part_size(index) for index, first, last in covering)
    assert b"".join(parts[index][first:last] for index, first, last in covering) == content[start:stop]


@given(st.integers(0, 1 << 50))
def test_there_are_never_too_many_parts_nor_too_much_in_flight(size: int) -> None:
    part_bytes = part_size_for(size, 1 << 24)
    assert size <= part_bytes * PARTS_MAX
    assert window_for(part_bytes) >= 2
    assert window_for(part_bytes) * part_bytes <= max(WINDOW_BYTES, 2 * part_bytes)
