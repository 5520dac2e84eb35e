"""What is sent to an object store: bytes cut into parts, hashed on the way, counted as they arrive."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncGenerator, AsyncIterable
from typing import Any

from clutch.backends.blobs.base import Progress
from clutch.backends.blobs.files import Source, typed


class Upload:
    """What is known of an upload under way."""

    def __init__(self, name: str, part_bytes: int, progress: Progress | None) -> None:
        self.name = name
        self.part_bytes = part_bytes
        self.there: dict[str, float] = {}
        self.sums: list[str] = []
        self.size_bytes = 0
        self._reused_bytes = 0
        self._progress = progress

    def tell(self, size_bytes: int, reused: bool) -> None:
        self.size_bytes += size_bytes
        self._reused_bytes += size_bytes if reused else 0
        if self._progress is not None:
            self._progress(self.size_bytes, self._reused_bytes)


def read_at(origin: Source, offset: int, size_bytes: int) -> bytes:
    with typed(f"file {origin.path}"):
        return os.pread(origin.descriptor, size_bytes, offset)


def digests(whole: Any, content: bytes) -> str:
    """Add a part to the digest of the whole, and return its own."""
    whole.update(content)
    return hashlib.sha256(content).hexdigest()


def prefix_digest(whole: Any, content: bytes) -> str:
    """Add a part to the digest of the whole, and return that of everything so far: it names the part as well as its
    own hash would, and costs no second pass over the bytes."""
    whole.update(content)
    so_far: str = whole.copy().hexdigest()
    return so_far


async def slices(content: memoryview, size_bytes: int) -> AsyncGenerator[bytes, None]:
    for first in range(0, len(content), size_bytes):
        yield bytes(content[first : first + size_bytes])


async def repacked(chunks: AsyncIterable[bytes], size_bytes: int) -> AsyncGenerator[bytes, None]:
    """The same bytes in pieces of this size, the last one shorter."""
    held = bytearray()
    async for chunk in chunks:
        held += chunk
        while len(held) >= size_bytes:
            yield bytes(held[:size_bytes])
            del held[:size_bytes]
    if held:
        yield bytes(held)
