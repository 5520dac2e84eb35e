"""Checkpoints to and from where they are kept: folders of files, moved in parallel, checked by their hashes.

Blocking, for code inside a trial or a client; nothing heavy is imported before something is moved. A ``Store`` moves
files only. Who may store which checkpoint under which prefix, and that it is whole, is said to the master (``begin``
before, ``commit`` with what ``upload`` returned after): until then nobody counts on these files, and whoever was killed
uploads again and sends only what is missing.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import msgspec

from clutch.runtime.checkpoint_folder import Found, files_in
from clutch.runtime.checkpoint_select import Selector, any_of, selected
from clutch.wire.errors import BadRequest, ClutchError, Corrupt, NotFound, Unavailable
from clutch.wire.experiment_api import StorageWay
from clutch.wire.experiments import Storage
from clutch.wire.push import SHA256_OF_NOTHING, CheckpointFile

if TYPE_CHECKING:
    from clutch.backends.blobs.base import FullBlobs

T = TypeVar("T")

FOLDER = "checkpoints"
ORPHAN_AFTER_S = 24 * 3600.0
"""An upload that nobody has touched for so long, and nobody has committed, belongs to nobody."""
LARGE_BYTES = 16 << 20
LARGE_AT_ONCE, SMALL_AT_ONCE = max(2, min(4, os.cpu_count() or 1)), 12
"""How many files travel at once; a large one is itself several parts that do. Each large one keeps a core busy with its
hash, and the largest, which is begun first, takes longest."""

Progress = Callable[[int, int], None]
"""Told how many bytes of how many are there. Called in another thread, one call at a time."""


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """How the workspace's blobs are reached through its masters."""

    masters: tuple[str, ...]
    token: str
    workspace: str = "default"
    ca_file: str = ""

    def __repr__(self) -> str:
        return f"Served(masters={self.masters!r}, workspace={self.workspace!r})"


class Store:
    """Where one experiment's checkpoints are kept. Made by ``open``; may be used by several threads; holds nothing."""

    def __init__(self, opening: Callable[[bool], Awaitable[FullBlobs]], address: str, home: str = "") -> None:
        """``opening(may_create)`` gives blobs for one call; keys lie below ``home`` in them."""
        self._opening = opening
        self._home = home
        self.address = address
        """What a manifest says about where its files are: without credentials, empty for the workspace's blobs."""

    @classmethod
    def open(
        cls,
        storage: Storage,
        *,
        secret: str = "",
        served: Served | None = None,
        way: StorageWay | None = None,
        here: Path | None = None,
    ) -> Store:
        """The store that a configuration names. Nothing is sent yet: ``check`` finds out whether it lets us in.

        ``secret`` is what the secret named by ``storage.secret`` holds. ``served`` is needed for the workspace's own
        blobs; ``way`` says where these lie, in case that is on this machine. ``here`` is the working directory, from
        which a user's own class is imported.
        """
        from clutch.runtime.checkpoint_ways import by_address, direct_folder, own_class, through_master

        if storage.address.startswith("class:"):
            return cls(own_class(storage, secret, here or Path.cwd()), storage.address)
        if storage.address:
            return cls(by_address(storage.address, secret), storage.address)
        if served is None:
            raise BadRequest(
                "there is no way to the workspace's blobs",
                object="storage",
                next_step="Give an address, or the masters and a token.",
            )
        folder = direct_folder(way)
        if folder is not None:
            return cls(by_address(f"file://{quote(str(folder))}", ""), "", f"workspaces/{served.workspace}/")
        return cls(through_master(served), "")

    # -- moving --------------------------------------------------------------------------------------------------

    def upload(
        self, folder: Path | str, prefix: str, progress: Progress | None = None, left_out: Collection[str] = ()
    ) -> tuple[CheckpointFile, ...]:  # fmt: skip
        """Store every file below a folder; what is there already with the same content is not sent again. An empty
        folder is named in what is returned.

        Returns its part of a manifest, by path: several members may upload into one prefix, each its own files, and
        what is ``left_out`` is somebody else's.
        ``Conflict`` if a file changes while it is read, ``NotFound`` if one vanishes, ``DiskFull`` when there is no
        room; what this call had stored is then taken back, and what other checkpoints hold is never touched. After
        ``Unavailable``, as after a kill, all of it stays: the same call goes on.
        """
        every = [one for one in files_in(Path(folder)) if one.path not in left_out]
        self._check_paths(prefix, (one.path for one in every))
        found = [one for one in every if not one.is_folder]
        folders = [CheckpointFile(one.path, 0, SHA256_OF_NOTHING) for one in every if one.is_folder]
        tally = _Tally(sum(one.size_bytes for one in found), progress)
        new: dict[str, Found] = {}

        async def work(blobs: FullBlobs) -> tuple[CheckpointFile, ...]:
            there = {listed.key async for page in blobs.list(self._key(prefix)) for listed in page}
            new.update((key, one) for one in found if (key := self._key(prefix, one.path)) not in there)
            moves = [(one.size_bytes, self._send(blobs, prefix, one, new, tally)) for one in found]
            return tuple(sorted((*await _all(moves), *folders), key=lambda file: file.path))

        try:
            return self._run(work, may_create=True)
        except Unavailable:
            raise
        except ClutchError:
            self._take_back(new)
            raise

    def _take_back(self, new: Mapping[str, Found]) -> None:
        """An upload has failed for good: its bytes are nobody's, and room may be what is missing. As far as can be."""

        async def work(blobs: FullBlobs) -> None:
            from clutch.backends.blobs.base import Forgetting

            async def one(key: str, found: Found) -> None:
                if isinstance(blobs, Forgetting):
                    with suppress(ClutchError):
                        await blobs.forget(key, found.place)
                with suppress(ClutchError):
                    await blobs.delete(key)

            await _all([(0, one(key, found)) for key, found in new.items()])

        with suppress(ClutchError):  # what is left is an orphan, and swept as one
            self._run(work)

    async def _send(
        self, blobs: FullBlobs, prefix: str, one: Found, new: Collection[str], tally: _Tally
    ) -> CheckpointFile:  # fmt: skip
        key = self._key(prefix, one.path)
        if key not in new:
            known = await _same(blobs, key, one)
            if known is not None:
                tally.tell(one.path, one.size_bytes)
                return CheckpointFile(one.path, one.size_bytes, known)
        blob = await blobs.put_file(key, one.place, progress=lambda done, reused: tally.tell(one.path, done))
        return CheckpointFile(one.path, blob.size_bytes, blob.sha256)

    def download(
        self,
        prefix: str,
        files: Sequence[CheckpointFile],
        target: Path | str,
        selector: Selector | None = None,
        progress: Progress | None = None,
    ) -> tuple[CheckpointFile, ...]:
        """Write the files that are meant below ``target``, each checked against its hash before it has its name, and
        make the empty folders that are.

        What is there already with the same content stays; a download that was cut off goes on. Returns what was meant.
        """
        meant = selected(files, selector)
        self._check_paths(prefix, (file.path for file in meant))
        tally = _Tally(sum(file.size_bytes for file in meant), progress)

        files = [file for file in meant if not file.is_folder]

        async def work(blobs: FullBlobs) -> None:
            await _all([(file.size_bytes, self._fetch(blobs, prefix, file, Path(target), tally)) for file in files])

        self._run(work)
        for folder in (file.path for file in meant if file.is_folder):
            make_folder(Path(target), folder)
        return meant

    async def _fetch(
        self, blobs: FullBlobs, prefix: str, file: CheckpointFile, target: Path, tally: _Tally
    ) -> None:  # fmt: skip
        import asyncio

        from clutch.runtime.checkpoint_landing import Landed

        landed = Landed(target, file)
        if not await asyncio.to_thread(landed.is_there):
            key = self._key(prefix, file.path)
            blob = await blobs.get_file(
                key, landed.aside, progress=lambda done, reused: tally.tell(file.path, done)
            )  # fmt: skip
            if blob.sha256 != file.sha256:
                await asyncio.to_thread(landed.discard)
                raise Corrupt(
                    "the store has other bytes than the manifest says",
                    object=f"blob {key}",
                    next_step="Use another checkpoint; somebody has written to this one after it was committed.",
                )
            await asyncio.to_thread(landed.name)
        tally.tell(file.path, file.size_bytes)

    # -- removing ------------------------------------------------------------------------------------------------

    def delete(
        self, prefix: str, files: Sequence[CheckpointFile] = (), globs: Sequence[str] = ()
    ) -> tuple[CheckpointFile, ...]:  # fmt: skip
        """Remove a checkpoint's files, or those that match one of ``globs``. Returns which of ``files`` are left.

        What is gone already is no error. All that lies under the prefix is looked at, also what a cut off upload left
        there: ``files`` need not be known.
        """
        self._check_paths(prefix, (file.path for file in files))
        is_meant = any_of(globs) if globs else None
        left = tuple(file for file in files if is_meant is not None and not is_meant(file.path))

        async def work(blobs: FullBlobs) -> None:
            top = f"{self._key(prefix)}/"
            keys = {f"{top}{file.path}" for file in files if not file.is_folder}
            keys |= {listed.key async for page in blobs.list(self._key(prefix)) for listed in page}
            meant = [key for key in sorted(keys) if is_meant is None or is_meant(key.removeprefix(top))]
            await _all([(0, blobs.delete(key)) for key in meant])

        self._run(work)
        return left

    def sweep_orphans(self, prefixes_known: Collection[str], older_than_s: float = ORPHAN_AFTER_S) -> int:
        """Remove uploads that were begun and never committed; how many files went.

        ``prefixes_known`` must name every committed checkpoint of this store, and every other one that anybody may
        still commit after ``older_than_s`` without a change. What is younger is left alone.
        """
        known = {prefix.rstrip("/") for prefix in prefixes_known}
        before = time.time() - older_than_s

        async def work(blobs: FullBlobs) -> int:
            found: dict[str, list[str]] = {}
            newest: dict[str, float] = {}
            async for page in blobs.list(self._key(FOLDER)):
                for listed in page:
                    prefix = "/".join(listed.key.removeprefix(self._home).split("/")[:2])
                    found.setdefault(prefix, []).append(listed.key)
                    newest[prefix] = max(newest.get(prefix, 0.0), listed.modified_at)
            orphans = [prefix for prefix in found if prefix not in known and newest[prefix] <= before]
            keys = [key for prefix in sorted(orphans) for key in found[prefix]]
            await _all([(0, blobs.delete(key)) for key in keys])
            return len(keys) + (0 if self._home else await blobs.sweep(older_than_s))

        return self._run(work)

    def check(self) -> None:
        """Write, read and delete a little: whoever may not is told now and not after the training."""
        self._run(lambda blobs: blobs.check(), may_create=True)

    # ------------------------------------------------------------------------------------------------------------

    def _key(self, prefix: str, path: str = "") -> str:
        return f"{self._home}{prefix}/{path}" if path else f"{self._home}{prefix}"

    def _check_paths(self, prefix: str, paths: Iterable[str]) -> None:
        from clutch.backends.blobs.keys import check_key

        check_key(prefix)
        for path in paths:
            try:
                plain = path.removesuffix("/")  # of an empty folder
                check_key(plain)
                check_key(self._key(prefix, plain))
            except BadRequest as error:
                raise BadRequest(
                    error.cause, object=f"file {path[:200]!a}", next_step=f"Rename it. {error.next_step}"
                ) from error

    def _run(self, work: Callable[[FullBlobs], Coroutine[Any, Any, T]], *, may_create: bool = False) -> T:
        from clutch.runtime.checkpoint_apart import run_apart

        async def whole() -> T:
            blobs = await self._opening(may_create)
            try:
                return await work(blobs)
            finally:
                await blobs.close()

        return run_apart(whole)


class _Tally:
    """How many bytes of a checkpoint are there, over all its files."""

    def __init__(self, total_bytes: int, progress: Progress | None) -> None:
        self._total_bytes = total_bytes
        self._progress = progress
        self._done: dict[str, int] = {}
        self._sum = 0
        self._lock = threading.Lock()

    def tell(self, path: str, done_bytes: int) -> None:
        if self._progress is None:
            return
        with self._lock:
            before = self._done.get(path, 0)
            if done_bytes > before or not self._done:  # a file that is begun again does not go back
                self._done[path] = max(done_bytes, before)
                self._sum += max(0, done_bytes - before)
                self._progress(self._sum, self._total_bytes)


async def _same(blobs: FullBlobs, key: str, one: Found) -> str | None:
    """The hash, if this very content is stored already."""
    import asyncio

    try:
        there = await blobs.stat(key)
    except (NotFound, Corrupt):
        return None
    if there.size_bytes != one.size_bytes:
        return None
    return there.sha256 if await asyncio.to_thread(hash_of, one.place) == there.sha256 else None


def make_folder(target: Path, path: str) -> None:
    """An empty folder of a checkpoint, below ``target``."""
    from clutch.backends.blobs.files import typed

    with typed(f"folder {target / path}"):
        (target / path).mkdir(parents=True, exist_ok=True)


def hash_of(place: Path) -> str:
    import hashlib

    from clutch.backends.blobs.files import source, typed

    digest = hashlib.sha256()
    with source(place) as origin, typed(f"file {place}"):
        done = 0
        while piece := os.pread(origin.descriptor, 4 << 20, done):
            digest.update(piece)
            done += len(piece)
        origin.check_unchanged()
    return digest.hexdigest()


async def _all(moves: Sequence[tuple[int, Coroutine[Any, Any, T]]]) -> list[T]:
    """What each gives, in order, a bounded number at once. The first failure ends the others."""
    import asyncio

    large, small = asyncio.Semaphore(LARGE_AT_ONCE), asyncio.Semaphore(SMALL_AT_ONCE)

    async def one(size_bytes: int, move: Coroutine[Any, Any, T]) -> T:
        try:
            async with large if size_bytes >= LARGE_BYTES else small:
                return await move
        finally:
            move.close()  # one that never began

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(size, move)) for size, move in moves]
    except BaseExceptionGroup as failures:
        raise _first(failures) from None
    return [task.result() for task in tasks]


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """What went wrong first; what was only cut off because of it is left out."""
    known = [error for error in failures.exceptions if isinstance(error, ClutchError)]
    telling = [error for error in known if not (isinstance(error, Unavailable) and "gave up" in error.cause)]
    for error in (*telling, *known, *failures.exceptions):
        return error
    raise AssertionError("a group of failures without one")


__all__ = ["FOLDER", "ORPHAN_AFTER_S", "Progress", "Selector", "Served", "Store"]
