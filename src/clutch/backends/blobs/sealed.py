"""A blob as one file: written where no reader looks, sealed with its hash, and opened again with that seal.

The *seal* is an extended attribute, so that the file is exactly what was put. Where the file system has none it is a
line behind the content.
"""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress
from pathlib import Path

from clutch.backends.blobs.base import Blob
from clutch.backends.blobs.files import CHUNK_BYTES, Copy, claim, corrupt, write_all
from clutch.backends.blobs.part_sums import PartSums, decode

_ATTRIBUTE = "user.clutch.seal"
_PARTS_ATTRIBUTE = "user.clutch.parts"
_NO_ATTRIBUTES = (errno.ENOTSUP, errno.ENOSYS, errno.EPERM, errno.ENODATA)
_MAGIC = b"\nclutch1 "
_SEAL_BYTES = len(_MAGIC) + 64 + 1 + 20 + 1
_NO_REPLACE = 1
_AT_FDCWD = -100


def _seal(sha256: str, size_bytes: int) -> bytes:
    return _MAGIC + f"{sha256} {size_bytes:020d}\n".encode()


class Opened:
    """A published blob, open for reading; it stays what it is when the key is replaced or deleted."""

    def __init__(self, descriptor: int, key: str, *, use_attributes: bool) -> None:
        self.descriptor = descriptor
        found = os.fstat(descriptor)
        seal = b""
        if use_attributes:
            try:
                seal = os.getxattr(descriptor, _ATTRIBUTE)
            except OSError as error:
                if error.errno not in _NO_ATTRIBUTES:
                    raise
        beside = bool(seal)
        if not beside:
            seal = os.pread(descriptor, _SEAL_BYTES, max(0, found.st_size - _SEAL_BYTES))
        if len(seal) != _SEAL_BYTES or not seal.startswith(_MAGIC):
            raise corrupt(key, "the file has no seal: it was not put by Clutch, was cut short, or copied without")
        sha256, size = seal[len(_MAGIC) :].decode("ascii", "replace").split()
        if found.st_size != int(size) + (0 if beside else _SEAL_BYTES):
            raise corrupt(key, f"the file has {found.st_size} bytes, and was stored with {int(size)}")
        self.blob = Blob(key, int(size), sha256, found.st_mtime)
        self._beside = beside

    @property
    def sums(self) -> PartSums | None:
        """Of its parts, if it was stored with them."""
        if not self._beside:
            return None
        try:
            content = os.getxattr(self.descriptor, _PARTS_ATTRIBUTE)
        except OSError:
            return None
        return decode(content, self.blob.sha256, self.blob.size_bytes)


class Staged:
    """A blob being written, where no reader looks."""

    def __init__(self, path: Path, *, use_attributes: bool, mode: int = 0o666) -> None:
        self.descriptor, self.path = claim(path, mode)
        self.is_published = False
        self._use_attributes = use_attributes

    def common_prefix(self, origin: int, size_bytes: int, copy: Copy) -> None:
        """Keep what an earlier try wrote as far as it equals the origin; hash it."""
        there = min(os.fstat(self.descriptor).st_size, size_bytes)
        same = 0
        while same < there:
            ours = os.pread(self.descriptor, min(CHUNK_BYTES, there - same), same)
            if ours != os.pread(origin, len(ours), same):
                break
            copy.digest.update(ours)
            same += len(ours)
        os.ftruncate(self.descriptor, same)
        copy.reuse(same)

    def seal(self, sha256: str, size_bytes: int, sums: PartSums | None = None) -> None:
        """The content is complete: sealed, and on the disk."""
        if sums is not None and self._use_attributes:
            with suppress(OSError):  # a file system without room for them: it is read slower, that is all
                os.setxattr(self.descriptor, _PARTS_ATTRIBUTE, sums.encode(sha256))
        seal = _seal(sha256, size_bytes)
        try:
            if not self._use_attributes:
                raise OSError(errno.ENOTSUP, "not wanted")
            os.setxattr(self.descriptor, _ATTRIBUTE, seal)
        except OSError as error:
            if error.errno not in _NO_ATTRIBUTES:
                raise
            os.lseek(self.descriptor, size_bytes, os.SEEK_SET)
            write_all(self.descriptor, seal)
        os.fsync(self.descriptor)

    def close(self, *, keep: bool = False) -> None:
        if not keep and not self.is_published:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)
        os.close(self.descriptor)


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename_new(old: Path, new: Path) -> None:
    """Rename, but never onto something; by a hard link where the file system cannot say so in one step."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.renameat2(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), _NO_REPLACE) == 0:
        return
    code = ctypes.get_errno()
    if code not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        raise OSError(code, os.strerror(code), str(new))
    os.link(old, new)
    old.unlink()
