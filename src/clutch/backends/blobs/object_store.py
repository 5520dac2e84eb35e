"""Blobs in an object store (S3, GCS, Azure), or what acts like one. How they lie there is said in ``layout``.

A store must refuse to overwrite when asked to (``If-None-Match``); ``check`` finds out whether it does.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from clutch.backends.blobs import layout
from clutch.backends.blobs.base import SWEEP_AFTER_S, Blob, Content, Listed, Progress
from clutch.backends.blobs.files import corrupt, is_taken, source
from clutch.backends.blobs.keys import RESERVED, check_key, check_prefix, check_range, clamp_range, is_key
from clutch.backends.blobs.landing import Landing
from clutch.backends.blobs.layout import Head, Owner
from clutch.backends.blobs.object_errors import OutOfRange, typed
from clutch.backends.blobs.objects import Objects
from clutch.backends.blobs.uploads import Upload, prefix_digest, read_at, repacked, slices
from clutch.backends.blobs.windows import windowed
from clutch.wire.errors import BadRequest, ClutchError, Conflict, Corrupt, NotFound, TooLarge, TooNew, Unavailable

if TYPE_CHECKING:
    from obstore import Attributes, Bytes, GetResult

_TRIES = 5


class _Found:
    """An object under a key: its blob, and its head if it has one."""

    def __init__(self, key: str, result: GetResult) -> None:
        attributes, meta = result.attributes, result.meta
        self.sha256 = str(attributes.get(layout.SUM, ""))
        self.upload = str(attributes.get(layout.UPLOAD, ""))
        if len(self.sha256) != 64:
            raise corrupt(key, "the object has no seal: it was not put here by Clutch, or was copied without metadata")
        size = int(attributes[layout.SIZE]) if self.upload else meta["size"]
        self.blob = Blob(key, size, self.sha256, meta["last_modified"].timestamp())
        self.result = result


class ObjectBlobs:
    """Blobs in one bucket, below one prefix, which is the store's own."""

    def __init__(self, client: Objects, where: str, *, part_bytes: int = layout.PART_BYTES) -> None:
        """``where`` names the store in errors, without any secret."""
        self._client = client
        self._where = where
        self._part_bytes = part_bytes

    async def close(self) -> None:
        """No call is begun any more; connections go with the client."""
        self._client.close()

    # -- reading ------------------------------------------------------------------------------------------------

    async def _find(self, key: str, *, body: bool) -> _Found:
        """The object under a key; without ``body`` only its first byte travels."""
        with typed(self._where, f"blob {key}"):
            if not body:
                try:
                    with typed(self._where, f"blob {key}"):
                        return _Found(key, await self._client.get(key, {"range": (0, 1)}))
                except OutOfRange:
                    pass  # it is empty
            return _Found(key, await self._client.get(key))

    async def _head(self, found: _Found) -> Head:
        with typed(self._where, f"blob {found.blob.key}"):
            text = (await self._client.body(found.result)).to_bytes()
        try:
            head = msgspec.json.decode(text, type=Head)
        except msgspec.DecodeError as error:
            raise corrupt(found.blob.key, f"its head cannot be read ({error})") from error
        if head.version > 1:
            raise TooNew(f"its head has version {head.version}", object=f"blob {found.blob.key}")
        if (head.sha256, head.size_bytes, head.upload) != (found.sha256, found.blob.size_bytes, found.upload):
            raise corrupt(found.blob.key, "its head does not agree with its metadata")
        return head

    async def _part(self, key: str, name: str, start: int, stop: int) -> Bytes:
        try:
            with typed(self._where, f"blob {key}"):
                content: Bytes = await self._client.get_range(name, start, stop)
        except OutOfRange as error:
            raise corrupt(key, f"the part {name} is too short") from error
        if len(content) != stop - start:
            raise corrupt(key, f"the part {name} is too short")
        return content

    async def _parts(self, key: str, head: Head, start: int, stop: int) -> AsyncGenerator[Bytes, None]:
        async def work() -> AsyncIterator[Coroutine[Any, Any, Bytes]]:
            if start < stop:
                for index, first, last in head.covering(start, stop):
                    yield self._part(key, head.part(index), first, last)

        async with aclosing(windowed(work(), layout.window_for(head.part_bytes))) as parts:
            async for part in parts:
                yield part

    async def _vanished(self, key: str, upload: str, error: Exception) -> None:
        """A part is not there. Fine if the blob was replaced or deleted meanwhile: returns or raises ``NotFound``."""
        found = await self._find(key, body=False)
        if upload and found.upload == upload:
            raise corrupt(key, "one of its parts is missing") from error

    async def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        check_key(key)
        check_range(key, start, stop)
        for _ in range(_TRIES):
            whole = start == 0 and stop is None
            found = await self._find(key, body=whole)
            if found.upload and not whole:
                found = await self._find(key, body=True)
            first, last = clamp_range(key, start, stop, found.blob.size_bytes)
            try:
                content = await self._content(found, first, last, whole)
            except (NotFound, Conflict) as error:
                await self._vanished(key, found.upload, error)
                continue
            if len(content) == found.blob.size_bytes and hashlib.sha256(content).hexdigest() != found.sha256:
                raise corrupt(key, "its bytes do not have the hash they were stored with")
            return content
        raise self._restless(key)

    async def _content(self, found: _Found, start: int, stop: int, whole: bool) -> bytes:
        key = found.blob.key
        if found.upload:
            head = await self._head(found)
            return b"".join([memoryview(part) async for part in self._parts(key, head, start, stop)])
        if start == stop:
            return b""
        with typed(self._where, f"blob {key}"):
            result: Any = found.result
            if not whole:
                same = {"range": (start, stop), "if_match": found.result.meta["e_tag"]}
                result = await self._client.get(key, same)
            content: bytes = (await self._client.body(result)).to_bytes()
            return content

    @staticmethod
    def _restless(key: str) -> Unavailable:
        return Unavailable("it is replaced faster than it can be read", object=f"blob {key}", next_step="Try again.")

    async def stat(self, key: str) -> Blob:
        check_key(key)
        return (await self._find(key, body=False)).blob

    async def get_file(self, key: str, path: Path, *, progress: Progress | None = None) -> Blob:
        check_key(key)
        for _ in range(_TRIES):
            found = await self._find(key, body=True)
            head = await self._head(found) if found.upload else None
            landing = await asyncio.to_thread(Landing, path, found.sha256, progress)
            keep = True
            try:
                await self._land(found, head, landing)
                if not landing.is_sound and landing.copy.reused_bytes:
                    landing.restart()
                    await self._land(await self._find(key, body=True), head, landing)
                landing.finish(key)
                return found.blob
            except NotFound as error:
                keep = False
                await self._vanished(key, found.upload, error)
            except Corrupt:
                keep = False
                raise
            finally:
                landing.close(keep=keep)
        raise self._restless(key)

    async def _land(self, found: _Found, head: Head | None, landing: Landing) -> None:
        key, size = found.blob.key, found.blob.size_bytes
        if head is None:
            with typed(self._where, f"blob {key}"):
                content = await self._client.body(found.result)
            landing.restart()
            await asyncio.to_thread(landing.write, memoryview(content))
            return
        there = await asyncio.to_thread(landing.resume, head.part_bytes, size)

        async def work() -> AsyncIterator[Coroutine[Any, Any, int]]:
            for index in range(there // head.part_bytes, len(head.sums)):
                yield self._land_part(key, head, index, landing)

        async with aclosing(windowed(work(), layout.window_for(head.part_bytes))) as landed:
            async for stop_at in landed:
                await asyncio.to_thread(landing.take, stop_at)

    async def _land_part(self, key: str, head: Head, index: int, landing: Landing) -> int:
        """Write a part to its place as it arrives, beside others; up to where it goes."""
        name, size = head.part(index), head.part_size(index)
        offset = index * head.part_bytes

        def sink(content: memoryview) -> None:
            nonlocal offset
            landing.put_at(content, offset)
            offset += len(content)

        try:
            with typed(self._where, f"blob {key}"):
                count = await self._client.save_range(name, 0, size, sink)
        except OutOfRange as error:
            raise corrupt(key, f"the part {name} is too short") from error
        if count != size:
            raise corrupt(key, f"the part {name} is too short")
        return offset

    def list(self, prefix: str = "", *, page_size: int = 1_000) -> AsyncIterator[tuple[Listed, ...]]:
        folder = check_prefix(prefix)
        if page_size < 1:
            raise BadRequest(f"a page of {page_size} keys", object="list", next_step="Ask for at least one.")
        return self._pages(folder, page_size)

    async def _pages(self, folder: str, page_size: int) -> AsyncIterator[tuple[Listed, ...]]:
        with typed(self._where, f"folder {folder or '/'}"):
            async for chunk in self._client.pages(folder or None, page_size):
                page = tuple(
                    Listed(one["path"], one["last_modified"].timestamp()) for one in chunk if is_key(one["path"])
                )
                if page:
                    yield page

    # -- writing ------------------------------------------------------------------------------------------------

    async def _put_object(self, name: str, content: bytes | memoryview, attributes: Attributes, create: bool) -> None:
        with typed(self._where, f"blob {name}"):
            await self._client.put(name, content, attributes, create=create)

    async def put(self, key: str, content: Content, *, create: bool = False) -> Blob:
        check_key(key)
        if isinstance(content, bytes | bytearray | memoryview):
            content = slices(memoryview(content).cast("B"), self._part_bytes)
        pieces = repacked(content, self._part_bytes)
        async with aclosing(pieces):
            first = await anext(pieces, b"")
            if len(first) < self._part_bytes:
                return await self._put_small(key, first, create)
            await self._refuse_early(key, create)
            digest = hashlib.sha256()

            async def parts() -> AsyncIterator[tuple[bytes, str]]:
                yield first, await asyncio.to_thread(prefix_digest, digest, first)
                async for piece in pieces:
                    yield piece, await asyncio.to_thread(prefix_digest, digest, piece)

            upload = Upload(uuid.uuid4().hex, self._part_bytes, None)
            try:
                await self._send(key, parts(), upload)
            except Exception:  # nobody can go on with it; what cannot be removed now is swept
                with suppress(ClutchError):
                    await self._drop(upload.name)
                raise
            return await self._commit(key, upload, digest.hexdigest(), create)

    async def _put_small(self, key: str, content: bytes, create: bool) -> Blob:
        sha256 = hashlib.sha256(content).hexdigest()
        await self._put_object(key, content, {layout.SUM: sha256}, create)
        return Blob(key, len(content), sha256, time.time())

    async def put_file(
        self, key: str, path: Path, *, create: bool = False, progress: Progress | None = None
    ) -> Blob:  # fmt: skip
        check_key(key)
        with source(path) as origin:
            if origin.size_bytes < self._part_bytes:
                content = await asyncio.to_thread(read_at, origin, 0, origin.size_bytes)
                origin.check_unchanged()
                blob = await self._put_small(key, content, create)
                if progress is not None:
                    progress(blob.size_bytes, 0)
                return blob
            await self._refuse_early(key, create)
            name = uuid.uuid4().hex if is_taken(origin.descriptor) else origin.identity(key)
            there = await self._names(name)
            if layout.OWNER in there:  # it was committed: its parts belong to that blob
                name, there = uuid.uuid4().hex, {}
            upload = Upload(name, layout.part_size_for(origin.size_bytes, self._part_bytes), progress)
            upload.there = there
            digest = hashlib.sha256()

            async def parts() -> AsyncIterator[tuple[bytes, str]]:
                for offset in range(0, origin.size_bytes, upload.part_bytes):
                    content = await asyncio.to_thread(read_at, origin, offset, upload.part_bytes)
                    yield content, await asyncio.to_thread(prefix_digest, digest, content)

            await self._send(key, parts(), upload)
            origin.check_unchanged()
            return await self._commit(key, upload, digest.hexdigest(), create)

    async def _refuse_early(self, key: str, create: bool) -> None:
        """Not after a long upload if it can be known before."""
        if not create:
            return
        try:
            await self._find(key, body=False)
        except NotFound:
            return
        raise Conflict("it exists already", object=f"blob {key}", next_step="Use it, or another key.")

    async def _names(self, upload: str) -> dict[str, float]:
        """What lies in an upload's folder, with its age."""
        found: dict[str, float] = {}
        with typed(self._where, f"upload {upload}"):
            async for chunk in self._client.pages(layout.folder(upload)):
                found.update((one["path"].rpartition("/")[2], one["last_modified"].timestamp()) for one in chunk)
        return found

    async def _send(self, key: str, parts: AsyncIterator[tuple[bytes, str]], upload: Upload) -> None:
        """Send every part that is not there yet, several at once."""

        async def work() -> AsyncIterator[Coroutine[Any, Any, tuple[int, bool]]]:
            async for content, sha256 in parts:
                if len(upload.sums) >= layout.PARTS_MAX:
                    raise TooLarge(
                        f"a stream of more than {layout.PARTS_MAX} parts",
                        object=f"blob {key}",
                        next_step="Write it to a file and use put_file.",
                    )
                name = layout.part_name(upload.name, len(upload.sums), sha256)
                upload.sums.append(sha256)
                yield self._send_part(name, content, name.rpartition("/")[2] in upload.there)

        async with aclosing(windowed(work(), layout.window_for(upload.part_bytes))) as sent:
            async for size, reused in sent:
                upload.tell(size, reused)

    async def _send_part(self, name: str, content: bytes, reused: bool) -> tuple[int, bool]:
        if not reused:
            await self._put_object(name, content, {}, create=False)
        return len(content), reused

    async def _commit(self, key: str, upload: Upload, sha256: str, create: bool) -> Blob:
        """Make the upload this key's, then publish it, then drop what it replaced."""
        head = Head(upload.size_bytes, sha256, upload.name, upload.part_bytes, tuple(upload.sums))
        owner = f"{layout.folder(upload.name)}/{layout.OWNER}"
        try:
            await self._put_object(owner, msgspec.json.encode(Owner(key)), {}, create=True)
        except Conflict as error:
            raise Unavailable(
                "another process has just put this very file", object=f"blob {key}", next_step="Put it again."
            ) from error
        there = await self._names(upload.name)
        if any(head.part(index).rpartition("/")[2] not in there for index in range(len(head.sums))):
            await self._drop(upload.name)
            raise Unavailable("parts of it were swept", object=f"blob {key}", next_step="Put it again.")
        replaced = ""
        if not create:
            with suppress(NotFound, Corrupt):
                replaced = (await self._find(key, body=False)).upload
        attributes: Attributes = {layout.SUM: sha256, layout.SIZE: str(upload.size_bytes), layout.UPLOAD: upload.name}
        try:
            await self._put_object(key, msgspec.json.encode(head), attributes, create)
        except Conflict:
            await self._drop(upload.name)
            raise
        if replaced:
            await self._drop(replaced)
        return Blob(key, upload.size_bytes, sha256, time.time())

    # -- removing -----------------------------------------------------------------------------------------------

    async def _drop(self, upload: str) -> int:
        """Remove an upload: first its parts, then what says whose it was."""
        gone = 0
        for _ in range(_TRIES):
            names = sorted(await self._names(upload), key=lambda name: name == layout.OWNER)
            try:
                with typed(self._where, f"upload {upload}"):
                    for first in range(0, len(names), 1_000):
                        some = [f"{layout.folder(upload)}/{name}" for name in names[first : first + 1_000]]
                        await self._client.delete(some)
                        gone += len(some)
                return gone
            except NotFound as missing:
                if missing.object == self._where:
                    raise  # no bucket
                continue  # another drops it too, and this store minds: see what is left
        return gone

    async def forget(self, key: str, path: Path) -> None:
        check_key(key)
        with source(path) as origin:
            upload = origin.identity(key)
            if not is_taken(origin.descriptor) and layout.OWNER not in await self._names(upload):
                await self._drop(upload)

    async def delete(self, key: str) -> None:
        check_key(key)
        try:
            upload = (await self._find(key, body=False)).upload
        except NotFound as missing:
            if missing.object == self._where:
                raise  # no bucket
            return
        except Corrupt:
            upload = ""
        try:
            with typed(self._where, f"blob {key}"):
                await self._client.delete(key)
        except NotFound:
            return
        if upload:
            await self._drop(upload)

    async def sweep(self, older_than_s: float = SWEEP_AFTER_S) -> int:
        newest: dict[str, float] = {}
        with typed(self._where, f"folder {layout.PARTS}"):
            async for chunk in self._client.pages(layout.PARTS):
                for one in chunk:
                    upload, _, _ = one["path"].removeprefix(f"{layout.PARTS}/").partition("/")
                    newest[upload] = max(newest.get(upload, 0.0), one["last_modified"].timestamp())
        before = time.time() - older_than_s
        gone = 0
        for upload in sorted(newest):
            if newest[upload] <= before and not await self._is_used(upload):
                gone += await self._drop(upload)
        return gone

    async def _is_used(self, upload: str) -> bool:
        try:
            with typed(self._where, f"upload {upload}"):
                result = await self._client.get(f"{layout.folder(upload)}/{layout.OWNER}")
                owner = msgspec.json.decode((await self._client.body(result)).to_bytes(), type=Owner)
            return (await self._find(owner.key, body=False)).upload == upload
        except NotFound:
            return False
        except (Corrupt, msgspec.DecodeError):
            return True  # what cannot be read is not ours to delete

    async def check(self) -> None:
        async for _ in self.list(f"{RESERVED}-check"):
            break  # a bucket that is not there is not created by asking for a list
        key = f"{RESERVED}-check/{uuid.uuid4().hex}"
        await self.put(key, b"clutch", create=True)
        try:
            if await self.get(key) != b"clutch":
                raise corrupt(key, "the store gives back other bytes than were put")
            try:
                await self.put(key, b"again", create=True)
            except Conflict:
                return
            raise BadRequest(
                "the store overwrites although it was told not to (it ignores If-None-Match)",
                object=self._where,
                next_step="Use a store that knows conditional writes.",
            )
        finally:
            await self.delete(key)
