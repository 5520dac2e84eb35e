"""Blobs on the disks of a cluster's own nodes, two copies of each, for clusters without shared storage.

What ``put`` returned for is durable on two different nodes, so the loss of any single machine loses nothing; with one
node in the cluster it is one copy. Only one process may write at a time: the master that leads. ``run`` must run
beside it: it finds out what each node has, and mends what is missing.

Unlike other stores a ``put_file`` that was cut off begins again, and a put that says ``Unavailable`` when it was
nearly done may have been done, as one whose answer was lost.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path

from clutch.backends.blobs.base import SWEEP_AFTER_S, Blob, Content, Listed, Progress
from clutch.backends.blobs.copies import WAIT_S, Copies, Replaced, Shelves, Writer
from clutch.backends.blobs.files import Source, corrupt, source
from clutch.backends.blobs.keys import check_key, check_prefix, check_range, clamp_range
from clutch.backends.blobs.landing import Landing
from clutch.backends.blobs.mending import Mender
from clutch.backends.blobs.uploads import read_at, slices
from clutch.wire.errors import BadRequest, Corrupt, NotFound, Unavailable
from clutch.wire.shelf import Entry

CHUNK_BYTES = 1 << 20
_TRIES = 100


class AgentBlobs:
    """The blobs of one cluster, for the one process of it that writes."""

    def __init__(self, shelves: Shelves, writer: Writer, *, wait_s: float = WAIT_S) -> None:
        self.copies = Copies(shelves, writer, wait_s=wait_s)
        self.mender = Mender(self.copies)

    async def run(self) -> None:
        """Know what every node has, and keep two copies of everything, until cancelled."""
        await self.mender.run()

    def nudge(self) -> None:
        """Nodes have changed."""
        self.copies.nudge()

    async def close(self) -> None:
        await self.copies.close()

    # -- writing -------------------------------------------------------------------------------------------------

    async def put(self, key: str, content: Content, *, create: bool = False) -> Blob:
        check_key(key)
        if isinstance(content, bytes | bytearray | memoryview):
            content = slices(memoryview(content).cast("B"), CHUNK_BYTES)
        await self.copies.settled(f"blob {key}")
        if create:
            self.copies.refuse_existing(key)
        return _blob(await self.copies.store(key, content, create))

    async def put_file(
        self, key: str, path: Path, *, create: bool = False, progress: Progress | None = None
    ) -> Blob:  # fmt: skip
        check_key(key)
        with source(path) as origin:
            async with aclosing(_pieces(origin, progress)) as pieces:
                return await self.put(key, pieces, create=create)

    async def delete(self, key: str) -> None:
        check_key(key)
        await self.copies.remove(key)

    # -- reading -------------------------------------------------------------------------------------------------

    def _found(self, key: str) -> Entry | None:
        newest = self.copies.catalogue.newest(key)
        return None if newest is None or newest.gone else newest

    async def _entry(self, key: str) -> Entry:
        await self.copies.settled(f"blob {key}")
        found = self._found(key)
        if found is None:
            raise NotFound("there is no such blob", object=f"blob {key}", next_step="List the keys.")
        return found

    async def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        check_key(key)
        check_range(key, start, stop)
        entry = await self._entry(key)
        for _ in range(_TRIES):
            first, last = clamp_range(key, start, stop, entry.size_bytes)
            try:
                async with aclosing(self.copies.read(entry, first, last)) as pieces:
                    content = b"".join([piece async for piece in pieces])
            except Replaced:
                async with self.copies.lock(key):  # whoever is replacing it has finished then
                    entry = await self._entry(key)
                continue
            if len(content) == entry.size_bytes:
                digest = await asyncio.to_thread(hashlib.sha256, content)
                if digest.hexdigest() != entry.sha256:
                    raise corrupt(key, "its bytes do not have the hash they were stored with")
            return content
        raise self._restless(key)

    async def stat(self, key: str) -> Blob:
        check_key(key)
        return _blob(await self._entry(key))

    async def get_file(self, key: str, path: Path, *, progress: Progress | None = None) -> Blob:
        check_key(key)
        for _ in range(_TRIES):
            entry = await self._entry(key)
            landing = await asyncio.to_thread(Landing, path, entry.sha256, progress)
            keep = True
            try:
                await self._land(entry, landing)
                if not landing.is_sound and landing.copy.reused_bytes:
                    landing.restart()
                    await self._land(entry, landing)
                landing.finish(key)
                return _blob(entry)
            except Replaced:
                keep = False
            except Corrupt:
                keep = False
                raise
            finally:
                landing.close(keep=keep)
            async with self.copies.lock(key):
                continue
        raise self._restless(key)

    async def _land(self, entry: Entry, landing: Landing) -> None:
        there = await asyncio.to_thread(landing.resume, 1, entry.size_bytes)
        async with aclosing(self.copies.read(entry, there, entry.size_bytes)) as pieces:
            async for piece in pieces:
                await asyncio.to_thread(landing.write, memoryview(piece))

    @staticmethod
    def _restless(key: str) -> Unavailable:
        return Unavailable("it is replaced faster than it can be read", object=f"blob {key}", next_step="Try again.")

    def list(self, prefix: str = "", *, page_size: int = 1_000) -> AsyncIterator[tuple[Listed, ...]]:
        folder = check_prefix(prefix)
        if page_size < 1:
            raise BadRequest(f"a page of {page_size} keys", object="list", next_step="Ask for at least one.")
        return self._pages(folder, page_size)

    async def _pages(self, folder: str, page_size: int) -> AsyncIterator[tuple[Listed, ...]]:
        await self.copies.settled(f"folder {folder or '/'}")
        page: list[Listed] = []
        for key in self.copies.catalogue.keys(folder):
            entry = self._found(key)
            if entry is not None:
                page.append(Listed(key, entry.modified_at))
            if len(page) == page_size:
                yield tuple(page)
                page = []
        if page:
            yield tuple(page)

    # -- maintenance ---------------------------------------------------------------------------------------------

    async def check(self) -> None:
        key = f"check-{uuid.uuid4().hex}"
        await self.put(key, b"clutch", create=True)
        try:
            if await self.get(key) != b"clutch":
                raise corrupt(key, "the nodes give back other bytes than were put")
        finally:
            await self.delete(key)

    async def sweep(self, older_than_s: float = SWEEP_AFTER_S) -> int:
        standing = await self.copies.settled("blobs")
        gone = 0
        for node in sorted(standing.here):
            try:
                gone += await self.copies.shelf(node).sweep(older_than_s)
            except (Unavailable, NotFound):
                continue  # it went away; the next sweep finds it
        return gone


def _blob(entry: Entry) -> Blob:
    return Blob(entry.key, entry.size_bytes, entry.sha256, entry.modified_at)


async def _pieces(origin: Source, progress: Progress | None) -> AsyncGenerator[bytes, None]:
    """A file's bytes; the file must not change meanwhile."""
    done = 0
    while done < origin.size_bytes:
        piece = await asyncio.to_thread(read_at, origin, done, CHUNK_BYTES)
        if not piece:
            break
        yield piece
        done += len(piece)
        if progress is not None:
            progress(done, 0)
    origin.check_unchanged()
