"""What only a folder can suffer."""

import asyncio
import os
import shutil
import time
from pathlib import Path

import pytest

from clutch.backends.blobs.directory import DirectoryBlobs
from clutch.wire.errors import Conflict, Corrupt, NotFound, Unavailable


async def test_a_blob_is_the_file_itself(tmp_path: Path) -> None:
    blobs = await DirectoryBlobs.open(tmp_path)
    await blobs.put("run/model.json", b"{}")
    assert (tmp_path / "run" / "model.json").read_bytes() == b"{}"
    mode = (tmp_path / "run" / "model.json").stat().st_mode & 0o777
    assert mode & 0o600 == 0o600
    assert mode == 0o666 & ~_umask(), "others who share the folder cannot read it"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


async def test_foreign_and_shortened_files_are_corrupt_not_served(tmp_path: Path) -> None:
    for use_attributes in (True, False):
        root = tmp_path / str(use_attributes)
        blobs = await DirectoryBlobs.open(root, use_attributes=use_attributes)
        (root / "foreign").write_bytes(b"x" * 500)
        await blobs.put("short", b"y" * 500)
        os.truncate(root / "short", 400)
        for key in ("foreign", "short"):
            with pytest.raises(Corrupt):
                await blobs.get(key)
            with pytest.raises(Corrupt):
                await blobs.stat(key)
            await blobs.put(key, b"mended")
            assert await blobs.get(key) == b"mended"


async def test_a_link_is_not_followed_out_of_the_folder(tmp_path: Path) -> None:
    blobs = await DirectoryBlobs.open(tmp_path / "root")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "root" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(Unavailable):
        await blobs.get("link")
    assert [page async for page in blobs.list()] == []
    await blobs.put("link", b"a blob")
    assert (tmp_path / "secret").read_text() == "secret"


async def test_a_folder_that_vanished_is_not_an_empty_one(tmp_path: Path) -> None:
    blobs = await DirectoryBlobs.open(tmp_path / "root")
    await blobs.put("k", b"x")
    shutil.rmtree(tmp_path / "root")
    with pytest.raises(Unavailable, match="mounted"):
        await blobs.get("k")
    with pytest.raises(Unavailable, match="mounted"):
        await blobs.put("k", b"y")
    assert not (tmp_path / "root").exists(), "it was made anew on another disk"


async def test_sweep_leaves_what_is_being_written(tmp_path: Path) -> None:
    blobs = await DirectoryBlobs.open(tmp_path)
    begun, released = asyncio.Event(), asyncio.Event()

    async def slow():  # type: ignore[no-untyped-def]
        yield b"begin"
        begun.set()
        await released.wait()
        yield b"end"

    writing = asyncio.ensure_future(blobs.put("k", slow()))
    await begun.wait()
    orphan = tmp_path / ".clutch" / "parts" / "orphan"
    orphan.write_bytes(b"left")
    for part in (tmp_path / ".clutch" / "parts").iterdir():
        os.utime(part, (time.time() - 1e6, time.time() - 1e6))
    assert await blobs.sweep() == 1
    assert not orphan.exists()
    released.set()
    await writing
    assert await blobs.get("k") == b"beginend"


async def test_a_file_that_changes_while_it_is_put(tmp_path: Path) -> None:
    blobs = await DirectoryBlobs.open(tmp_path / "root")
    path = tmp_path / "file"
    path.write_bytes(bytes(9 << 20))

    def change(done_bytes: int, reused_bytes: int) -> None:
        with path.open("r+b") as file:
            file.write(b"changed")

    with pytest.raises(Conflict, match="changed"):
        await blobs.put_file("k", path, progress=change)
    with pytest.raises(NotFound):
        await blobs.get("k")


async def test_a_cancelled_upload_stops_and_goes_on_later(tmp_path: Path) -> None:
    blobs = await DirectoryBlobs.open(tmp_path / "root")
    path = tmp_path / "file"
    path.write_bytes(os.urandom(40 << 20))
    loop, seen = asyncio.get_running_loop(), []
    begun = asyncio.Event()

    def progress(done_bytes: int, reused_bytes: int) -> None:
        seen.append((done_bytes, reused_bytes))
        loop.call_soon_threadsafe(begun.set)
        time.sleep(0.02)

    upload = asyncio.ensure_future(blobs.put_file("k", path, progress=progress))
    await begun.wait()
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    for _ in range(500):
        count = len(seen)
        await asyncio.sleep(0.05)
        if len(seen) == count:
            break
    assert seen[-1][0] < 40 << 20, "it went on although nobody waited"
    seen.clear()
    await blobs.put_file("k", path, progress=progress)
    assert seen[-1][1] > 0
    assert await blobs.get("k") == path.read_bytes()
