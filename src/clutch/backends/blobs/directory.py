"""Blobs as plain files in a folder, local or shared: ``ROOT/KEY`` is the content itself.

A blob is written aside in ``ROOT/.clutch/parts``, sealed with its hash, synced, renamed to its name, and the folder is
synced. The seal (see ``sealed``) is an extended attribute, so that the file is exactly what was put: a copy of the
folder must keep extended attributes (``cp -a``, ``rsync -X``). Several users may share one: see ``shared_folder``.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import stat
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from clutch.backends.blobs.base import SWEEP_AFTER_S, Blob, Content, Listed, Progress
from clutch.backends.blobs.files import (
    FULL,
    Copy,
    Stop,
    corrupt,
    in_thread,
    locked,
    source,
    typed,
    write_all,
)
from clutch.backends.blobs.keys import RESERVED, check_key, check_prefix, check_range, clamp_range, is_key
from clutch.backends.blobs.landing import Landing
from clutch.backends.blobs.sealed import Opened, Staged, rename_new, sync_folder
from clutch.backends.blobs.shared_folder import Heritage, is_shared
from clutch.wire.errors import BadRequest, Conflict, Corrupt, NotFound, Unavailable

_TRIES = 100


class DirectoryBlobs:
    """Blobs in a folder. Any number of processes on any number of machines may use the same one."""

    def __init__(self, root: Path, *, use_attributes: bool = True) -> None:
        """Use ``open``, which makes the folders. Without attributes every file carries its seal at its end."""
        self.root = root
        self._parts = root / RESERVED / "parts"
        self._use_attributes = use_attributes

    @classmethod
    async def open(cls, root: str | Path, *, use_attributes: bool = True) -> DirectoryBlobs:
        def make(stop: Stop) -> DirectoryBlobs:
            blobs = cls(Path(root).absolute(), use_attributes=use_attributes)
            with typed(f"folder {blobs.root}"):
                if not blobs._parts.is_dir():
                    blobs.root.mkdir(parents=True, exist_ok=True)
                    blobs._make_folders(blobs._parts)
            return blobs

        return await in_thread(make)

    async def close(self) -> None:
        """Nothing is held between calls."""

    # -- writing ------------------------------------------------------------------------------------------------

    @contextmanager
    def _staged(self, name: str) -> Iterator[Staged]:
        try:
            mode = Heritage(self.root).file_mode
            staged = Staged(self._parts / name, use_attributes=self._use_attributes, mode=mode)
        except FileNotFoundError as gone:
            raise Unavailable(
                f"the folder {self.root} is gone", object=f"folder {self.root}", next_step="See whether it is mounted."
            ) from gone
        keep = False
        try:
            yield staged
        except (Unavailable, OSError) as error:
            full = isinstance(error, OSError) and error.errno in FULL  # then room is worth more than the work done
            keep = not name.startswith(".") and not full  # a named one goes on next time
            raise
        finally:
            staged.close(keep=keep)

    def _publish(self, staged: Staged, key: str, create: bool) -> None:
        """Give the staged blob its name, durably, with all its folders."""
        final = self.root / key
        for _ in range(_TRIES):
            try:
                self._make_folders(final.parent)
                if create:
                    rename_new(staged.path, final)
                else:
                    staged.path.replace(final)
                staged.is_published = True
                sync_folder(final.parent)
                return
            except FileNotFoundError:
                continue  # a delete took the empty folder away
            except (IsADirectoryError, FileExistsError):
                if not final.is_dir():
                    raise self._exists(key) from None
                final.rmdir()  # an empty folder is nobody's; a full one refuses
        raise Unavailable(
            "its folder keeps vanishing",
            object=f"blob {key}",
            next_step="See whether it is mounted; try again.",
        )

    def _make_folders(self, folder: Path) -> None:
        heritage = Heritage(self.root)
        for step in reversed([folder, *folder.parents]):
            if step == self.root or self.root not in step.parents:
                continue
            try:
                heritage.make(step)
            except FileExistsError:
                if not step.is_dir():
                    raise NotADirectoryError(errno.ENOTDIR, "a blob has this name", str(step)) from None
                heritage.check(step)
            else:
                sync_folder(step.parent)

    @staticmethod
    def _exists(key: str) -> Conflict:
        return Conflict("it exists already", object=f"blob {key}", next_step="Use it, or another key.")

    async def put(self, key: str, content: Content, *, create: bool = False) -> Blob:
        check_key(key)
        if isinstance(content, bytes | bytearray | memoryview):
            whole = memoryview(content).cast("B")
            return await in_thread(lambda stop: self._put_bytes(key, whole, create))
        digest, size = hashlib.sha256(), 0
        with typed(f"blob {key} in {self.root}"), self._staged(f".{uuid.uuid4().hex}") as staged:
            async for chunk in content:

                def add(stop: Stop, chunk: bytes = chunk) -> None:
                    digest.update(chunk)
                    write_all(staged.descriptor, chunk)

                await in_thread(add)
                size += len(chunk)

            def finish(stop: Stop) -> Blob:
                staged.seal(digest.hexdigest(), size)
                self._publish(staged, key, create)
                return Blob(key, size, digest.hexdigest(), os.fstat(staged.descriptor).st_mtime)

            return await in_thread(finish)

    def _put_bytes(self, key: str, content: memoryview, create: bool) -> Blob:
        sha256 = hashlib.sha256(content).hexdigest()
        with typed(f"blob {key} in {self.root}"):
            if create and (self.root / key).is_file():
                raise self._exists(key)
            with self._staged(f".{uuid.uuid4().hex}") as staged:
                write_all(staged.descriptor, content)
                staged.seal(sha256, len(content))
                self._publish(staged, key, create)
                return Blob(key, len(content), sha256, os.fstat(staged.descriptor).st_mtime)

    async def put_file(
        self, key: str, path: Path, *, create: bool = False, progress: Progress | None = None
    ) -> Blob:  # fmt: skip
        check_key(key)

        def run(stop: Stop) -> Blob:
            with typed(f"blob {key} in {self.root}"), source(path) as origin:
                if create and (self.root / key).is_file():
                    raise self._exists(key)
                with self._staged(origin.identity(key)) as staged:
                    copy = Copy(progress, stop)
                    staged.common_prefix(origin.descriptor, origin.size_bytes, copy)
                    copy.run(origin.descriptor, staged.descriptor, origin.size_bytes, sync=True)
                    origin.check_unchanged()
                    sha256 = copy.digest.hexdigest()
                    staged.seal(sha256, copy.size_bytes, copy.sums)
                    self._publish(staged, key, create)
                    return Blob(key, copy.size_bytes, sha256, os.fstat(staged.descriptor).st_mtime)

        return await in_thread(run)

    # -- reading ------------------------------------------------------------------------------------------------

    @contextmanager
    def _opened(self, key: str) -> Iterator[Opened]:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with typed(f"blob {key} in {self.root}"):
            try:
                descriptor = os.open(self.root / key, flags)
            except (FileNotFoundError, NotADirectoryError) as missing:
                if not self._parts.is_dir():
                    raise Unavailable(
                        f"the folder {self.root} is gone", object=f"blob {key}", next_step="See whether it is mounted."
                    ) from missing
                raise self._missing(key) from missing
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise self._missing(key)
                yield Opened(descriptor, key, use_attributes=self._use_attributes)
            finally:
                os.close(descriptor)

    @staticmethod
    def _missing(key: str) -> NotFound:
        return NotFound("there is no such blob", object=f"blob {key}", next_step="List the keys.")

    async def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        check_key(key)
        check_range(key, start, stop)

        def run(given_up: Stop) -> bytes:
            with self._opened(key) as opened:
                first, last = clamp_range(key, start, stop, opened.blob.size_bytes)
                pieces, done = [], first
                while done < last:
                    given_up.check()
                    piece = os.pread(opened.descriptor, last - done, done)
                    if not piece:
                        raise corrupt(key, f"the file ends at {done}")
                    pieces.append(piece)
                    done += len(piece)
                content = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                whole = len(content) == opened.blob.size_bytes
                if whole and hashlib.sha256(content).hexdigest() != opened.blob.sha256:
                    raise corrupt(key, "its bytes do not have the hash they were stored with")
                return content

        return await in_thread(run)

    async def stat(self, key: str) -> Blob:
        check_key(key)

        def run(stop: Stop) -> Blob:
            with self._opened(key) as opened:
                return opened.blob

        return await in_thread(run)

    async def get_file(self, key: str, path: Path, *, progress: Progress | None = None) -> Blob:
        check_key(key)

        def run(stop: Stop) -> Blob:
            with self._opened(key) as opened:
                landing = Landing(path, opened.blob.sha256, progress, stop)
                keep = True
                try:
                    size = opened.blob.size_bytes
                    sums = opened.sums if not landing.resume(1, size) else None
                    if sums is None or not landing.fill_by_parts(opened.descriptor, size, sums):
                        if sums is not None:
                            landing.restart()  # it is damaged, or its sums are: the hash decides
                        landing.copy.run(opened.descriptor, landing.descriptor, size)
                    if not landing.is_sound and landing.copy.reused_bytes:
                        landing.restart()
                        landing.copy.run(opened.descriptor, landing.descriptor, size)
                    landing.finish(key)
                except Corrupt:
                    keep = False
                    raise
                finally:
                    landing.close(keep=keep)
                return opened.blob

        return await in_thread(run)

    def list(self, prefix: str = "", *, page_size: int = 1_000) -> AsyncIterator[tuple[Listed, ...]]:
        folder = check_prefix(prefix)
        if page_size < 1:
            raise BadRequest(f"a page of {page_size} keys", object="list", next_step="Ask for at least one.")
        return self._pages(folder, page_size)

    async def _pages(self, folder: str, page_size: int) -> AsyncIterator[tuple[Listed, ...]]:
        found = self._walk(folder)

        def next_page(stop: Stop) -> tuple[Listed, ...]:
            with typed(f"folder {self.root}"):
                return tuple(islice(found, page_size))

        while page := await in_thread(next_page):
            yield page

    def _walk(self, folder: str) -> Iterator[Listed]:
        waiting = [folder]
        while waiting:
            folder = waiting.pop()
            try:
                entries = sorted(os.scandir(self.root / folder), key=lambda entry: entry.name)
            except (FileNotFoundError, NotADirectoryError):
                continue  # deleted meanwhile, or never there
            for entry in entries:
                key = f"{folder}/{entry.name}" if folder else entry.name
                if not is_key(key):
                    continue  # ours, or nobody's
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(key)
                elif entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):
                        yield Listed(key, entry.stat(follow_symlinks=False).st_mtime)

    # -- removing -----------------------------------------------------------------------------------------------

    async def delete(self, key: str) -> None:
        check_key(key)

        def run(stop: Stop) -> None:
            final = self.root / key
            with typed(f"blob {key} in {self.root}"):
                if final.is_dir():
                    return
                try:
                    final.unlink()
                    sync_folder(final.parent)
                except (FileNotFoundError, NotADirectoryError):
                    return
                for folder in final.parents:
                    if folder == self.root:
                        break
                    try:
                        if is_shared(folder.stat()):
                            break  # others add to it
                        folder.rmdir()
                    except OSError:
                        break  # not empty

        await in_thread(run)

    async def sweep(self, older_than_s: float = SWEEP_AFTER_S) -> int:
        def run(stop: Stop) -> int:
            gone = 0
            with typed(f"folder {self.root}"):
                for part in sorted(self._parts.iterdir()):
                    with suppress(FileNotFoundError, PermissionError):  # another user's is that user's to sweep
                        gone += self._sweep_one(part, time.time() - older_than_s)
            return gone

        return await in_thread(run)

    async def forget(self, key: str, path: Path) -> None:
        check_key(key)

        def run(stop: Stop) -> None:
            with typed(f"blob {key} in {self.root}"), source(path) as origin, suppress(FileNotFoundError):
                self._sweep_one(self._parts / origin.identity(key), math.inf)

        await in_thread(run)

    @staticmethod
    def _sweep_one(part: Path, before: float) -> bool:
        descriptor = os.open(part, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if os.fstat(descriptor).st_mtime > before or not locked(descriptor):
                return False
            part.unlink()
            return True
        finally:
            os.close(descriptor)

    async def check(self) -> None:
        key = f"check-{uuid.uuid4().hex}"
        await self.put(key, b"clutch", create=True)
        try:
            if await self.get(key) != b"clutch":
                raise corrupt(key, "the folder gives back other bytes than were put")
        finally:
            await self.delete(key)
