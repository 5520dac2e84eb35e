"""Checks of blobs that kill processes, fill disks and end servers."""

from __future__ import annotations

import asyncio
import time
from random import Random

from clutch.backends.blobs.base import Forgetting
from clutch.testing.blobs_ground import (
    MIB,
    Child,
    FallibleGround,
    FullGround,
    SharedCheck,
    SharedGround,
    Told,
    all_keys,
    noise,
    noise_file,
    refused,
    swept,
    version,
    version_of,
)
from clutch.wire.errors import DiskFull, NotFound, Unavailable

_SIZE_BYTES = 24 * MIB
_HOLD_AT = 8 * MIB


async def _killed_when_held(*arguments: object) -> None:
    child = Child(*map(str, arguments))
    try:
        said = await asyncio.to_thread(child.line)
    finally:
        child.kill()
    assert said == "held", "the fault did not fire"


async def check_killed_upload_goes_on(ground: SharedGround) -> None:
    blobs = await ground.open()
    path = ground.folder / "file"
    content = noise_file(path, 1, _SIZE_BYTES)
    await _killed_when_held("put-file", ground.address, "k", path, _HOLD_AT)
    await refused(NotFound, blobs.get("k"))
    await refused(NotFound, blobs.stat("k"))
    assert await all_keys(blobs) == [], "a half blob is listed"
    assert await ground.leftovers() > 0
    assert await blobs.sweep() == 0, "what is young is not swept"
    told = Told()
    await blobs.put_file("k", path, progress=told)
    reused = told.check(_SIZE_BYTES)
    assert _HOLD_AT // 2 <= reused < _SIZE_BYTES, f"{reused} bytes of the killed upload were used"
    assert await blobs.get("k") == content


async def check_killed_upload_of_a_file_that_changed(ground: SharedGround) -> None:
    blobs = await ground.open()
    path = ground.folder / "file"
    noise_file(path, 1, _SIZE_BYTES)
    await blobs.put("k", b"before")
    await _killed_when_held("put-file", ground.address, "k", path, _HOLD_AT)
    assert await blobs.get("k") == b"before"
    content = noise_file(path, 2, _SIZE_BYTES)
    await blobs.put_file("k", path)
    assert await blobs.get("k") == content
    await blobs.delete("k")
    await swept(ground, blobs)


async def check_forgotten_upload_is_gone(ground: SharedGround) -> None:
    """For stores that can forget: the half of a killed upload goes at once, and what is stored stays."""
    blobs = await ground.open()
    assert isinstance(blobs, Forgetting)
    path, other = ground.folder / "file", ground.folder / "other"
    content = noise_file(path, 1, _SIZE_BYTES)
    noise_file(other, 2, 2 * MIB)
    await blobs.put("k", b"before")
    await blobs.put_file("other", other)
    before = await ground.leftovers()
    await _killed_when_held("put-file", ground.address, "k", path, _HOLD_AT)
    assert await ground.leftovers() > before
    deadline = time.monotonic() + 10.0
    while await ground.leftovers() > before:  # what the killed one had under way may still arrive for a moment
        assert time.monotonic() < deadline, "something of the forgotten upload is left"
        await blobs.forget("k", path)
    assert await blobs.get("k") == b"before"
    told = Told()
    await blobs.put_file("k", path, progress=told)
    assert told.check(_SIZE_BYTES) == 0, "what was forgotten was used"
    for key, stored in (("k", path), ("other", other)):
        await blobs.forget(key, stored)
        await blobs.forget(key, stored)
    assert await blobs.get("k") == content
    assert await blobs.get("other") == other.read_bytes()
    await refused(NotFound, blobs.forget("k", ground.folder / "no such file"))


async def check_killed_download_goes_on(ground: SharedGround) -> None:
    blobs = await ground.open()
    content = noise(1, _SIZE_BYTES)
    await blobs.put("k", content)
    target = ground.folder / "target"
    await _killed_when_held("get-file", ground.address, "k", target, _HOLD_AT)
    assert not target.exists()
    told = Told()
    await blobs.get_file("k", target, progress=told)
    assert told.check(_SIZE_BYTES) >= _HOLD_AT // 2
    assert target.read_bytes() == content
    target.unlink()
    await _killed_when_held("get-file", ground.address, "k", target, _HOLD_AT)
    (part,) = ground.folder.iterdir()
    with part.open("r+b") as file:
        file.write(b"spoilt")  # as a disk does that had not written everything when the power went
    await blobs.get_file("k", target)
    assert target.read_bytes() == content
    assert [path.name for path in ground.folder.iterdir()] == ["target"]


async def check_killed_stream_leaves_nothing_to_see(ground: SharedGround) -> None:
    blobs = await ground.open()
    await blobs.put("k", b"before")
    await _killed_when_held("put-stream", ground.address, "k", MIB, 12 * MIB)
    assert await blobs.get("k") == b"before"
    assert await all_keys(blobs) == ["k"]
    assert await ground.leftovers() > 0
    await swept(ground, blobs)
    assert await blobs.get("k") == b"before"


async def check_killed_writer_leaves_a_whole_version(ground: SharedGround) -> None:
    """Killed at any moment, six processes after another: what was acknowledged is there, or something newer, whole."""
    blobs = await ground.open()
    chance = Random(4)
    size, acknowledged = 3 * MIB, 0
    await blobs.put("k", version(0, size))
    for _ in range(6):
        child = Child("put-versions", ground.address, "k", str(size), str(acknowledged + 1))
        for _ in range(chance.randint(1, 4)):
            acknowledged = int(await asyncio.to_thread(child.line))
        await asyncio.sleep(chance.random() * 0.05)  # anywhere inside a put
        acknowledged = max([acknowledged, *map(int, child.kill())])
        found = version_of(await blobs.get("k"))
        assert acknowledged <= found <= acknowledged + 1
    await blobs.delete("k")
    await swept(ground, blobs)


SHARED_CHECKS: tuple[SharedCheck, ...] = (
    check_killed_upload_goes_on,
    check_killed_upload_of_a_file_that_changed,
    check_killed_download_goes_on,
    check_killed_stream_leaves_nothing_to_see,
    check_killed_writer_leaves_a_whole_version,
)


async def check_full_store_changes_nothing(ground: FullGround) -> None:
    blobs = await ground.open()
    path = ground.folder / "file"
    large = noise_file(path, 1, 64 * MIB)
    await blobs.put("small", b"before")
    await blobs.put("kept", noise(2, MIB))
    await refused(DiskFull, blobs.put("small", large))
    await refused(DiskFull, blobs.put("new", large))
    await refused(DiskFull, blobs.put_file("small", path))
    assert await blobs.get("small") == b"before"
    assert await blobs.get("kept") == noise(2, MIB)
    assert await all_keys(blobs) == ["kept", "small"]
    assert await ground.leftovers() == 0, "a full store keeps half a blob"
    await blobs.put("small", b"there is room for this")
    await ground.free_space()
    await blobs.put_file("small", path)
    assert await blobs.get("small") == large


async def check_store_that_dies_comes_back(ground: FallibleGround) -> None:
    """Ended in the middle of an upload and of other calls: errors with a name, and soon; then all goes on."""
    blobs = await ground.open()
    path = ground.folder / "file"
    content = noise_file(path, 1, 48 * MIB)
    await blobs.put("kept", b"before")
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def progress(done_bytes: int, reused_bytes: int) -> None:
        loop.call_soon_threadsafe(begun.set)

    upload = asyncio.ensure_future(blobs.put_file("large", path, progress=progress))
    await begun.wait()
    await ground.stop()
    assert not upload.done(), "the fault did not fire"
    began = time.monotonic()
    await refused(Unavailable, upload)
    target = ground.folder / "target"
    calls = (
        blobs.get("kept"),
        blobs.stat("kept"),
        blobs.put("new", b"x"),
        blobs.delete("kept"),
        blobs.check(),
        blobs.get_file("kept", target),
        all_keys(blobs),
    )
    await asyncio.gather(*(refused(Unavailable, call) for call in calls))
    assert time.monotonic() - began < 60.0
    await ground.start()
    assert await blobs.get("kept") == b"before"
    await refused(NotFound, blobs.get("large"))
    told = Told()
    await blobs.put_file("large", path, progress=told)
    assert told.check(len(content)) > 0, "nothing of the first try was used"
    assert await blobs.get("large") == content
