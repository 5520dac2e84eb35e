"""What a user's own store of checkpoints must do. Run it on your class before you trust it with a training:

    from clutch.testing.blobs_own_suite import check_own_store
    check_own_store(lambda: MyStore(...), Path("/tmp/scratch"))

The store must be empty, and every call of the function must give a new object on the same store. First the four verbs
are tried by themselves, then all that checkpoints need of blobs, through the adapter that they use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clutch.backends.blobs.own import BEGUN, OwnBlobs, OwnStore
from clutch.testing import blobs_suite as suite
from clutch.testing.blobs_ground import Check, noise

MakeStore = Callable[[], OwnStore]

CHECKS: tuple[Check, ...] = tuple(
    check
    for check in suite.CHECKS
    if check is not suite.check_one_creates  # four verbs cannot decide a race
)


class OwnGround:
    """A user's store, as the suite of blobs sees it."""

    def __init__(self, make: MakeStore, folder: Path) -> None:
        self.folder = folder
        self._make = make

    async def open(self) -> OwnBlobs:
        return OwnBlobs(self._make(), "under test")

    async def damage(self, key: str) -> None:
        path = self.folder / "damaged"
        store = self._make()
        store.get(key, path)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        store.put(key, path)
        path.unlink()

    async def leftovers(self) -> int:
        return len(list(self._make().list(f"{BEGUN}/")))


def check_verbs(make: MakeStore, folder: Path) -> None:
    """The four verbs by themselves."""
    store, other = make(), make()
    path, back = folder / "content", folder / "back"
    for number, key in enumerate(suite.GOOD_KEYS):
        path.write_bytes(noise(number, number * 10_000))
        store.put(key, path)
    assert sorted(other.list("")) == sorted(suite.GOOD_KEYS), "list does not give exactly the keys that were put"
    for number, key in enumerate(suite.GOOD_KEYS):
        other.get(key, back)
        assert back.read_bytes() == noise(number, number * 10_000), f"{key} came back changed"
    assert sorted(other.list("odd/")) == sorted(key for key in suite.GOOD_KEYS if key.startswith("odd/"))
    assert sorted(other.list("no such ")) == []
    path.write_bytes(b"shorter")
    store.put("a", path)
    other.get("a", back)
    assert back.read_bytes() == b"shorter", "put does not replace, or get leaves the end of what was in the file"
    for missing in ("never", "a/b", "lo"):
        back.unlink(missing_ok=True)
        try:
            other.get(missing, back)
        except (KeyError, FileNotFoundError):
            continue
        raise AssertionError(f"get of {missing!r}, which was never put, raises no KeyError")
    store.delete("never")
    for key in suite.GOOD_KEYS:
        store.delete(key)
        store.delete(key)
    assert list(other.list("")) == [], "what was deleted is still listed"


def check_threads(make: MakeStore, folder: Path) -> None:
    """Many threads use one object at once."""
    store = make()

    def both_ways(number: int) -> bool:
        path, back = folder / f"out{number}", folder / f"in{number}"
        path.write_bytes(noise(number, 200_000 + number))
        store.put(f"threads/{number}", path)
        store.get(f"threads/{number}", back)
        return path.read_bytes() == back.read_bytes()

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(both_ways, range(32))), "one thread got what another had put"
    assert len(list(store.list("threads/"))) == 32
    for number in range(32):
        store.delete(f"threads/{number}")


def check_own_store(make: MakeStore, folder: Path) -> None:
    """Everything. ``folder`` is an empty local one; an ``AssertionError`` says what is wrong."""
    check_verbs(make, folder)
    check_threads(make, folder)
    for check in CHECKS:
        local = folder / check.__name__
        local.mkdir()
        asyncio.run(_check(check, OwnGround(make, local)))


async def _check(check: Check, ground: OwnGround) -> None:
    await check(ground)
    blobs = await ground.open()
    for key in [listed.key async for page in blobs.list() for listed in page]:
        await blobs.delete(key)
