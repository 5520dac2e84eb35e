"""What the blobs' suite stands on: a store that can be harmed, and things to put into it.

A ``Ground`` is the store under some blobs as a test sees it: it opens them again and again, and does real harm to what
is stored.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, Protocol

from clutch.backends.blobs.base import Blobs, FullBlobs, Listed
from clutch.wire.errors import ClutchError

MIB = 1 << 20
LARGE_BYTES = 12 * MIB + 12_345
"""Several parts and a piece."""


class Ground(Protocol):
    """A store that is empty at first. Whoever made the ground cleans up behind it."""

    folder: Path
    """A local folder for the files that are put and got."""

    async def open(self) -> FullBlobs: ...

    async def damage(self, key: str) -> None:
        """Change one bit of what is stored, behind the store's back."""
        ...

    async def leftovers(self) -> int:
        """How many things lie in the store that no key leads to."""
        ...


class SharedGround(Ground, Protocol):
    """A store that other processes reach too."""

    address: str
    """What ``open_blobs`` takes; parts should be of 1 MiB or a little more, so that many of them fit into a test."""


class FullGround(Ground, Protocol):
    """A store that is small enough to fill: more than 2 MiB fit, and less than 64 MiB."""

    async def free_space(self) -> None:
        """Make room again."""
        ...


class FallibleGround(Ground, Protocol):
    """A store that can be ended and started again."""

    async def stop(self) -> None: ...

    async def start(self) -> None: ...


Check = Callable[[Ground], Awaitable[None]]
SharedCheck = Callable[[SharedGround], Awaitable[None]]


async def refused(kind: type[ClutchError], call: Awaitable[Any]) -> ClutchError:
    """The error, which must be of this very kind and say cause and object."""
    try:
        await call
    except ClutchError as error:
        assert type(error) is kind, f"expected {kind.__name__}, got {error!r}: {error}"
        assert error.cause
        assert error.object, f"{error!r} does not say what it is about"
        return error
    raise AssertionError(f"expected {kind.__name__}, nothing was raised")


def noise(seed: int, size_bytes: int) -> bytes:
    """Bytes that no store can compress, the same ones each time."""
    return Random(seed).randbytes(size_bytes)


def noise_file(path: Path, seed: int, size_bytes: int) -> bytes:
    content = noise(seed, size_bytes)
    path.write_bytes(content)
    return content


def version(number: int, size_bytes: int) -> bytes:
    """Content that says its number all over, so that a mixture of two shows."""
    return b"%08d" % number * (size_bytes // 8)


def version_of(content: bytes) -> int:
    """Which version this is, and it is wholly that one."""
    number = int(content[:8])
    assert content == version(number, len(content)), "a mixture of two versions"
    return number


async def chunks_of(content: bytes, size_bytes: int) -> AsyncIterator[bytes]:
    for first in range(0, len(content), size_bytes):
        await asyncio.sleep(0)
        yield content[first : first + size_bytes]


async def all_listed(blobs: Blobs, prefix: str = "", page_size: int = 1_000) -> list[Listed]:
    found: list[Listed] = []
    async for page in blobs.list(prefix, page_size=page_size):
        assert 0 < len(page) <= page_size
        found += page
    return found


async def all_keys(blobs: Blobs, prefix: str = "") -> list[str]:
    return sorted(one.key for one in await all_listed(blobs, prefix))


async def swept(ground: Ground, blobs: FullBlobs) -> None:
    """After a sweep nothing is left; what a killed or cancelled client had under way may still arrive for a moment."""
    deadline = time.monotonic() + 10.0
    await blobs.sweep(0.0)
    while await ground.leftovers():
        assert time.monotonic() < deadline, f"{await ground.leftovers()} things are left"
        await asyncio.sleep(0.05)
        await blobs.sweep(0.0)


class Told:
    """A progress that remembers what it was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, done_bytes: int, reused_bytes: int) -> None:
        self.calls.append((done_bytes, reused_bytes))

    def check(self, size_bytes: int) -> int:
        """It grew up to the whole; how much of it was there before."""
        assert self.calls == sorted(self.calls)
        done, reused = self.calls[-1]
        assert done == size_bytes
        return reused


class Child:
    """A process that uses the store and waits, in the middle of it, to be killed. See ``blobs_child``."""

    def __init__(self, *arguments: str | Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "clutch.testing.blobs_child", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def line(self) -> str:
        """What it says next; empty at its end."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().strip()

    def kill(self) -> list[str]:
        """The whole lines that it had said and nobody had read."""
        self._process.kill()
        said, _ = self._process.communicate(timeout=30)
        return [line.decode().strip() for line in said.splitlines(keepends=True) if line.endswith(b"\n")]
