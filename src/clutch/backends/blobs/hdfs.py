"""HDFS as a store of objects, for ``ObjectBlobs``: written aside, renamed into place in one step.

::

    ROOT/KEY                       the object's content, and behind it a *foot* of 256 bytes: its attributes as JSON
    ROOT/.clutch/parts/UPLOAD/...  parts of large blobs: content only
    ROOT/.clutch/parts/CLIENT/N    what a client is writing; swept as any upload that nobody owns

A rename in HDFS either replaces or refuses, and is one step: that gives ``create``. Colons are forbidden in its names,
so they are written as ``%3A``. A file that is not empty takes HDFS 0.4 s to close, so many go at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import count, islice
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from clutch.backends.blobs.keys import RESERVED
from clutch.backends.blobs.layout import PARTS
from clutch.wire.errors import BadRequest, ClutchError, Conflict, Corrupt, DiskFull, NotAllowed, NotFound, Unavailable

if TYPE_CHECKING:
    from hdfs_native import Client, FileReader, FileStatus

    from clutch.backends.blobs.objects import Sink

T = TypeVar("T")

CALLS_MAX = 16
FOOT_BYTES = 256
PART_MIB = 128
"""A block of HDFS: smaller parts would only make more work for the NameNode."""
PIECE_BYTES = 16 << 20
"""How much of a part is held at once; each piece is a request of its own to a DataNode."""
SETTINGS = {
    "dfs.client.failover.max.attempts": "4",
    "dfs.client.failover.sleep.base.millis": "200",
    "dfs.client.failover.sleep.max.millis": "2000",
}
"""The client's own patience is three minutes for every call; whoever calls us has one of their own."""
_TRIES = 20
_REMOTE = re.compile(r'RPCError\("[\w.$]*?(\w+)", "(.*?)(?:\\n|")')


class HdfsObject:
    """A file that is open: it stays what it is when the name is given to another."""

    def __init__(self, reader: FileReader | None, status: FileStatus, foot: bytes, span: tuple[int, int]) -> None:
        self.reader = reader
        self.attributes: dict[str, str] = msgspec.json.decode(foot) if foot else {}
        self.span = span
        size = status.length - (FOOT_BYTES if foot else 0)
        version = hashlib.sha256(foot + str(status.modification_time).encode()).hexdigest()
        self.meta = {"size": size, "last_modified": _moment(status), "e_tag": version}


class HdfsObjects:
    """A folder of an HDFS, asked from a bounded number of threads."""

    def __init__(self, client: Client, root: str, where: str) -> None:
        """``where`` names the folder in errors."""
        self._client = client
        self._root = root.rstrip("/")
        self._where = where
        self._threads = ThreadPoolExecutor(CALLS_MAX, thread_name_prefix="clutch-hdfs")
        self._aside = f"{self._root}/{PARTS}/{uuid.uuid4().hex}"
        self._numbers = count()

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    async def _call(self, subject: str, call: Callable[[], T]) -> T:
        def run() -> T:
            try:
                return call()
            except ClutchError:
                raise
            except Exception as error:
                raise _translated(error, self._where, subject) from error

        return await asyncio.get_running_loop().run_in_executor(self._threads, run)

    def _place(self, key: str) -> str:
        return f"{self._root}/{key.replace('%', '%25').replace(':', '%3A')}"

    # -- reading -------------------------------------------------------------------------------------------------

    async def get(self, key: str, options: Any = None) -> HdfsObject:
        wanted: Mapping[str, Any] = options or {}

        def run() -> HdfsObject:
            status = self._client.get_file_info(self._place(key))
            if status.isdir:
                raise FileNotFoundError(key)
            reader = self._client.read(self._place(key))
            foot = b"" if key.startswith(f"{RESERVED}/") else self._foot(key, reader)
            size = len(reader) - (FOOT_BYTES if foot else 0)
            first, last = wanted.get("range", (0, size))
            found = HdfsObject(reader, status, foot, (first, min(last, size)))
            if wanted.get("if_match", found.meta["e_tag"]) != found.meta["e_tag"]:
                raise Conflict("it was replaced", object=f"blob {key}", next_step="Read it again.")
            return found

        return await self._call(f"blob {key}", run)

    def _foot(self, key: str, reader: FileReader) -> bytes:
        size = len(reader)
        foot = reader.read_range(size - FOOT_BYTES, FOOT_BYTES) if size >= FOOT_BYTES else b""
        if not foot.startswith(b'{"clutch'):
            raise Corrupt(
                "the file has no foot: it was not put here by Clutch, or was cut short",
                object=f"blob {key}",
                next_step="Put it again, or use an older one.",
            )
        return foot

    async def body(self, result: HdfsObject) -> _Bytes:
        first, last = result.span
        reader = result.reader
        assert reader is not None
        if first >= last:
            return _Bytes(b"")
        content = await self._call(self._where, lambda: reader.read_range(first, last - first))
        return _Bytes(content)

    async def get_range(self, key: str, start: int, stop: int) -> bytes:
        def run() -> bytes:
            reader = self._client.read(self._place(key))
            stop_at = min(stop, len(reader))  # beyond the end its client panics
            return reader.read_range(start, stop_at - start) if start < stop_at else b""

        return await self._call(f"blob {key}", run)

    async def save_range(self, key: str, start: int, stop: int, sink: Sink) -> int:
        def run() -> int:
            reader = self._client.read(self._place(key))
            stop_at = min(stop, len(reader))
            for first in range(start, stop_at, PIECE_BYTES):
                sink(memoryview(reader.read_range(first, min(PIECE_BYTES, stop_at - first))))
            return max(0, stop_at - start)

        return await self._call(f"blob {key}", run)

    async def pages(
        self, folder: str | None, page_size: int = 1_000
    ) -> AsyncIterator[Sequence[Mapping[str, Any]]]:  # fmt: skip
        top = self._place(folder) if folder else self._root or "/"
        found = self._files(top)
        while page := await self._call(f"folder {folder or '/'}", lambda: list(islice(found, page_size))):
            yield page

    def _files(self, folder: str) -> Iterator[Mapping[str, Any]]:
        """Files below a folder, folder by folder: one that vanishes meanwhile is no error."""
        waiting = [folder]
        while waiting:
            folder = waiting.pop()
            try:
                for status in self._client.list_status(folder, False):
                    if status.isdir:
                        waiting.append(status.path)
                    elif status.path != folder:
                        key = status.path.removeprefix(f"{self._root}/").replace("%3A", ":").replace("%25", "%")
                        yield {"path": key, "last_modified": _moment(status)}
            except FileNotFoundError:
                continue

    # -- writing -------------------------------------------------------------------------------------------------

    async def put(self, key: str, content: bytes | memoryview, attributes: Any, *, create: bool) -> None:
        foot = b"" if key.startswith(f"{RESERVED}/") else _foot_of(attributes)
        aside = f"{self._aside}/{next(self._numbers)}"

        def run() -> None:
            from hdfs_native import WriteOptions

            try:
                with self._client.create(aside, WriteOptions(overwrite=True, create_parent=True)) as file:
                    file.write(content)
                    file.write(foot)
                self._publish(key, aside, create)
            except Exception:
                self._discard(aside)
                raise

        await self._call(f"blob {key}", run)

    def _publish(self, key: str, aside: str, create: bool) -> None:
        place = self._place(key)
        for _ in range(_TRIES):
            try:
                self._client.rename(aside, place, overwrite=not create)
                return
            except FileNotFoundError as missing:  # a delete took the empty folder away, or it was never there
                if "rename source" in str(missing):
                    raise Unavailable(
                        "it was swept while it was written", object=f"blob {key}", next_step="Put it again."
                    ) from missing
                self._client.mkdirs(place.rpartition("/")[0], create_parent=True)
            except RuntimeError as error:
                if "must both be directories" not in str(error):
                    raise
                self._client.delete(place, False)  # an empty folder is nobody's; a full one refuses
        raise Unavailable("its folder keeps vanishing", object=f"blob {key}", next_step="Try again.")

    def _discard(self, place: str) -> None:
        try:
            self._client.delete(place, False)
        except Exception:  # it is swept some day
            return

    async def delete(self, keys: str | Sequence[str]) -> None:
        def run(key: str) -> None:
            place = self._place(key)
            try:
                if self._client.get_file_info(place).isdir:
                    return
            except FileNotFoundError:
                return
            self._client.delete(place, False)
            self._tidy(place)

        for key in [keys] if isinstance(keys, str) else keys:
            await self._call(f"blob {key}", lambda key=key: run(key))  # type: ignore[misc]

    def _tidy(self, place: str) -> None:
        """Folders that have become empty are nobody's."""
        folder = place.rpartition("/")[0]
        while len(folder) > len(self._root):
            try:
                self._client.delete(folder, False)
            except Exception:  # not empty
                return
            folder = folder.rpartition("/")[0]


class _Bytes(bytes):
    """Bytes as the object store's client gives them."""

    def to_bytes(self) -> bytes:
        return bytes(self)


def _foot_of(attributes: Mapping[str, str]) -> bytes:
    foot = msgspec.json.encode(dict(sorted(attributes.items())))
    assert len(foot) <= FOOT_BYTES, "attributes are a hash, a size and a name"
    return foot.ljust(FOOT_BYTES)


def _moment(status: FileStatus) -> datetime:
    return datetime.fromtimestamp(status.modification_time / 1000, UTC)


def _translated(error: Exception, where: str, subject: str) -> ClutchError:
    if isinstance(error, FileNotFoundError):
        return NotFound("there is no such blob", object=subject, next_step="List the keys.")
    found = _REMOTE.search(str(error))
    kind, said = (found[1], found[2]) if found else ("", str(error).partition("\n")[0])
    said = said[:200] or type(error).__name__
    if "Parent path is not a directory" in said or kind in (
        "ParentNotDirectoryException", "PathIsNotEmptyDirectoryException",
    ):  # fmt: skip
        return Conflict(
            "a folder has this name, or a blob has the name of a folder of it",
            object=subject,
            next_step="Use another key, or delete the other blob.",
        )
    if isinstance(error, FileExistsError):
        return Conflict("it exists already", object=subject, next_step="Use it, or another key.")
    if kind in ("AccessControlException", "SecurityException") or "SASL" in said or "GSSAPI" in said:
        return NotAllowed(said, object=where, next_step="Give this user the right to read and write there.")
    if "Quota" in kind or "could only be replicated to 0 nodes" in said:
        return DiskFull(said, object=where, next_step="Make room in the store; nothing was changed.")
    if kind in ("InvalidPathException", "PathComponentTooLongException", "IllegalArgumentException"):
        return BadRequest(said, object=subject, next_step="Use another key.")
    if "Checksum" in said:
        return Corrupt(said, object=subject, next_step="Put it again, or use an older one; nothing was changed.")
    return Unavailable(
        f"the store does not answer as it should: {said}",
        object=where,
        next_step="See whether it runs and can be reached; the call may be repeated.",
    )
