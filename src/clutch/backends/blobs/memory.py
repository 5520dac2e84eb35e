"""Blobs in memory: for tests, for the simulator, and for a cluster that may forget."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from msgspec import Struct

from clutch.backends.blobs.base import SWEEP_AFTER_S, Blob, Content, Listed, Progress
from clutch.backends.blobs.files import corrupt, source
from clutch.backends.blobs.keys import check_key, check_prefix, check_range, clamp_range
from clutch.backends.blobs.landing import Landing
from clutch.wire.errors import BadRequest, Conflict, DiskFull, NotFound


class _Kept(Struct, frozen=True):
    blob: Blob
    content: bytes


class MemoryShelf:
    """What several ``MemoryBlobs`` share. It holds at most ``capacity_bytes``."""

    def __init__(self, clock: Callable[[], float] = time.time, capacity_bytes: int = 1 << 34) -> None:
        self.clock = clock
        self.capacity_bytes = capacity_bytes
        self._kept: dict[str, _Kept] = {}

    def put(self, key: str, content: bytes, create: bool) -> Blob:
        before = self._kept.get(key)
        if create and before is not None:
            raise Conflict("it exists already", object=f"blob {key}", next_step="Use it, or another key.")
        folders = ["/".join(key.split("/")[:depth]) for depth in range(1, key.count("/") + 1)]
        if any(folder in self._kept for folder in folders) or any(one.startswith(f"{key}/") for one in self._kept):
            raise Conflict(
                "a folder has this name, or a blob has the name of a folder of it",
                object=f"blob {key}",
                next_step="Use another key, or delete the other blob.",
            )
        held = sum(len(kept.content) for name, kept in self._kept.items() if name != key)
        if held + len(content) > self.capacity_bytes:
            raise DiskFull(f"it holds {self.capacity_bytes} bytes", object=f"blob {key}", next_step="Delete blobs.")
        blob = Blob(key, len(content), hashlib.sha256(content).hexdigest(), self.clock())
        self._kept[key] = _Kept(blob, content)
        return blob

    def find(self, key: str) -> tuple[Blob, bytes]:
        kept = self._kept.get(key)
        if kept is None:
            raise NotFound("there is no such blob", object=f"blob {key}", next_step="List the keys.")
        return kept.blob, kept.content

    def listed(self, folder: str) -> list[Listed]:
        return [Listed(key, self._kept[key].blob.modified_at) for key in sorted(self._kept) if key.startswith(folder)]

    def drop(self, key: str) -> None:
        self._kept.pop(key, None)

    def damage(self, key: str) -> None:
        """Change one bit of what is kept, as bad memory does."""
        kept = self._kept[key]
        content = bytes([kept.content[0] ^ 1]) + kept.content[1:]
        self._kept[key] = _Kept(kept.blob, content)


class MemoryBlobs:
    """One user's way to a ``MemoryShelf``."""

    def __init__(self, shelf: MemoryShelf) -> None:
        self.shelf = shelf

    async def put(self, key: str, content: Content, *, create: bool = False) -> Blob:
        check_key(key)
        if isinstance(content, bytes | bytearray | memoryview):
            whole = bytes(content)
        else:
            whole = b"".join([chunk async for chunk in content])
        return self.shelf.put(key, whole, create)

    async def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        check_key(key)
        check_range(key, start, stop)
        blob, content = self.shelf.find(key)
        first, last = clamp_range(key, start, stop, blob.size_bytes)
        if last - first == blob.size_bytes and hashlib.sha256(content).hexdigest() != blob.sha256:
            raise corrupt(key, "its bytes do not have the hash they were stored with")
        return content[first:last]

    async def stat(self, key: str) -> Blob:
        check_key(key)
        return self.shelf.find(key)[0]

    def list(self, prefix: str = "", *, page_size: int = 1_000) -> AsyncIterator[tuple[Listed, ...]]:
        folder = check_prefix(prefix)
        if page_size < 1:
            raise BadRequest(f"a page of {page_size} keys", object="list", next_step="Ask for at least one.")
        return self._pages(f"{folder}/" if folder else "", page_size)

    async def _pages(self, folder: str, page_size: int) -> AsyncIterator[tuple[Listed, ...]]:
        found = self.shelf.listed(folder)
        for first in range(0, len(found), page_size):
            yield tuple(found[first : first + page_size])

    async def delete(self, key: str) -> None:
        check_key(key)
        self.shelf.drop(key)

    async def put_file(
        self, key: str, path: Path, *, create: bool = False, progress: Progress | None = None
    ) -> Blob:  # fmt: skip
        check_key(key)

        def read() -> bytes:
            with source(path) as origin, open(origin.descriptor, "rb", closefd=False) as file:
                content = file.read()
                origin.check_unchanged()
                return content

        content = await asyncio.to_thread(read)
        blob = self.shelf.put(key, content, create)
        if progress is not None:
            progress(blob.size_bytes, 0)
        return blob

    async def get_file(self, key: str, path: Path, *, progress: Progress | None = None) -> Blob:
        check_key(key)
        blob, content = self.shelf.find(key)

        def write() -> None:
            landing = Landing(path, blob.sha256, progress)
            try:
                landing.restart()
                landing.write(memoryview(content))
                landing.finish(key)
            finally:
                landing.close(keep=False)

        await asyncio.to_thread(write)
        return blob

    async def close(self) -> None:
        """Nothing is held."""

    async def check(self) -> None:
        """Memory is always there."""

    async def sweep(self, older_than_s: float = SWEEP_AFTER_S) -> int:
        return 0
