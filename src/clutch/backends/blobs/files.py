"""Local files as blobs need them: copied and hashed at once, errors with names.

Everything here blocks and runs in a thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import hashlib
import os
import stat
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from clutch.backends.blobs.base import Progress
from clutch.backends.blobs.part_sums import PartSums, Summing, copied_by_parts, part_bytes_of
from clutch.wire.errors import BadRequest, Conflict, Corrupt, DiskFull, NotAllowed, NotFound, Unavailable

Result = TypeVar("Result")

CHUNK_BYTES = 4 << 20
_HASH_BYTES = 1 << 20
_BEHIND_MAX = 8
"""How many chunks the hash may be behind the copy. The hash of the largest file is what all wait for in the end: a
copy that ran far ahead would only take the core from it, and the bytes out of the processor's caches."""
_WRITE_OUT_BYTES = 32 << 20
"""After so much the disk is told to begin, so that a sync at the end finds little left to do."""
_SYNC_FILE_RANGE_WRITE = 2
_NO_KERNEL_COPY = (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


class Stop:
    """Says to a thread that nobody waits for it any more."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def check(self) -> None:
        if self._event.is_set():
            raise gave_up()


def gave_up() -> Unavailable:
    return Unavailable("the caller gave up", object="blob", next_step="Call again; it goes on where it stopped.")


async def in_thread(call: Callable[[Stop], Result]) -> Result:
    """The call's result; when this task is cancelled the call is told to stop at its next chunk."""
    stop = Stop()
    try:
        return await asyncio.to_thread(call, stop)
    finally:
        stop.set()


@contextmanager
def typed(subject: str) -> Iterator[None]:
    """Errors of the operating system, as errors of ours about ``subject``."""
    try:
        yield
    except OSError as error:
        raise _typed(error, subject) from error


def _typed(error: OSError, subject: str) -> Exception:
    said = error.strerror or str(error)
    if error.errno in FULL:
        return DiskFull(said, object=subject, next_step="Free space or raise the limit; nothing was changed.")
    if error.errno in _FORBIDDEN:
        return NotAllowed(said, object=subject, next_step="Give this user the right to read and write there.")
    if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY):
        return Conflict(
            "a folder has this name, or a blob has the name of a folder of it",
            object=subject,
            next_step="Use another key, or delete the other blob.",
        )
    if error.errno == errno.ENAMETOOLONG:
        return BadRequest(said, object=subject, next_step="Use a shorter name.")
    return Unavailable(said, object=subject, next_step="See whether the folder is still there and its disk is sound.")


class Source:
    """A user's file, open to be read; it must not change meanwhile."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self.descriptor = descriptor
        self.path = path
        self._before = os.fstat(descriptor)
        self.size_bytes = self._before.st_size

    def check_unchanged(self) -> None:
        now = os.fstat(self.descriptor)
        if (self._before.st_size, self._before.st_mtime_ns) != (now.st_size, now.st_mtime_ns):
            raise Conflict(
                "the file changed while it was read",
                object=f"file {self.path}",
                next_step="Finish writing it, then call again.",
            )

    def identity(self, key: str) -> str:
        """A name for the wish to put this very file under this key: the same after a crash, another after a change."""
        found = self._before
        parts = (os.uname().nodename, self.path.resolve(), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        return hashlib.sha256("\0".join(map(str, (*parts, key))).encode()).hexdigest()[:32]


@contextmanager
def source(path: Path) -> Iterator[Source]:
    """A regular file that this process may read."""
    subject = f"file {path}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as missing:
        raise NotFound("no such file", object=subject, next_step="Check the path.") from missing
    except OSError as error:
        raise _typed(error, subject) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise BadRequest("not a regular file", object=subject, next_step="Give a file; a folder goes file by file.")
        yield Source(descriptor, path)
    finally:
        os.close(descriptor)


def locked(descriptor: int) -> bool:
    """Take the file for this process alone, until it is closed. False if another has it or locks are not to be had."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_taken(descriptor: int) -> bool:
    """Whether another holds this file; where locks are not to be had nobody does. Takes it if it can."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file opened for reading on NFS, say
    return False


def claim(path: Path, mode: int = 0o666) -> tuple[int, Path]:
    """An open file that nobody else writes, and where it is: at ``path`` with what it holds, or a new one."""
    try:
        descriptor = _create(path, mode)
    except PermissionError:
        if not path.exists():  # the folder refuses, not a file that another user has put there
            raise
    else:
        if locked(descriptor) and _is_at(descriptor, path):
            return descriptor, path
        os.close(descriptor)
    other = path.with_name(f".{uuid.uuid4().hex}{path.suffix}")
    descriptor = _create(other, mode)
    locked(descriptor)
    return descriptor, other


def _create(path: Path, mode: int) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether this file still has this name and no other, and is ours; it may have been published while we waited."""
    ours = os.fstat(descriptor)
    if ours.st_uid != os.geteuid():
        return False  # its owner could change it behind our back
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino) and ours.st_nlink == 1


def write_all(descriptor: int, content: bytes | bytearray | memoryview) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


class Copy:
    """Bytes on their way from a file into another, by the kernel, hashed by a second thread as they arrive.

    What is hashed is what was written, so a seal always fits its file. (Measured: two thirds of the CPU time of
    reading, hashing and writing the same buffers.)
    """

    def __init__(self, progress: Progress | None, stop: Stop) -> None:
        self.digest = hashlib.sha256()
        self.size_bytes = 0
        self.reused_bytes = 0
        self._progress = progress
        self._stop = stop
        self._buffer = memoryview(bytearray(0))
        self._summing: Summing | None = None
        self.sums: PartSums | None = None
        """Of the parts of a large file that was copied whole."""

    def reuse(self, count: int) -> None:
        """So many bytes are there from an earlier try, and in the digest."""
        self.size_bytes = self.reused_bytes = count
        if count:
            self.tell()

    def tell(self) -> None:
        if self._progress is not None:
            self._progress(self.size_bytes, self.reused_bytes)

    def run(self, origin: int, target: int, stop_at: int, *, sync: bool = False) -> None:
        """Copy from ``size_bytes`` up to ``stop_at`` or the origin's end, both files being read and written there.

        With ``sync`` the disk is busy meanwhile too, and whoever syncs the target afterwards waits for little.
        """
        hashing: deque[Future[None]] = deque()
        part_bytes = part_bytes_of(stop_at) if sync and not self.size_bytes else 0
        self._summing = Summing(part_bytes) if part_bytes else None
        self._buffer = memoryview(bytearray(min(_HASH_BYTES, max(1, stop_at))))
        begun_at = written_out = self.size_bytes
        with ThreadPoolExecutor(1) as hasher:
            while self.size_bytes < stop_at:
                self._stop.check()
                count = _copy_some(origin, target, self.size_bytes, min(CHUNK_BYTES, stop_at - self.size_bytes))
                if not count:
                    break
                hashing.append(hasher.submit(self._hash, target, self.size_bytes, self.size_bytes + count))
                self.size_bytes += count
                self.tell()
                if sync and self.size_bytes - written_out >= _WRITE_OUT_BYTES:
                    _begin_writing_out(target, written_out, self.size_bytes)
                    written_out = self.size_bytes
                if len(hashing) > _BEHIND_MAX:
                    hashing.popleft().result()
            if sync and self.size_bytes - begun_at > CHUNK_BYTES:  # a small one is synced once, with its seal
                os.fdatasync(target)
            while hashing:
                hashing.popleft().result()
            if self._summing is not None and self.size_bytes == stop_at:
                self.sums = self._summing.sums()

    def run_by_parts(self, origin: int, target: int, size_bytes: int, sums: PartSums) -> bool:
        """Copy all of it. Whether each part fits its sum; the digest says nothing then."""

        def copy(start: int, stop: int) -> None:
            while start < stop:
                self._stop.check()
                count = _copy_some(origin, target, start, min(CHUNK_BYTES, stop - start))
                if not count:
                    raise OSError(errno.EIO, "the file became shorter while it was read")
                start += count
                self.size_bytes = start
                self.tell()

        return copied_by_parts(copy, origin, size_bytes, sums)

    def hash_written(self, target: int, stop_at: int) -> None:
        """The bytes from ``size_bytes`` up to ``stop_at`` are in the target: count and hash them."""
        if not self._buffer:
            self._buffer = memoryview(bytearray(_HASH_BYTES))
        self._hash(target, self.size_bytes, stop_at)
        self.size_bytes = stop_at
        self.tell()

    def _hash(self, target: int, start: int, stop: int) -> None:
        while start < stop:
            count = os.preadv(target, [self._buffer[: stop - start]], start)
            if not count:
                raise OSError(errno.EIO, "the file became shorter while it was written")
            piece = self._buffer[:count]
            self.digest.update(piece)
            if self._summing is not None:  # while the piece is in the processor's own memory
                self._summing.add(piece)
            start += count


def _begin_writing_out(descriptor: int, start: int, stop: int) -> None:
    """A hint: the kernel begins to write these pages, and nobody waits. Where it cannot, nothing is lost."""
    ctypes.CDLL(None).sync_file_range(
        ctypes.c_int(descriptor), ctypes.c_int64(start), ctypes.c_int64(stop - start), _SYNC_FILE_RANGE_WRITE
    )


def _copy_some(origin: int, target: int, offset: int, count: int) -> int:
    """Copy some bytes at the same offset, within the kernel where it can; none at the origin's end."""
    try:
        copied = os.copy_file_range(origin, target, count, offset, offset)
    except OSError as error:
        if error.errno not in _NO_KERNEL_COPY:
            raise
        copied = 0
    if copied:
        return copied
    content = os.pread(origin, count, offset)  # some file systems say "none" for "cannot"
    write_at(target, memoryview(content), offset)
    return len(content)


def write_at(descriptor: int, content: memoryview, offset: int) -> None:
    while content:
        count = os.pwrite(descriptor, content, offset)
        content, offset = content[count:], offset + count


def corrupt(key: str, cause: str) -> Corrupt:
    return Corrupt(cause, object=f"blob {key}", next_step="Put it again, or use an older one; nothing was changed.")
