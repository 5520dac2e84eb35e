"""obstore's calls, each in a thread of ours.

Its own awaitables are completed by a thread of its runtime, which needs the interpreter's lock for that. Where this
falls together with the end of the interpreter, the process is aborted instead of leaving with its exit code: one in ten
on a busy machine. Its blocking calls let go of the lock and come back in the thread that made them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import obstore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from obstore import Attributes, Bytes, GetOptions, GetResult, ObjectMeta
    from obstore.store import ObjectStore

    from clutch.backends.blobs.objects import Sink

T = TypeVar("T")

CALLS_MAX = 16
"""How many calls may be under way at once; others wait for a thread."""
PIECE_BYTES = 1 << 20


class Client:
    """One object store, asked from a bounded number of threads."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self._threads = ThreadPoolExecutor(CALLS_MAX, thread_name_prefix="clutch-objects")

    def close(self) -> None:
        """Calls under way come to their own end; none is begun any more."""
        self._threads.shutdown(wait=False)

    async def _call(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(call, *args, **options))

    async def get(self, key: str, options: GetOptions | None = None) -> GetResult:
        return await self._call(obstore.get, self.store, key, options=options)

    async def body(self, result: GetResult) -> Bytes:
        """What an answer to ``get`` holds."""
        return await self._call(result.bytes)

    async def get_range(self, key: str, start: int, stop: int) -> Bytes:
        return await self._call(obstore.get_range, self.store, key, start=start, end=stop)

    async def save_range(self, key: str, start: int, stop: int, sink: Sink) -> int:
        """Pieces small enough that the same memory is used again and again; a whole part each time would be new."""

        def run() -> int:
            done = 0
            for piece in obstore.get(self.store, key, options={"range": (start, stop)}).stream(PIECE_BYTES):
                content = memoryview(piece)
                sink(content)
                done += len(content)
            return done

        return await self._call(run)

    async def put(self, key: str, content: bytes | memoryview, attributes: Attributes, *, create: bool) -> None:
        mode = "create" if create else "overwrite"
        await self._call(obstore.put, self.store, key, content, attributes=attributes, mode=mode, use_multipart=False)

    async def delete(self, keys: str | Sequence[str]) -> None:
        await self._call(obstore.delete, self.store, keys)

    async def pages(self, folder: str | None, page_size: int = 1_000) -> AsyncIterator[Sequence[ObjectMeta]]:
        """What lies below a folder, a page at a time."""
        found = await self._call(obstore.list, self.store, folder, chunk_size=page_size)
        while page := await self._call(next, found, None):
            yield page
