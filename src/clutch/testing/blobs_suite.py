"""What every store of blobs must do, as checks that try to break it.

Each check takes a fresh ``Ground`` and asserts. ``CHECKS`` is all that any ground can stand; ``SHARED_CHECKS`` need one
that other processes reach, because they kill them; the rest (a full store, one that is ended) need grounds
made for it. A test runner runs each against each ground; nothing here needs a particular runner.
"""

from __future__ import annotations

import asyncio
import hashlib

from clutch.backends.blobs.base import Blobs, Maintenance
from clutch.testing.blobs_ground import (
    LARGE_BYTES,
    MIB,
    Check,
    FallibleGround,
    FullGround,
    Ground,
    SharedCheck,
    SharedGround,
    Told,
    all_keys,
    all_listed,
    chunks_of,
    noise,
    noise_file,
    refused,
    swept,
    version,
    version_of,
)
from clutch.testing.blobs_suite_faults import (
    SHARED_CHECKS,
    check_forgotten_upload_is_gone,
    check_full_store_changes_nothing,
    check_store_that_dies_comes_back,
)
from clutch.wire.errors import BadRequest, Conflict, Corrupt, NotFound

__all__ = [
    "CHECKS",
    "SHARED_CHECKS",
    "Check",
    "FallibleGround",
    "FullGround",
    "Ground",
    "SharedCheck",
    "SharedGround",
    "check_forgotten_upload_is_gone",
    "check_full_store_changes_nothing",
    "check_large_file",
    "check_store_that_dies_comes_back",
    "check_tree_conflicts_are_refused",
]

GOOD_KEYS = (
    "a", "checkpoints/0b5c/model.pt", "sp ace/Größe", "漢字/🦜", ".hidden/.file", "a-b/c", "dots..inside/...",
    "CASE/case",    "odd/%41 #?*<>{}[]^`|\"~&+=;:@,!$'()", "long/" + "x" * 200, "/".join(["deep"] * 40),
)  # fmt: skip
BAD_KEYS = (
    "", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a\\b", "a\0b", "a\nb", "a\x7f", "\ud800",
    "e\u0301", "x" * 201, "/".join(["y" * 100] * 6), ".clutch", ".clutch/parts/x", "line\u2028end",
)  # fmt: skip


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def check_gives_back_what_it_was_given(ground: Ground) -> None:
    blobs = await ground.open()
    assert isinstance(blobs, Maintenance)
    await blobs.check()
    contents = {key: noise(number, number * 1_000) for number, key in enumerate(GOOD_KEYS)}
    for key, content in contents.items():
        put = await blobs.put(key, content)
        assert (put.key, put.size_bytes, put.sha256) == (key, len(content), _sha256(content))
    other = await ground.open()
    for key, content in contents.items():
        assert await other.get(key) == content
        found = await other.stat(key)
        assert (found.key, found.size_bytes, found.sha256) == (key, len(content), _sha256(content))
        assert found.modified_at > 0
    assert await all_keys(other) == sorted(GOOD_KEYS), "checking a store leaves nothing in it"
    await blobs.put("a", memoryview(b"another"))
    assert await other.get("a") == b"another"
    await blobs.put("a", bytearray())
    assert await other.get("a") == b""
    assert (await other.stat("a")).size_bytes == 0


async def check_large_content_and_streams(ground: Ground) -> None:
    blobs = await ground.open()
    content = noise(1, LARGE_BYTES)
    assert (await blobs.put("large", content)).sha256 == _sha256(content)
    assert await blobs.get("large") == content
    streamed = await blobs.put("streamed", chunks_of(content, 777_777), create=True)
    assert (streamed.size_bytes, streamed.sha256) == (len(content), _sha256(content))
    assert await blobs.get("streamed") == content
    assert (await blobs.put("empty", chunks_of(b"", 1))).size_bytes == 0
    assert await blobs.get("empty") == b""
    await refused(Conflict, blobs.put("streamed", chunks_of(b"x" * LARGE_BYTES, MIB), create=True))
    await refused(Conflict, blobs.put("streamed", content, create=True))
    assert await blobs.get("streamed") == content
    await blobs.put("large", b"small again")
    assert await blobs.get("large") == b"small again"
    await blobs.put("empty", content)
    assert await blobs.get("empty") == content
    for key in ("large", "streamed", "empty"):
        await blobs.delete(key)
    await swept(ground, blobs)


async def check_stream_that_fails_leaves_nothing(ground: Ground) -> None:
    blobs = await ground.open()

    class Broken(Exception):
        pass

    async def broken(size_bytes: int):  # type: ignore[no-untyped-def]
        yield noise(1, size_bytes)
        raise Broken

    for size in (10, LARGE_BYTES):
        try:
            await blobs.put("k", broken(size))
        except Broken:
            pass
        else:
            raise AssertionError("the stream's own error was lost")
        await refused(NotFound, blobs.get("k"))
    await swept(ground, blobs)


async def check_ranges(ground: Ground) -> None:
    blobs = await ground.open()
    for key, content in (("small", noise(1, 5_000)), ("large", noise(2, LARGE_BYTES))):
        await blobs.put(key, content)
        size = len(content)
        ranges = [
            (0, 1),
            (0, size),
            (1, size),
            (size - 1, size),
            (size, size),
            (17, 17),
            (100, size + 50),
            (0, size * 2),
        ]
        ranges += [(MIB - 1, MIB + 1), (MIB, 2 * MIB), (MIB + 5, 4 * MIB + 7)] if size > 5 * MIB else []
        for start, stop in ranges:
            assert await blobs.get(key, start, stop) == content[start:stop], (key, start, stop)
        assert await blobs.get(key, size - 7) == content[-7:]
        assert await blobs.get(key, size) == b""
        for start, stop in ((-1, 5), (5, 4)):
            await refused(BadRequest, blobs.get(key, start, stop))
        await refused(BadRequest, blobs.get(key, size + 1))
    await blobs.put("empty", b"")
    assert await blobs.get("empty", 0, 10) == b""


async def check_missing_and_deleted(ground: Ground) -> None:
    blobs = await ground.open()
    await refused(NotFound, blobs.get("no/such"))
    await refused(NotFound, blobs.get("no/such", 0, 1))
    await refused(NotFound, blobs.stat("no/such"))
    target = ground.folder / "target"
    await refused(NotFound, blobs.get_file("no/such", target))
    assert not target.exists()
    await blobs.delete("no/such")
    for content in (b"x", noise(1, LARGE_BYTES)):
        await blobs.put("folder/one", content)
        await blobs.put("folder/two", b"2")
        await blobs.delete("folder/one")
        await blobs.delete("folder/one")
        await refused(NotFound, blobs.get("folder/one"))
        assert await all_keys(blobs) == ["folder/two"]
        assert await blobs.get("folder/two") == b"2"
    await blobs.delete("folder/two")
    assert await all_keys(blobs) == []
    await blobs.put("folder", b"the name is free again")
    await refused(NotFound, blobs.put_file("k", ground.folder / "no such file"))
    await refused(BadRequest, blobs.put_file("k", ground.folder))


async def check_bad_keys_are_refused(ground: Ground) -> None:
    blobs = await ground.open()
    path = ground.folder / "file"
    path.write_bytes(b"x")
    for key in BAD_KEYS:
        await refused(BadRequest, blobs.put(key, b"x"))
        await refused(BadRequest, blobs.get(key))
        await refused(BadRequest, blobs.stat(key))
        await refused(BadRequest, blobs.delete(key))
        await refused(BadRequest, blobs.put_file(key, path))
        await refused(BadRequest, blobs.get_file(key, ground.folder / "other"))
    for prefix in ("/", "../x", "a//b", ".clutch"):
        await refused(BadRequest, all_keys(blobs, prefix))
    await refused(BadRequest, all_listed(blobs, page_size=0))
    assert await all_keys(blobs) == []
    assert not (ground.folder / "other").exists()


async def check_tree_conflicts_are_refused(ground: Ground) -> None:
    """For stores that are trees."""
    blobs = await ground.open()
    await blobs.put("a/b", b"1")
    await refused(Conflict, blobs.put("a", b"2"))
    await refused(Conflict, blobs.put("a", b"2", create=True))
    await refused(Conflict, blobs.put("a/b/c", b"3"))
    await refused(NotFound, blobs.get("a"))
    await refused(NotFound, blobs.get("a/b/c"))
    await blobs.delete("a")
    await blobs.delete("a/b/c")
    assert await all_keys(blobs) == ["a/b"]
    assert await blobs.get("a/b") == b"1"


MANY = 1_200
"""More than any store answers in one page."""


async def check_lists_by_pages(ground: Ground) -> None:
    blobs = await ground.open()
    keys = [f"many/{number % 30:02d}/{number:04d}" for number in range(MANY)]
    gate = asyncio.Semaphore(16)

    async def put(key: str) -> None:
        async with gate:
            await blobs.put(key, b"")

    await asyncio.gather(*(put(key) for key in keys), put("many-more/x"), put("other"))
    for size in (1_000, 500):
        pages = [page async for page in blobs.list("many", page_size=size)]
        assert len(pages) >= MANY / size
        assert sorted(one.key for page in pages for one in page) == sorted(keys)
    assert await all_keys(blobs, "many/07/") == sorted(key for key in keys if key.startswith("many/07/"))
    assert await all_keys(blobs, "many/7") == [], "a prefix is a folder, not a beginning of a name"
    assert await all_keys(blobs, "many/07/0007") == []
    assert await all_keys(blobs, "nothing") == []
    assert len(await all_listed(blobs)) == MANY + 2
    async for page in blobs.list("many", page_size=10):
        assert len(page) == 10
        break  # leaving early is fine


async def check_one_creates(ground: Ground) -> None:
    openings = [await ground.open() for _ in range(3)]

    async def create(blobs: Blobs, key: str, content: bytes) -> bool:
        try:
            await blobs.put(key, content, create=True)
        except Conflict:
            return False
        return True

    for round_number in range(4):
        size = 3 * MIB if round_number % 3 == 0 else 10_000
        key = f"race/{round_number}"
        contents = [version(number, size) for number in range(len(openings))]
        won = await asyncio.gather(*(create(b, key, c) for b, c in zip(openings, contents, strict=True)))
        assert won.count(True) == 1, f"{won.count(True)} of {len(won)} created {key}"
        assert await openings[0].get(key) == contents[won.index(True)]
    path = ground.folder / "file"
    noise_file(path, 1, 2 * MIB)
    await refused(Conflict, openings[0].put_file("race/0", path, create=True))
    await openings[0].put_file("file", path, create=True)
    await refused(Conflict, openings[1].put_file("file", path, create=True))
    for listed in await all_listed(openings[0]):
        await openings[0].delete(listed.key)
    assert await ground.leftovers() == 0, "who lost the race left something behind"


async def check_readers_see_whole_versions(ground: Ground) -> None:
    writer, readers = await ground.open(), [await ground.open() for _ in range(3)]
    sizes = (8_000, 3 * MIB, 80, 2 * MIB)
    await writer.put("k", version(0, sizes[0]))
    done = asyncio.Event()

    async def write() -> None:
        for number in range(1, 25):
            await writer.put("k", version(number, sizes[number % len(sizes)]))
        done.set()

    async def read(blobs: Blobs) -> None:
        last = 0
        while not done.is_set():
            number = version_of(await blobs.get("k"))
            assert number >= last, "an older version came back"
            last = number

    await asyncio.gather(write(), *(read(blobs) for blobs in readers))
    assert version_of(await readers[0].get("k")) == 24


async def check_concurrent_gets(ground: Ground) -> None:
    blobs = await ground.open()
    content = noise(3, LARGE_BYTES)
    await blobs.put("k", content)
    got = await asyncio.gather(*(blobs.get("k") for _ in range(4)), *(blobs.get("k", n, n + 9) for n in range(20)))
    assert all(one == content for one in got[:4])
    assert [bytes(one) for one in got[4:]] == [content[n : n + 9] for n in range(20)]
    paths = [ground.folder / "same"] * 3 + [ground.folder / f"own{n}" for n in range(2)]
    await asyncio.gather(*(blobs.get_file("k", path) for path in paths))
    assert all(path.read_bytes() == content for path in paths)
    names = ["file", "own0", "own1", "same"]
    assert sorted(p.name for p in ground.folder.iterdir() if p.is_file() and p.name != "file") == names[1:]


async def _file_both_ways(ground: Ground, size_bytes: int) -> None:
    blobs = await ground.open()
    path, back = ground.folder / "there", ground.folder / "back"
    content = noise_file(path, size_bytes, size_bytes)
    told = Told()
    put = await blobs.put_file("files/one", path, progress=told)
    assert (put.size_bytes, put.sha256) == (size_bytes, _sha256(content))
    assert told.check(size_bytes) == 0
    back.write_bytes(b"what was there before")
    told = Told()
    assert (await blobs.get_file("files/one", back, progress=told)).sha256 == put.sha256
    assert told.check(size_bytes) == 0
    assert back.read_bytes() == content
    assert sorted(p.name for p in ground.folder.iterdir()) == ["back", "there"], "a part was left beside the file"


async def check_small_file(ground: Ground) -> None:
    await _file_both_ways(ground, 12_345)


async def check_large_file(ground: Ground) -> None:
    """64 MiB; part of no list because it takes a second or two."""
    await _file_both_ways(ground, 64 * MIB + 1)


async def check_file_put_again(ground: Ground) -> None:
    """The same file twice, then changed, then under another key: each is what was put last, nothing is left over."""
    blobs = await ground.open()
    path = ground.folder / "file"
    first = noise_file(path, 1, 3 * MIB)
    await blobs.put_file("k", path)
    await blobs.put_file("k", path)
    assert await blobs.get("k") == first
    await blobs.put_file("other", path)
    second = noise_file(path, 2, 3 * MIB)
    await blobs.put_file("k", path)
    assert await blobs.get("k") == second
    await blobs.delete("k")
    await blobs.put_file("k", path)
    assert await blobs.get("k") == second
    assert await blobs.get("other") == first
    again = await ground.open()
    await asyncio.gather(*(one.put_file("k", path) for one in (blobs, again, blobs)))
    await blobs.sweep(0.0)
    assert await blobs.get("k") == second
    assert await blobs.get("other") == first
    await blobs.delete("k")
    await blobs.delete("other")
    await swept(ground, blobs)


async def check_damage_is_found(ground: Ground) -> None:
    blobs = await ground.open()
    for key, size in (("small", 5_000), ("large", LARGE_BYTES)):
        await blobs.put(key, noise(1, size))
        await ground.damage(key)
        error = await refused(Corrupt, blobs.get(key))
        assert key in error.object
        target = ground.folder / "target"
        await refused(Corrupt, blobs.get_file(key, target))
        assert list(ground.folder.iterdir()) == [], "a damaged file was left"
        await blobs.put(key, b"mended")
        assert await blobs.get(key) == b"mended"


CHECKS: tuple[Check, ...] = (
    check_gives_back_what_it_was_given,
    check_large_content_and_streams,
    check_stream_that_fails_leaves_nothing,
    check_ranges,
    check_missing_and_deleted,
    check_bad_keys_are_refused,
    check_lists_by_pages,
    check_one_creates,
    check_readers_see_whole_versions,
    check_concurrent_gets,
    check_small_file,
    check_file_put_again,
    check_damage_is_found,
)
