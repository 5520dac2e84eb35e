"""One machine's share of the blobs that are kept on agents' disks: whole versions, each durable before it counts.

A version is one file of the store below: its content and, behind it, a *foot* that says which version of which key
this is and what each MiB of it hashes to. So one rename publishes all of it, and a part of a file is checked when it is
read, not only the whole. The file's name is the hash of the key: ``KEY`` and ``KEY/MORE`` may both be there.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import Any, Protocol, TypeVar

import msgspec
import structlog

from clutch.backends.blobs.base import Blob, FullBlobs
from clutch.backends.blobs.files import corrupt
from clutch.backends.blobs.keys import check_key
from clutch.backends.blobs.uploads import digests
from clutch.wire.errors import ClutchError, Conflict, Corrupt, NotFound
from clutch.wire.shelf import Entry, Mark

PIECE_BYTES = 1 << 20
"""What has a hash of its own, and what is held in memory of a write."""
_MAGIC = b"clutch-shelf-1"
_TAIL_BYTES = 8 + len(_MAGIC)
_GUESS_BYTES = 4096
"""Most feet are shorter, so that one read finds them."""
_SUM_BYTES = 32

Result = TypeVar("Result")


class Writing(Protocol):
    """A version on its way to a shelf. Nothing is visible before ``commit``, and after ``abort`` nothing is left."""

    async def write(self, data: bytes) -> None: ...

    async def commit(self, mark: Mark) -> Entry:
        """The version is durable and valid here. ``Corrupt`` if other bytes arrived than were sent; ``Conflict`` if
        a newer one is here."""
        ...

    async def abort(self) -> None: ...


class Shelf(Protocol):
    """What one machine keeps. Every call may be ``Unavailable``: machines come and go."""

    async def entries(self) -> list[Entry]:
        """Everything that is here, when all that was begun before is over."""
        ...

    async def begin(self, key: str) -> Writing: ...

    def read(self, entry: Entry, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Bytes of this very version, checked. ``NotFound`` without it, ``Corrupt`` if it is damaged."""
        ...

    async def verify(self, entry: Entry) -> None:
        """Read all of it and compare. ``Corrupt`` or ``NotFound``."""
        ...

    async def drop(self, key: str, stamp: int) -> None:
        """This version or an older one is gone; a newer one stays."""
        ...

    async def sweep(self, older_than_s: float) -> int: ...


class Foot(msgspec.Struct, frozen=True, array_like=True):
    """What stands behind the content."""

    entry: Entry
    sums: bytes


def place(key: str) -> str:
    """Where a key lies in the store below."""
    name = hashlib.sha256(key.encode()).hexdigest()
    return f"{name[:2]}/{name}"


def _foot(entry: Entry, sums: bytes) -> bytes:
    body = msgspec.msgpack.encode(Foot(entry, sums))
    return body + len(body).to_bytes(8, "big") + _MAGIC


class BlobShelf:
    """A shelf in a store of this process: a folder of an agent, or memory."""

    def __init__(self, store: FullBlobs) -> None:
        self._store = store
        self._index: dict[str, Entry] | None = None
        self._changing: set[str] = set()
        self._works: set[asyncio.Task[Any]] = set()
        self._scan: asyncio.Task[dict[str, Entry]] | None = None
        self._log = structlog.get_logger("clutch.shelf")

    async def entries(self) -> list[Entry]:
        if self._works:  # whoever began them is gone, and must not change what is said now
            await asyncio.wait(list(self._works))
        return list((await self._known()).values())

    async def find(self, key: str) -> Entry | None:
        """The version of a key that is here."""
        return (await self._known()).get(key)

    async def begin(self, key: str) -> BlobWriting:
        check_key(key)
        await self._known()
        return BlobWriting(self, key)

    async def read(self, entry: Entry, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        if (await self._known()).get(entry.key) != entry or entry.key in self._changing:
            raise self._missing(entry.key)
        try:
            if entry.size_bytes <= PIECE_BYTES:
                content = await self._small(entry)
                if start < stop:
                    yield content[start:stop]
                return
            foot = await self._read_foot(place(entry.key), entry.key)
            for number in range(start // PIECE_BYTES, -(-stop // PIECE_BYTES)):
                first = number * PIECE_BYTES
                piece = await self._piece(foot, number)
                yield piece[max(0, start - first) : stop - first]
        except ClutchError as error:
            if self._index is None or self._index.get(entry.key) != entry or entry.key in self._changing:
                raise self._missing(entry.key) from None  # replaced while it was read
            if isinstance(error, NotFound):
                del self._index[entry.key]  # somebody took the file away
            raise

    async def _small(self, entry: Entry) -> bytes:
        whole = await self._store.get(place(entry.key))
        content = whole[: entry.size_bytes]
        if _read_tail(whole, entry.key) != entry or hashlib.sha256(content).hexdigest() != entry.sha256:
            raise corrupt(entry.key, "its bytes do not have the hash they were stored with")
        return content

    async def _piece(self, foot: Foot, number: int) -> bytes:
        entry, first = foot.entry, number * PIECE_BYTES
        piece = await self._store.get(place(entry.key), first, min(first + PIECE_BYTES, entry.size_bytes))
        found = await asyncio.to_thread(lambda: hashlib.sha256(piece).digest())
        if found != foot.sums[number * _SUM_BYTES : (number + 1) * _SUM_BYTES]:
            raise corrupt(entry.key, "its bytes do not have the hash they were stored with")
        return piece

    async def verify(self, entry: Entry) -> None:
        async for _ in self.read(entry, 0, entry.size_bytes):
            pass

    async def drop(self, key: str, stamp: int) -> None:
        check_key(key)
        known = await self._known()

        async def work() -> None:
            found = known.get(key)
            if found is not None and found.stamp > stamp:
                return
            await self._store.delete(place(key))
            known.pop(key, None)

        await self._to_its_end(work())

    async def sweep(self, older_than_s: float) -> int:
        return await self._store.sweep(older_than_s)

    # -- for what is being written -------------------------------------------------------------------------------

    async def publish(self, entry: Entry, put: Coroutine[Any, Any, Blob]) -> Entry:
        """Make a version the valid one of its key, to its end, whoever gives up meanwhile."""
        known = await self._known()

        async def work() -> Entry:
            self._changing.add(entry.key)
            try:
                await put
            finally:
                self._changing.discard(entry.key)
            known[entry.key] = entry
            return entry

        return await self._to_its_end(work())

    async def refuse_older(self, key: str, stamp: int) -> None:
        found = (await self._known()).get(key)
        if found is not None and found.stamp > stamp:
            raise Conflict("a newer version is here", object=f"blob {key}", next_step="Read it again.")

    def put(self, key: str, content: bytes | AsyncIterator[bytes]) -> Coroutine[Any, Any, Blob]:
        return self._store.put(place(key), content)

    async def _to_its_end(self, work: Coroutine[Any, Any, Result]) -> Result:
        task = asyncio.ensure_future(work)
        self._works.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._works.discard(task)
        if not task.cancelled():
            task.exception()  # whoever began it may be gone; it is said to those who wait

    # -- what is there -------------------------------------------------------------------------------------------

    async def _known(self) -> dict[str, Entry]:
        if self._index is None:
            if self._scan is None or self._scan.done():
                self._scan = asyncio.ensure_future(self._look())
            found = await asyncio.shield(self._scan)  # many files take a while: whoever gives up does not end it
            if self._index is None:
                self._index = found
        return self._index

    async def _look(self) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        async for page in self._store.list():
            for listed in page:
                entry = await self._found(listed.key)
                if entry is not None:
                    found[entry.key] = entry
        return found

    async def _found(self, where: str) -> Entry | None:
        """The version in this file; a damaged one is not there, so that another copy takes its place."""
        try:
            entry = (await self._read_foot(where, where)).entry
            if place(entry.key) != where:
                raise corrupt(where, "the file has the name of another key")
        except (Corrupt, NotFound) as damaged:
            self._log.warning("a blob on this shelf is damaged", place=where, error=str(damaged))
            return None
        return entry

    async def _read_foot(self, where: str, subject: str) -> Foot:
        size = (await self._store.stat(where)).size_bytes
        tail = await self._store.get(where, max(0, size - _GUESS_BYTES), size)
        length = int.from_bytes(tail[-_TAIL_BYTES : -len(_MAGIC)], "big")
        if tail[-len(_MAGIC) :] != _MAGIC or length + _TAIL_BYTES > size:
            raise corrupt(subject, "the file does not end as a blob of a shelf does")
        if length + _TAIL_BYTES > len(tail):
            tail = await self._store.get(where, size - length - _TAIL_BYTES, size)
        foot = _decode(tail[-length - _TAIL_BYTES : -_TAIL_BYTES], subject)
        if foot.entry.size_bytes + length + _TAIL_BYTES != size:
            raise corrupt(subject, "the file is not as long as its foot says")
        return foot

    @staticmethod
    def _missing(key: str) -> NotFound:
        return NotFound("this version is not here", object=f"blob {key}", next_step="Ask another shelf.")


def _read_tail(whole: bytes, subject: str) -> Entry:
    length = int.from_bytes(whole[-_TAIL_BYTES : -len(_MAGIC)], "big")
    if whole[-len(_MAGIC) :] != _MAGIC or length + _TAIL_BYTES > len(whole):
        raise corrupt(subject, "the file does not end as a blob of a shelf does")
    return _decode(whole[-length - _TAIL_BYTES : -_TAIL_BYTES], subject).entry


def _decode(body: bytes, subject: str) -> Foot:
    try:
        return msgspec.msgpack.decode(body, type=Foot)
    except (msgspec.MsgspecError, UnicodeDecodeError) as wrong:
        raise corrupt(subject, f"its foot cannot be read: {wrong}") from wrong


class BlobWriting:
    """A version being written. Less than a piece stays in memory until it is committed."""

    def __init__(self, shelf: BlobShelf, key: str) -> None:
        self._shelf = shelf
        self._key = key
        self._held = bytearray()
        self._digest = hashlib.sha256()
        self._sums = bytearray()
        self._size_bytes = 0
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(2)
        self._ended = False
        self._putting: asyncio.Task[Blob] | None = None

    async def write(self, data: bytes) -> None:
        self._held += data
        while len(self._held) >= PIECE_BYTES:
            piece = bytes(self._held[:PIECE_BYTES])
            del self._held[:PIECE_BYTES]
            await self._add(piece)
            if self._putting is None:
                self._putting = asyncio.ensure_future(self._shelf.put(self._key, self._stream()))
            await self._hand_over(piece)

    async def _add(self, piece: bytes) -> None:
        self._sums += bytes.fromhex(await asyncio.to_thread(digests, self._digest, piece))
        self._size_bytes += len(piece)

    async def _hand_over(self, piece: bytes | None) -> None:
        """Waits while the disk is behind; raises what the disk said when it is over."""
        assert self._putting is not None
        room = asyncio.ensure_future(self._pieces.put(piece))
        try:
            await asyncio.wait([room, self._putting], return_when=asyncio.FIRST_COMPLETED)
            if self._putting.done():
                self._putting.result()
        finally:
            room.cancel()

    async def _stream(self) -> AsyncIterator[bytes]:
        while (piece := await self._pieces.get()) is not None:
            yield piece

    async def commit(self, mark: Mark) -> Entry:
        rest = bytes(self._held)
        if rest:
            await self._add(rest)
        sha256 = self._digest.hexdigest()
        entry = Entry(self._key, mark.stamp, self._size_bytes, sha256, mark.modified_at, mark.gone)
        try:
            if sha256 != mark.sha256:
                raise corrupt(self._key, "other bytes arrived than were sent")
            await self._shelf.refuse_older(self._key, mark.stamp)
        except ClutchError:
            await self.abort()
            raise
        end = rest + _foot(entry, bytes(self._sums))
        if self._putting is None:
            return await self._shelf.publish(entry, self._shelf.put(self._key, end))
        self._ended = True
        return await self._shelf.publish(entry, self._finish(end))

    async def _finish(self, end: bytes) -> Blob:
        assert self._putting is not None
        await self._hand_over(end)
        if not self._putting.done():
            await self._hand_over(None)
        return await self._putting

    async def abort(self) -> None:
        if self._putting is not None and not self._ended:
            self._putting.cancel()
            await asyncio.wait([self._putting])
            if not self._putting.cancelled():
                self._putting.exception()  # it failed by itself, which nobody needs to know any more
