"""The contract of blobs: whole bytes under a key, or none.

Every implementation passes ``clutch.testing.blobs_suite``. The rules the suite tries to break:

- A reader sees a whole blob or none, whoever else writes, and whoever was killed while writing. What ``put`` and
  ``put_file`` returned for is durable in the store's own sense: fsynced in a folder, acknowledged by an object store.
- Every blob has a SHA-256 over its content, kept with it. A whole read is checked against it, and so is a file before
  it takes its name; a mismatch is ``Corrupt``. A partial read is not checked.
- With ``create`` at most one of all writers of a key wins; the others get ``Conflict`` and change nothing.
- A large file goes by parts. A ``put_file`` or ``get_file`` that was cut off goes on where it stopped when the same
  call is made again, if the file is unchanged; what it left behind is not visible and is removed by ``sweep``.
- A store that says it is full is ``DiskFull``, refused credentials or rights are ``NotAllowed``, a store that does
  not answer is ``Unavailable``; none of them changes what was there.
- A key may not also be the folder of another one (``a`` and ``a/b``). Stores that are trees say ``Conflict``.

A cancelled call may or may not have been done, as after a crash. What is in a blob is opaque here (P7).
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from msgspec import Struct

Content = bytes | bytearray | memoryview | AsyncIterable[bytes]
"""What ``put`` takes: the bytes, or a stream of them whose end need not be known."""

Progress = Callable[[int, int], None]
"""Told how many bytes are done, and how many of these were there from an earlier try. May be called in any thread."""

WHOLE_BYTES_MAX = 1 << 30
"""``get`` gives at most this much at once; beyond it, ask for ranges or use ``get_file``."""

SWEEP_AFTER_S = 24 * 3600.0
"""Parts that nobody has touched for so long belong to nobody."""


class Blob(Struct, frozen=True):
    """What is known of a stored blob without reading it."""

    key: str
    size_bytes: int
    sha256: str
    modified_at: float


class Listed(Struct, frozen=True):
    """A key as ``list`` finds it; ``stat`` knows the rest."""

    key: str
    modified_at: float


class Blobs(Protocol):
    """Put, get, list, delete; and the two that carry large files."""

    async def put(self, key: str, content: Content, *, create: bool = False) -> Blob:
        """Store these bytes, in place of what was there. With ``create``: ``Conflict`` if the key exists."""
        ...

    async def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes from ``start`` up to ``stop`` or the end, whichever comes first. ``NotFound`` without the blob."""
        ...

    async def stat(self, key: str) -> Blob:
        """Size, hash and age. ``NotFound`` without the blob."""
        ...

    def list(self, prefix: str = "", *, page_size: int = 1_000) -> AsyncIterator[tuple[Listed, ...]]:
        """Every key in the folder ``prefix`` and the folders in it, by pages, in the store's own order.

        A key that is put or deleted meanwhile may be there or not; every other key is there once.
        """
        ...

    async def delete(self, key: str) -> None:
        """The blob is gone. Nothing happens if it was not there."""
        ...

    async def put_file(
        self, key: str, path: Path, *, create: bool = False, progress: Progress | None = None
    ) -> Blob:  # fmt: skip
        """Store a file of any size, going on where an earlier try with the same file stopped.

        ``Conflict`` if the file changes while it is read.
        """
        ...

    async def get_file(self, key: str, path: Path, *, progress: Progress | None = None) -> Blob:
        """Write the blob to a local file, which appears under its name when it is whole and checked.

        The file survives the death of this process, but a power cut only after the caller has synced it.
        """
        ...

    async def close(self) -> None:
        """Let go of connections and files."""
        ...


@runtime_checkable
class Maintenance(Protocol):
    """The extra ability to find out early whether a store can be used, and to clean it."""

    async def check(self) -> None:
        """Write, read, refuse and delete a small blob: wrong credentials are found now and not after the training.

        ``NotAllowed``, ``NotFound`` (no such bucket), ``Unavailable`` or ``DiskFull`` say what is wrong; ``BadRequest``
        if the store does not keep a rule of this contract.
        """
        ...

    async def sweep(self, older_than_s: float = SWEEP_AFTER_S) -> int:
        """Remove what was left by writers that never came back; how many things went."""
        ...


@runtime_checkable
class Forgetting(Protocol):
    """The extra ability to give back what an unfinished ``put_file`` holds, when nobody will go on with it."""

    async def forget(self, key: str, path: Path) -> None:
        """Remove what a try to put this very file under this key left behind. What is stored stays as it is."""
        ...


class FullBlobs(Blobs, Maintenance, Protocol):
    """What every way of ours can do; ``open_blobs`` gives one."""
