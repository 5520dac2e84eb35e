"""A user's own store as blobs: a class with four verbs, and what is missing from them added around it.

::

    KEY                   the content, exactly as it was put
    .clutch/seals/KEY     its size, its hash and when it was put: written last, so what has a seal is whole
    .clutch/begun/KEY     somebody is writing it, since when; what such a one leaves behind is found and swept by this

All rules of blobs hold but two, which four verbs cannot give: of several writers that ``create`` a key at the same
moment more than one may win, and a writer that is killed while it *replaces* a blob leaves one that is ``Corrupt``.
Checkpoints need neither: no two are stored under one prefix.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from clutch.backends.blobs.base import SWEEP_AFTER_S, Blob, Content, Listed, Progress
from clutch.backends.blobs.files import CHUNK_BYTES, corrupt, source, typed
from clutch.backends.blobs.keys import RESERVED, check_key, check_prefix, check_range, clamp_range, is_key
from clutch.backends.blobs.windows import windowed
from clutch.wire.errors import BadRequest, ClutchError, Conflict, NotFound, Unavailable

T = TypeVar("T")

SEALS, BEGUN = f"{RESERVED}/seals", f"{RESERVED}/begun"
_TRIES, _PAUSE_S = 100, 0.05
_STATS_AT_ONCE = 8


class OwnStore(Protocol):
    """What a user writes. Every call may come from any thread, several at once; whatever it raises is shown.

    Keys are text like ``checkpoints/100-ab12/model.pt``, at most 600 bytes of UTF-8, with any letter but control
    characters and backslashes, and no segment that is empty, ``.`` or ``..``.
    """

    def put(self, key: str, path: Path) -> None:
        """Store the file's content, in place of what was there. Whoever reads meanwhile gets all of it or nothing."""
        ...

    def get(self, key: str, path: Path) -> None:
        """Write the content to this file. ``KeyError`` if the key is not there."""
        ...

    def list(self, prefix: str) -> Iterable[str]:
        """Every key that begins with these letters, in any order."""
        ...

    def delete(self, key: str) -> None:
        """The key is gone. Nothing happens if it was not there."""
        ...


class _Seal(msgspec.Struct, frozen=True):
    size_bytes: int
    sha256: str
    modified_at: float


class OwnBlobs:
    """Blobs in a user's store."""

    def __init__(self, store: OwnStore, name: str) -> None:
        """``name`` is what errors call it."""
        self._store = store
        self._name = name
        for verb in ("put", "get", "list", "delete"):
            if not callable(getattr(store, verb, None)):
                raise BadRequest(
                    f"it has no method {verb}", object=f"store {name}", next_step="Give it put, get, list and delete."
                )

    # -- the four verbs ------------------------------------------------------------------------------------------

    async def _ask(self, key: str, call: Callable[[], T]) -> T:
        def run() -> T:
            try:
                return call()
            except ClutchError:
                raise
            except (KeyError, FileNotFoundError) as missing:
                raise NotFound("there is no such blob", object=f"blob {key}", next_step="List the keys.") from missing
            except OSError as error:
                with typed(f"blob {key}"):
                    raise
                raise AssertionError from error
            except Exception as error:
                raise Unavailable(
                    f"{type(error).__name__}: {error}", object=f"store {self._name}", next_step="See its own code."
                ) from error

        return await asyncio.to_thread(run)

    async def _write(self, key: str, content: Any) -> None:
        with tempfile.TemporaryDirectory(prefix="clutch-own-") as folder:
            path = Path(folder) / "content"
            path.write_bytes(msgspec.json.encode(content))
            await self._ask(key, lambda: self._store.put(key, path))

    async def _read(self, key: str) -> bytes:
        with tempfile.TemporaryDirectory(prefix="clutch-own-") as folder:
            path = Path(folder) / "content"
            await self._ask(key, lambda: self._store.get(key, path))
            return path.read_bytes()

    async def _drop(self, key: str) -> None:
        with suppress(NotFound):
            await self._ask(key, lambda: self._store.delete(key))

    async def _names(self, folder: str) -> list[str]:
        found = await self._ask(folder, lambda: list(self._store.list(f"{folder}/")))
        return [name for name in found if name.startswith(f"{folder}/")]

    async def _seal(self, key: str) -> _Seal:
        try:
            content = await self._read(f"{SEALS}/{key}")
        except NotFound as missing:
            raise NotFound("there is no such blob", object=f"blob {key}", next_step="List the keys.") from missing
        try:
            return msgspec.json.decode(content, type=_Seal)
        except msgspec.MsgspecError as error:
            raise corrupt(key, f"its seal cannot be read ({error})") from error

    async def _is_begun(self, key: str) -> bool:
        try:
            await self._read(f"{BEGUN}/{key}")
        except NotFound:
            return False
        return True

    # -- writing -------------------------------------------------------------------------------------------------

    async def put(self, key: str, content: Content, *, create: bool = False) -> Blob:
        check_key(key)
        with tempfile.TemporaryDirectory(prefix="clutch-own-") as folder:
            path = Path(folder) / "content"
            with typed(f"file {path}"), path.open("wb") as file:
                if isinstance(content, bytes | bytearray | memoryview):
                    await asyncio.to_thread(file.write, content)
                else:
                    async for chunk in content:
                        await asyncio.to_thread(file.write, chunk)
            return await self.put_file(key, path, create=create)

    async def put_file(
        self, key: str, path: Path, *, create: bool = False, progress: Progress | None = None
    ) -> Blob:  # fmt: skip
        check_key(key)
        with source(path) as origin:
            if create:
                with suppress(NotFound):
                    await self._seal(key)
                    raise Conflict("it exists already", object=f"blob {key}", next_step="Use it, or another key.")
            await self._write(f"{BEGUN}/{key}", time.time())
            try:
                hashing = asyncio.ensure_future(asyncio.to_thread(_hash, path))
                try:
                    await self._ask(key, lambda: self._store.put(key, path))
                finally:
                    sha256 = await hashing
                origin.check_unchanged()
                seal = _Seal(origin.size_bytes, sha256, time.time())
                await self._write(f"{SEALS}/{key}", seal)
            except ClutchError:
                with suppress(ClutchError):
                    await self._give_up(key)
                raise
            await self._drop(f"{BEGUN}/{key}")
        if progress is not None:
            progress(seal.size_bytes, 0)
        return Blob(key, seal.size_bytes, sha256, seal.modified_at)

    async def _give_up(self, key: str) -> int:
        """A put that came to nothing: what has no seal is nobody's."""
        gone = 0
        try:
            await self._seal(key)
        except NotFound:
            await self._drop(key)
            gone = 1
        await self._drop(f"{BEGUN}/{key}")
        return gone + 1

    async def delete(self, key: str) -> None:
        check_key(key)
        for name in (f"{SEALS}/{key}", key):
            await self._drop(name)

    # -- reading -------------------------------------------------------------------------------------------------

    async def stat(self, key: str) -> Blob:
        check_key(key)
        seal = await self._seal(key)
        return Blob(key, seal.size_bytes, seal.sha256, seal.modified_at)

    async def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        check_key(key)
        check_range(key, start, stop)
        blob = await self.stat(key)
        clamp_range(key, start, stop, blob.size_bytes)
        with tempfile.TemporaryDirectory(prefix="clutch-own-") as folder:
            path = Path(folder) / "content"
            blob = await self.get_file(key, path)
            first, last = clamp_range(key, start, stop, blob.size_bytes)
            with path.open("rb") as file:
                file.seek(first)
                return file.read(last - first)

    async def get_file(self, key: str, path: Path, *, progress: Progress | None = None) -> Blob:
        check_key(key)
        seal = await self._seal(key)
        aside = path.with_name(f".{uuid.uuid4().hex}.own")
        try:
            for _ in range(_TRIES):
                await self._ask(key, lambda: self._store.get(key, aside))
                if await asyncio.to_thread(_hash, aside) == seal.sha256:
                    with typed(f"file {path}"):
                        aside.replace(path)
                    if progress is not None:
                        progress(seal.size_bytes, 0)
                    return Blob(key, seal.size_bytes, seal.sha256, seal.modified_at)
                begun, before = await self._is_begun(key), seal
                seal = await self._seal(key)
                if seal == before and not begun:
                    break
                await asyncio.sleep(_PAUSE_S)  # somebody is replacing it
            raise corrupt(key, "its bytes do not have the hash they were stored with")
        finally:
            aside.unlink(missing_ok=True)

    def list(self, prefix: str = "", *, page_size: int = 1_000) -> AsyncIterator[tuple[Listed, ...]]:
        folder = check_prefix(prefix)
        if page_size < 1:
            raise BadRequest(f"a page of {page_size} keys", object="list", next_step="Ask for at least one.")
        return self._pages(f"{SEALS}/{folder}" if folder else SEALS, page_size)

    async def _pages(self, folder: str, page_size: int) -> AsyncIterator[tuple[Listed, ...]]:
        keys = sorted(name.removeprefix(f"{SEALS}/") for name in await self._names(folder))
        keys = [key for key in keys if is_key(key)]

        async def listed(key: str) -> Listed | None:
            try:
                return Listed(key, (await self._seal(key)).modified_at)
            except NotFound:
                return None  # deleted meanwhile

        async def work() -> AsyncIterator[Any]:
            for key in keys:
                yield listed(key)

        page: list[Listed] = []
        async for one in windowed(work(), _STATS_AT_ONCE):
            if one is not None:
                page.append(one)
            if len(page) == page_size:
                yield tuple(page)
                page = []
        if page:
            yield tuple(page)

    # -- maintenance ---------------------------------------------------------------------------------------------

    async def check(self) -> None:
        key = f"{RESERVED}-check/{uuid.uuid4().hex}"
        await self.put(key, b"clutch")
        try:
            if await self.get(key) != b"clutch":
                raise corrupt(key, "the store gives back other bytes than were put")
        finally:
            await self.delete(key)

    async def sweep(self, older_than_s: float = SWEEP_AFTER_S) -> int:
        gone, before = 0, time.time() - older_than_s
        for name in await self._names(BEGUN):
            with suppress(NotFound, msgspec.MsgspecError):
                if msgspec.json.decode(await self._read(name), type=float) <= before:
                    gone += await self._give_up(name.removeprefix(f"{BEGUN}/"))
        return gone

    async def close(self) -> None:
        """The store is its user's."""


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            digest.update(piece)
    return digest.hexdigest()
