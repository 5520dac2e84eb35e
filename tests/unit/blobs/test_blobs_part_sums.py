"""Large files in a folder are checked part by part; whatever is wrong with the sums, the hash has the last word."""

import os
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from clutch.backends.blobs.directory import DirectoryBlobs
from clutch.backends.blobs.part_sums import FROM_BYTES, PartSums, Summing, decode, part_bytes_of, sum_of
from clutch.wire.errors import Corrupt

SIZE = FROM_BYTES + 12_345
SHA = "ab" * 32
PARTS = "user.clutch.parts"


@given(st.integers(0, 1 << 50))
def test_sums_fit_an_attribute(size: int) -> None:
    part_bytes = part_bytes_of(size)
    assert (part_bytes == 0) == (size < FROM_BYTES)
    if part_bytes:
        count = -(-size // part_bytes)
        assert 4 <= count <= 256
        sums = PartSums(part_bytes, (7,) * count)
        assert len(sums.encode(SHA)) < 2_200
        assert decode(sums.encode(SHA), SHA, size) == sums


@given(st.binary(max_size=80))
def test_what_are_no_sums_of_this_file_are_none(junk: bytes) -> None:
    good = PartSums(8 << 20, (1, 2, 3, 4, 5)).encode(SHA)
    assert decode(junk, SHA, SIZE) is None or junk == good
    assert decode(good + junk[:1], SHA, SIZE) is None or not junk
    assert decode(good, "cd" * 32, SIZE) is None
    assert decode(good, SHA, 3 * SIZE) is None


@given(st.binary(max_size=60), st.lists(st.integers(1, 9), max_size=20), st.integers(1, 12))
def test_sums_do_not_depend_on_the_pieces_that_come(content: bytes, pieces: list[int], part_bytes: int) -> None:
    summing, rest = Summing(part_bytes), memoryview(content)
    for size in pieces:
        summing.add(rest[:size])
        rest = rest[size:]
    summing.add(rest)
    parts = [content[at : at + part_bytes] for at in range(0, len(content), part_bytes)]
    assert summing.sums() == PartSums(part_bytes, tuple(xxhash.xxh3_64_intdigest(part) for part in parts))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def stored(tmp_path: Path) -> tuple[DirectoryBlobs, bytes, Path]:
    blobs = await DirectoryBlobs.open(tmp_path / "blobs")
    content = os.urandom(1 << 20) * (SIZE // (1 << 20)) + os.urandom(SIZE % (1 << 20))
    (tmp_path / "origin").write_bytes(content)
    told: list[int] = []
    await blobs.put_file("a/b", tmp_path / "origin", progress=lambda done, reused: told.append(done))
    assert told[-1] == SIZE
    return blobs, content, tmp_path / "blobs" / "a" / "b"


async def test_a_large_file_comes_back_by_its_parts(tmp_path: Path) -> None:
    blobs, content, place = await stored(tmp_path)
    sums = decode(os.getxattr(place, PARTS), (await blobs.stat("a/b")).sha256, SIZE)
    assert sums is not None
    with place.open("rb") as file:
        for number, found in enumerate(sums.sums):
            first = number * sums.part_bytes
            assert found == sum_of(file.fileno(), first, min(first + sums.part_bytes, SIZE))
    told: list[int] = []
    await blobs.get_file("a/b", tmp_path / "back", progress=lambda done, reused: told.append(done))
    assert (tmp_path / "back").read_bytes() == content
    assert told == sorted(told)
    assert told[-1] == SIZE


@pytest.mark.parametrize("where", [0, SIZE // 2, SIZE - 1])
async def test_one_changed_bit_is_found_and_nothing_is_left(tmp_path: Path, where: int) -> None:
    blobs, content, place = await stored(tmp_path)
    with place.open("r+b") as file:
        file.seek(where)
        file.write(bytes([content[where] ^ 1]))
    with pytest.raises(Corrupt):
        await blobs.get_file("a/b", tmp_path / "back")
    assert names_in(tmp_path) == ["blobs", "origin"]


@pytest.mark.parametrize("fault", ["gone", "of another file", "wrong"])
async def test_sums_that_do_not_fit_leave_it_to_the_hash(tmp_path: Path, fault: str) -> None:
    blobs, content, place = await stored(tmp_path)
    sha256 = (await blobs.stat("a/b")).sha256
    sums = decode(os.getxattr(place, PARTS), sha256, SIZE)
    assert sums is not None
    if fault == "gone":
        os.removexattr(place, PARTS)
    elif fault == "of another file":
        os.setxattr(place, PARTS, sums.encode(SHA))
    else:
        os.setxattr(place, PARTS, PartSums(sums.part_bytes, (*sums.sums[:-1], sums.sums[-1] ^ 1)).encode(sha256))
    await blobs.get_file("a/b", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == content


async def test_half_a_download_goes_on_by_the_hash(tmp_path: Path) -> None:
    blobs, content, _ = await stored(tmp_path)
    sha256 = (await blobs.stat("a/b")).sha256
    half = tmp_path / f".back.{sha256[:16]}.part"
    half.write_bytes(content[: SIZE // 2])
    reused: list[int] = []
    await blobs.get_file("a/b", tmp_path / "back", progress=lambda done, again: reused.append(again))
    assert (tmp_path / "back").read_bytes() == content
    assert reused[-1] == SIZE // 2
