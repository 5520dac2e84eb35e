"""Blobs that a master serves over HTTP, for those who share no storage with it: one workspace of the master's store.

What is stored is as safe as that store: a folder on the master's machine is one copy, an object store is what it is.
(``clutch master --blobs agents:`` makes that two copies on two agents' disks: one lost machine loses nothing.)

A file larger than a part goes in parts, each named by its hash, and is joined at the master: a ``put_file`` that was
cut off sends only what is missing. Every read is of one version (``If-Match``), and a whole one is checked here.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from clutch.backends.blobs.base import SWEEP_AFTER_S, Blob, Content, Listed, Progress
from clutch.backends.blobs.files import corrupt, is_taken, source
from clutch.backends.blobs.keys import check_key, check_prefix, check_range, clamp_range
from clutch.backends.blobs.landing import Landing
from clutch.backends.blobs.layout import PARTS_MAX, part_size_for, window_for
from clutch.backends.blobs.uploads import Upload, digests, read_at, repacked, slices
from clutch.backends.blobs.windows import windowed
from clutch.backends.masters import Masters
from clutch.wire.api import PAGE_MAX, Page
from clutch.wire.errors import (
    BadRequest,
    ClutchError,
    Conflict,
    Corrupt,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    Stale,
    TooLarge,
    Unavailable,
)
from clutch.wire.push import (
    BLOBS,
    UPLOADS,
    Acknowledged,
    BlobKey,
    BlobView,
    CommitUpload,
    PartView,
    SweepUploads,
    Swept,
)

PART_BYTES = 8 << 20
JOIN_S = 3600.0
"""How long a master may take to join the parts of a large file."""
FIRST_BYTES = 8 << 20
"""What a master gives of a blob in one piece."""
_TRIES = 20


class ServedBlobs:
    """One workspace. ``masters`` is closed with it."""

    def __init__(self, masters: Masters, workspace: str, *, part_bytes: int = PART_BYTES) -> None:
        self._masters = masters
        self._workspace = workspace
        self._part_bytes = part_bytes

    # -- reading -------------------------------------------------------------------------------------------------

    async def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        check_key(key)
        check_range(key, start, stop)
        for _ in range(_TRIES):
            blob, content = await self._first(key, start, stop)
            first, last = clamp_range(key, start, stop, blob.size_bytes)
            try:
                async with aclosing(self._pieces(blob, first + len(content), last)) as pieces:
                    content = b"".join([content, *[piece async for piece in pieces]])
            except Conflict:
                continue  # replaced meanwhile: all of it again
            if len(content) == blob.size_bytes and hashlib.sha256(content).hexdigest() != blob.sha256:
                raise corrupt(key, "its bytes do not have the hash they were stored with")
            return content
        raise self._restless(key)

    async def _pieces(self, blob: Blob, start: int, stop: int) -> Any:
        """Bytes of this very version, in order, several pieces under way at once."""

        async def work() -> AsyncIterator[Coroutine[Any, Any, bytes]]:
            for first in range(start, stop, self._part_bytes):
                yield self._piece(blob, first, min(stop, first + self._part_bytes))

        async with aclosing(windowed(work(), window_for(self._part_bytes))) as pieces:
            async for piece in pieces:
                yield piece

    async def _first(self, key: str, start: int, stop: int | None) -> tuple[Blob, bytes]:
        """A blob as it is now, with the first of the wanted bytes; what is small comes whole, in one request."""
        until = start + FIRST_BYTES if stop is None else min(stop, start + FIRST_BYTES)
        if until == start:
            return await self.stat(key), b""
        headers = {"Range": f"bytes={start}-{until - 1}"}
        answer = await self._ask("GET", self._at(key), f"blob {key}", headers=headers)
        try:
            size = int(answer.headers["content-range"].rpartition("/")[2])
            modified = float(answer.headers["clutch-modified-at"])
            return Blob(key, size, answer.headers["clutch-sha256"], modified), answer.content
        except (KeyError, ValueError) as error:
            raise Unavailable("this is no answer of a master", object=f"blob {key}") from error

    async def _piece(self, blob: Blob, start: int, stop: int) -> bytes:
        headers = {"Range": f"bytes={start}-{stop - 1}", "If-Match": f'"{blob.sha256}"'}
        answer = await self._ask("GET", self._at(blob.key), f"blob {blob.key}", headers=headers)
        if len(answer.content) != stop - start:
            raise corrupt(blob.key, "fewer bytes came than it has")
        content: bytes = answer.content
        return content

    async def stat(self, key: str) -> Blob:
        check_key(key)
        answer = await self._ask("HEAD", self._at(key), f"blob {key}")
        try:
            headers = answer.headers
            return Blob(
                key, int(headers["content-length"]), headers["clutch-sha256"], float(headers["clutch-modified-at"])
            )
        except (KeyError, ValueError) as error:
            raise Unavailable("this is no answer of a master", object=f"blob {key}") from error

    async def get_file(self, key: str, path: Path, *, progress: Progress | None = None) -> Blob:
        check_key(key)
        for _ in range(_TRIES):
            blob = await self.stat(key)
            landing = await asyncio.to_thread(Landing, path, blob.sha256, progress)
            keep = True
            try:
                await self._land(blob, landing)
                if not landing.is_sound and landing.copy.reused_bytes:
                    landing.restart()
                    await self._land(blob, landing)
                landing.finish(key)
                return blob
            except (NotFound, Conflict):
                keep = False  # replaced or deleted meanwhile
            except Corrupt:
                keep = False
                raise
            finally:
                landing.close(keep=keep)
        raise self._restless(key)

    async def _land(self, blob: Blob, landing: Landing) -> None:
        there = await asyncio.to_thread(landing.resume, self._part_bytes, blob.size_bytes)
        async with aclosing(self._pieces(blob, there, blob.size_bytes)) as pieces:
            async for piece in pieces:
                await asyncio.to_thread(landing.write, memoryview(piece))

    def list(self, prefix: str = "", *, page_size: int = 1_000) -> AsyncIterator[tuple[Listed, ...]]:
        folder = check_prefix(prefix)
        if page_size < 1:
            raise BadRequest(f"a page of {page_size} keys", object="list", next_step="Ask for at least one.")
        return self._pages(folder, min(page_size, PAGE_MAX))

    async def _pages(self, folder: str, page_size: int) -> AsyncIterator[tuple[Listed, ...]]:
        after = ""
        while True:
            asked = {"prefix": folder, "after": after, "limit": page_size}
            answer = await self._ask("GET", self._at(), f"folder {folder or '/'}", params=asked)
            page = msgspec.json.decode(answer.content, type=Page[BlobKey])
            if page.items:
                yield tuple(Listed(item.key, item.modified_at) for item in page.items)
            if not page.next:
                return
            after = page.next

    # -- writing -------------------------------------------------------------------------------------------------

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
                yield first, await asyncio.to_thread(digests, digest, first)
                async for piece in pieces:
                    yield piece, await asyncio.to_thread(digests, digest, piece)

            upload = Upload(uuid.uuid4().hex, self._part_bytes, None)
            try:
                await self._send(key, parts(), upload)
                return await self._commit(key, upload, digest.hexdigest(), create)
            except Exception:  # nobody can go on with it; what cannot be removed now is swept
                with suppress(ClutchError):
                    await self._ask("DELETE", self._of(upload), f"blob {key}")
                raise

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
            for _ in range(_TRIES):
                upload = Upload(name, part_size_for(origin.size_bytes, self._part_bytes), progress)
                upload.there = await self._there(upload, key)
                digest = hashlib.sha256()
                await self._send(key, _parts_of(origin, upload.part_bytes, digest), upload)
                origin.check_unchanged()
                try:
                    return await self._commit(key, upload, digest.hexdigest(), create)
                except Stale:
                    name = uuid.uuid4().hex  # another has just put this very file, or its parts were swept
        raise self._restless(key)

    async def _put_small(self, key: str, content: bytes, create: bool) -> Blob:
        headers = {"If-None-Match": "*"} if create else {}
        # A create that may have arrived is not said twice: the second would be refused because of the first
        answer = await self._ask(
            "PUT", self._at(key), f"blob {key}", content=content, headers=headers, repeat=not create
        )
        blob = _blob(msgspec.json.decode(answer.content, type=BlobView))
        if blob.sha256 != hashlib.sha256(content).hexdigest():
            raise corrupt(key, "the master stored other bytes than were sent")
        return blob

    async def _refuse_early(self, key: str, create: bool) -> None:
        """Not after a long upload if it can be known before."""
        if not create:
            return
        try:
            await self.stat(key)
        except NotFound:
            return
        raise Conflict("it exists already", object=f"blob {key}", next_step="Use it, or another key.")

    async def _there(self, upload: Upload, key: str) -> dict[str, float]:
        answer = await self._ask("GET", self._of(upload), f"blob {key}")
        return {part.part: 0.0 for part in msgspec.json.decode(answer.content, type=tuple[PartView, ...])}

    async def _send(self, key: str, parts: AsyncIterator[tuple[bytes, str]], upload: Upload) -> None:
        """Send every part that is not there yet, several at once."""

        async def work() -> AsyncIterator[Coroutine[Any, Any, tuple[int, bool]]]:
            async for content, sha256 in parts:
                if len(upload.sums) >= PARTS_MAX:
                    raise TooLarge(
                        f"a stream of more than {PARTS_MAX} parts",
                        object=f"blob {key}",
                        next_step="Write it to a file and use put_file.",
                    )
                name = f"{len(upload.sums):06d}-{sha256}"
                upload.sums.append(name)
                yield self._send_part(key, upload, name, content)

        async with aclosing(windowed(work(), window_for(upload.part_bytes))) as sent:
            async for size, reused in sent:
                upload.tell(size, reused)

    async def _send_part(self, key: str, upload: Upload, name: str, content: bytes) -> tuple[int, bool]:
        reused = name in upload.there
        if not reused:
            await self._ask("PUT", f"{self._of(upload)}/{name}", f"blob {key}", content=content)
        return len(content), reused

    async def _commit(self, key: str, upload: Upload, sha256: str, create: bool) -> Blob:
        wanted = CommitUpload(key=key, parts=tuple(upload.sums), sha256=sha256, create=create)
        answer = await self._ask(
            "POST",
            f"{self._of(upload)}/commit",
            f"blob {key}",
            content=msgspec.json.encode(wanted),
            headers={"Content-Type": "application/json"},
            repeat=False,
            waits_s=JOIN_S,
        )
        return _blob(msgspec.json.decode(answer.content, type=BlobView))

    async def forget(self, key: str, path: Path) -> None:
        check_key(key)
        with source(path) as origin:
            if not is_taken(origin.descriptor):
                upload = Upload(origin.identity(key), self._part_bytes, None)
                await self._ask("DELETE", self._of(upload), f"blob {key}")

    async def delete(self, key: str) -> None:
        check_key(key)
        answer = await self._ask("DELETE", self._at(key), f"blob {key}")
        msgspec.json.decode(answer.content, type=Acknowledged)

    # -- maintenance ---------------------------------------------------------------------------------------------

    async def check(self) -> None:
        key = f".clutch-check/{uuid.uuid4().hex}"
        await self.put(key, b"clutch", create=True)
        try:
            if await self.get(key) != b"clutch":
                raise corrupt(key, "the store gives back other bytes than were put")
            try:
                await self.put(key, b"again", create=True)
            except Conflict:
                return
            raise BadRequest("the store overwrites although it was told not to", object=f"workspace {self._workspace}")
        finally:
            await self.delete(key)

    async def sweep(self, older_than_s: float = SWEEP_AFTER_S) -> int:
        path = f"{UPLOADS}/{quote(self._workspace, safe='')}/sweep"
        content = msgspec.json.encode(SweepUploads(older_than_s=older_than_s))
        headers = {"Content-Type": "application/json"}
        answer = await self._ask("POST", path, f"workspace {self._workspace}", content=content, headers=headers)
        return msgspec.json.decode(answer.content, type=Swept).count

    async def close(self) -> None:
        await self._masters.close()

    # ------------------------------------------------------------------------------------------------------------

    async def _ask(self, method: str, path: str, subject: str, **more: Any) -> Any:
        try:
            return await self._masters.ask(method, path, **more)
        except NotAuthenticated as error:
            raise NotAllowed(error.cause, object=subject, next_step=error.next_step) from error
        except NotFound as error:
            if method == "HEAD":  # its answer has no body that could say what is missing
                raise NotFound("there is no such blob", object=subject, next_step="List the keys.") from error
            raise
        except Unavailable as error:
            if method == "HEAD" and error.cause.startswith("it answered"):
                raise self._unsaid(error, subject) from error
            raise

    def _unsaid(self, error: Unavailable, subject: str) -> ClutchError:
        """The error that an answer to HEAD could only say by its status."""
        status = error.cause.split()[2]
        if status in ("401", "403"):
            return NotAllowed("the master refuses this token here", object=subject, next_step="Use another token.")
        if status == "404":
            return NotFound("there is no such blob", object=subject, next_step="List the keys.")
        if status == "400":
            return BadRequest("the master refuses this key", object=subject)
        if status == "500":
            return corrupt(subject.removeprefix("blob "), "the master cannot read it")
        return error

    def _at(self, key: str | None = None) -> str:
        home = f"{BLOBS}/{quote(self._workspace, safe='')}"
        return home if key is None else f"{home}/{quote(key, safe='/')}"

    def _of(self, upload: Upload) -> str:
        return f"{UPLOADS}/{quote(self._workspace, safe='')}/{upload.name}"

    @staticmethod
    def _restless(key: str) -> Unavailable:
        return Unavailable("it is replaced faster than it can be moved", object=f"blob {key}", next_step="Try again.")


async def _parts_of(origin: Any, part_bytes: int, digest: Any) -> AsyncIterator[tuple[bytes, str]]:
    for offset in range(0, origin.size_bytes, part_bytes):
        content = await asyncio.to_thread(read_at, origin, offset, part_bytes)
        yield content, await asyncio.to_thread(digests, digest, content)


def _blob(view: BlobView) -> Blob:
    return Blob(view.key, view.size_bytes, view.sha256, view.modified_at)
