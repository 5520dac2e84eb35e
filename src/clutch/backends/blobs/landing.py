"""A file being downloaded: beside its final name until it is what was stored; half of one is taken up again.

Everything here blocks and runs in a thread.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clutch.backends.blobs.base import Progress
from clutch.backends.blobs.files import CHUNK_BYTES, Copy, Stop, claim, corrupt, gave_up, typed, write_at
from clutch.backends.blobs.part_sums import PartSums


class Landing:
    """A file being downloaded, beside its final name; what is there of it is taken up again.

    Its name holds the blob's hash, so a newer blob never continues an older one. Two processes that fetch the same blob
    to the same place do not share a landing.
    """

    def __init__(self, path: Path, sha256: str, progress: Progress | None, stop: Stop | None = None) -> None:
        self.copy = Copy(progress, stop or Stop())
        self._path = path
        self._sha256 = sha256
        self._subject = f"file {path}"
        self._named = self._fits_sums = False
        self._lock = threading.Lock()
        self._users, self._is_closed = 0, False
        with typed(self._subject):
            self.descriptor, self._aside = claim(path.with_name(f".{path.name[:40]}.{sha256[:16]}.part"))

    def resume(self, unit: int, size_bytes: int) -> int:
        """Hash what is there, in whole units, and return where to go on."""
        with typed(self._subject):
            there = min(_first_gap(self.descriptor), size_bytes)
            there -= there % unit
            done = 0
            while done < there:
                chunk = os.pread(self.descriptor, min(CHUNK_BYTES, there - done), done)
                self.copy.digest.update(chunk)
                done += len(chunk)
            if os.fstat(self.descriptor).st_size != there:  # ext4 writes a file out on close that was ever emptied
                os.ftruncate(self.descriptor, there)
            self.copy.reuse(there)
        return there

    def restart(self) -> None:
        with typed(self._subject):
            os.ftruncate(self.descriptor, 0)
        self.copy.digest = hashlib.sha256()
        self.copy.reuse(0)

    def write(self, content: memoryview) -> None:
        """The next bytes, hashed."""
        self.copy.digest.update(content)
        with self._in_use(), typed(self._subject):
            write_at(self.descriptor, content, self.copy.size_bytes)
        self.copy.size_bytes += len(content)
        self.copy.tell()

    def put_at(self, content: memoryview, offset: int) -> None:
        """Bytes that came out of turn; any thread may. ``take`` hashes them when it is their turn."""
        with self._in_use(), typed(self._subject):
            write_at(self.descriptor, content, offset)

    def take(self, stop_at: int) -> None:
        """All bytes up to there are written: hash those that are not yet, while they are still in the page cache."""
        with self._in_use(), typed(self._subject):
            self.copy.hash_written(self.descriptor, stop_at)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Threads outlive the task that was cancelled; the descriptor's number must not become another file's."""
        with self._lock:
            if self._is_closed:
                raise gave_up()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                self._let_go()

    def _let_go(self) -> None:
        if self._is_closed and not self._users:
            os.close(self.descriptor)

    def fill_by_parts(self, origin: int, size_bytes: int, sums: PartSums) -> bool:
        """Whether all of the blob is here and fits. If not it is to be restarted, and the hash decides."""
        with typed(self._subject):
            self._fits_sums = self.copy.run_by_parts(origin, self.descriptor, size_bytes, sums)
        return self._fits_sums

    @property
    def is_sound(self) -> bool:
        return self._fits_sums or self.copy.digest.hexdigest() == self._sha256

    def finish(self, key: str) -> None:
        """Give the file its name, if it is what was stored. ``Corrupt`` otherwise, and nothing is left."""
        with typed(self._subject):
            if not self.is_sound:
                raise corrupt(key, "its bytes do not have the hash they were stored with")
            self._aside.replace(self._path)
            self._named = True

    def close(self, *, keep: bool) -> None:
        """``keep`` leaves what was fetched for the next try."""
        if not keep and not self._named:
            with suppress(OSError):
                self._aside.unlink(missing_ok=True)
        with self._lock:
            self._is_closed = True
            self._let_go()


def _first_gap(descriptor: int) -> int:
    """Up to where a file is without gaps; several parts that travel at once leave some when they are cut off.

    Where the file system does not say, a gap is found by the hash.
    """
    try:
        return os.lseek(descriptor, 0, os.SEEK_HOLE)
    except OSError:  # an empty one, or one that is never said to have any
        return os.fstat(descriptor).st_size
