"""The few verbs a member needs of a disk, and the real ones.

``Files`` is a folder of preallocated files. The simulation has another implementation over a disk that tears and fills
(``clutch.testing.raft_disk``); everything above this line, the write-ahead log included, runs unchanged on both.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Protocol

from clutch.wire.errors import ClutchError, Conflict, DiskFull, NotFound, Unavailable

JOIN_BELOW_BYTES = 64 << 10
MAX_PIECES = 512


class Files(Protocol):
    """One folder. Names are plain; writes reach the disk for certain only after ``sync``."""

    def names(self) -> list[str]:
        """Every file, sorted."""
        ...

    def create(self, name: str, size_bytes: int) -> None:
        """A file of zeros of this size (0: it grows), whose name survives a crash. DiskFull if there is no room."""
        ...

    def write(self, name: str, offset: int, *pieces: bytes) -> None:
        """Write the pieces one after the other, from ``offset`` on."""
        ...

    def sync(self, name: str) -> None:
        """Everything written to the file is durable when this returns."""
        ...

    def read(self, name: str, offset: int = 0, size_bytes: int = -1) -> bytes: ...

    def size(self, name: str) -> int: ...

    def rename(self, name: str, to: str) -> None:
        """Durably, and in place of any file of that name."""
        ...

    def remove(self, name: str) -> None: ...


def disk_error(error: OSError, name: str) -> ClutchError:
    """The typed form of what a disk says."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull("no space left", object=name, next_step="Free some space, then start the member again.")
    if error.errno == errno.ENOENT:
        return NotFound("no such file", object=name)
    return Unavailable(f"the disk failed: {error.strerror}", object=name)


class DiskFiles:
    """A real folder, owned by one process: a second one that opens it gets Conflict."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise Conflict(
                "another process uses this log",
                object=str(folder),
                next_step="End it, or use another folder.",
            ) from None
        self._folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._open: dict[str, int] = {}

    def close(self) -> None:
        for fd in (*self._open.values(), self._folder_fd, self._lock):
            os.close(fd)
        self._open.clear()

    def free_bytes(self) -> int:
        """Room left for this process."""
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def names(self) -> list[str]:
        return sorted(p.name for p in self.folder.iterdir() if p.is_file() and p.name != "lock")

    def create(self, name: str, size_bytes: int) -> None:
        try:
            fd = os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            self._forget(name)
            self._open[name] = fd
            if size_bytes:
                # Allocated but unwritten blocks read as zeros, and writing them changes no size: the cheapest sync.
                os.posix_fallocate(fd, 0, size_bytes)
            os.fsync(fd)
            os.fsync(self._folder_fd)
        except OSError as error:
            raise disk_error(error, name) from error

    def write(self, name: str, offset: int, *pieces: bytes) -> None:
        try:
            fd = self._fd(name)
            total = sum(len(p) for p in pieces)
            if len(pieces) > 1 and (total < JOIN_BELOW_BYTES or len(pieces) > MAX_PIECES):
                pieces = (b"".join(pieces),)
            written = os.pwritev(fd, pieces, offset) if pieces else 0
            if written < total:  # rare: a signal, or a disk that is nearly full
                view = memoryview(b"".join(pieces))[written:]
                while view:
                    step = os.pwrite(fd, view, offset + written)
                    view, written = view[step:], written + step
        except OSError as error:
            raise disk_error(error, name) from error

    def sync(self, name: str) -> None:
        try:
            os.fdatasync(self._fd(name))
        except OSError as error:
            raise disk_error(error, name) from error

    def read(self, name: str, offset: int = 0, size_bytes: int = -1) -> bytes:
        try:
            fd = self._fd(name)
            left = os.fstat(fd).st_size - offset if size_bytes < 0 else size_bytes
            pieces = []
            while left > 0:
                piece = os.pread(fd, min(left, 1 << 24), offset)
                if not piece:
                    break
                pieces.append(piece)
                left, offset = left - len(piece), offset + len(piece)
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        except OSError as error:
            raise disk_error(error, name) from error

    def size(self, name: str) -> int:
        try:
            return (self.folder / name).stat().st_size
        except OSError as error:
            raise disk_error(error, name) from error

    def rename(self, name: str, to: str) -> None:
        try:
            self._forget(name)
            self._forget(to)
            (self.folder / name).replace(self.folder / to)
            os.fsync(self._folder_fd)
        except OSError as error:
            raise disk_error(error, name) from error

    def remove(self, name: str) -> None:
        try:
            self._forget(name)
            (self.folder / name).unlink()
        except OSError as error:
            raise disk_error(error, name) from error

    def _fd(self, name: str) -> int:
        fd = self._open.get(name)
        if fd is None:
            fd = self._open[name] = os.open(self.folder / name, os.O_RDWR | os.O_CLOEXEC)
        return fd

    def _forget(self, name: str) -> None:
        fd = self._open.pop(name, None)
        if fd is not None:
            os.close(fd)
