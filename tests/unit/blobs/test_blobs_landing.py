"""A file whose parts arrive out of turn: hashed in turn, taken up after a cut, never written by a late thread."""

import hashlib
import os
import threading
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clutch.backends.blobs.landing import Landing
from clutch.backends.blobs.uploads import prefix_digest
from clutch.wire.errors import Corrupt, Unavailable

UNIT = 64 * 1024
"""A part; whole blocks of any file system, as real ones are."""


def content_of(count: int) -> bytes:
    return Random(count).randbytes(count * UNIT - 17)


def part(content: bytes, index: int) -> memoryview:
    return memoryview(content)[index * UNIT : (index + 1) * UNIT]


def landing_of(path: Path, content: bytes) -> Landing:
    return Landing(path, hashlib.sha256(content).hexdigest(), None)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 8), st.randoms(use_true_random=False), st.data())
def test_parts_in_any_order_make_the_file(tmp_path: Path, count: int, chance: Random, data: st.DataObject) -> None:
    """Cut off after some of the parts, the next try goes on behind those that are whole, and no further."""
    content = content_of(count)
    path = tmp_path / "file"
    path.unlink(missing_ok=True)
    order = list(range(count))
    chance.shuffle(order)
    written = order[: data.draw(st.integers(0, count))]
    landing = landing_of(path, content)
    for index in written:
        landing.put_at(part(content, index), index * UNIT)
    landing.close(keep=True)
    assert not path.exists()

    landing = landing_of(path, content)
    there = landing.resume(UNIT, len(content))
    whole = next((index for index in range(count) if index not in written), count)
    assert there <= whole * UNIT, "bytes that never came were taken for what was sent"
    expected = [min(whole * UNIT, len(content)), 0]  # a file system that cannot tell gaps begins again, by the hash
    assert there in (expected[0] - expected[0] % UNIT, expected[1])
    for index in range(there // UNIT, count):
        landing.put_at(part(content, index), index * UNIT)
    for index in range(there // UNIT, count):
        landing.take(min((index + 1) * UNIT, len(content)))
    assert landing.is_sound
    landing.finish("k")
    landing.close(keep=False)
    assert path.read_bytes() == content
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_one_wrong_bit_in_a_part_is_found(tmp_path: Path) -> None:
    content = content_of(4)
    landing = landing_of(tmp_path / "file", content)
    spoilt = bytearray(content)
    spoilt[3 * UNIT + 5] ^= 1
    for index in (2, 0, 3, 1):
        landing.put_at(part(bytes(spoilt), index), index * UNIT)
    landing.take(len(content))
    assert not landing.is_sound
    with pytest.raises(Corrupt):
        landing.finish("k")
    landing.close(keep=False)
    assert list(tmp_path.iterdir()) == []


def test_a_thread_that_comes_late_writes_nowhere(tmp_path: Path) -> None:
    """The caller gave up and closed; by then the descriptor's number may be another file's."""
    content = content_of(64)
    landing = landing_of(tmp_path / "file", content)
    begun, ended = threading.Event(), []

    def write() -> None:
        try:
            while True:
                for index in range(64):
                    landing.put_at(part(content, index), index * UNIT)
                begun.set()
        except Unavailable as error:
            ended.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    begun.wait()
    landing.close(keep=True)
    others = [os.open(tmp_path / f"other{number}", os.O_RDWR | os.O_CREAT) for number in range(8)]
    for thread in threads:
        thread.join()
    assert len(ended) == 4
    sizes = [os.fstat(other).st_size for other in others]
    for other in others:
        os.close(other)
    assert sizes == [0] * 8
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(landing.descriptor)


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.binary(max_size=40), max_size=6))
def test_parts_with_the_same_name_are_the_same_up_to_there(one: list[bytes], other: list[bytes]) -> None:
    def names(parts: list[bytes]) -> list[str]:
        digest = hashlib.sha256()
        return [prefix_digest(digest, content) for content in parts]

    for index, (mine, theirs) in enumerate(zip(names(one), names(other), strict=False)):
        assert mine == hashlib.sha256(b"".join(one[: index + 1])).hexdigest()
        assert (mine == theirs) == (b"".join(one[: index + 1]) == b"".join(other[: index + 1]))
