"""Names in a shared folder, for parties on any machine that mounts it. ``folder.py`` says how they are kept there.

The disk is touched in threads; each call gives up after ``CALL_S``, because a file server that hangs must not hang its
callers. Watching is looking again every ``poll_s`` seconds at what changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from clutch.backends.names.base import (
    Change,
    Entry,
    check_entry,
    check_name,
    check_prefix,
    compare,
    note,
)
from clutch.backends.names.folder import NameFolder
from clutch.wire.errors import BadRequest, NotFound, TimedOut, Unavailable

CALL_S = 30.0
POLL_S = 0.5
POLL_S_MIN, POLL_S_MAX = 0.01, 60.0
THREADS = 4

T = TypeVar("T")


class FileNames:
    """One party's door to the folder."""

    def __init__(self, folder: NameFolder, pool: ThreadPoolExecutor, poll_s: float) -> None:
        self._folder = folder
        self._pool = pool
        self._poll_s = poll_s
        self._closed = False

    @classmethod
    async def open(cls, path: Path, *, poll_s: float = POLL_S) -> FileNames:
        """Names in this folder, which is made if need be."""
        if not POLL_S_MIN <= poll_s <= POLL_S_MAX:
            raise BadRequest(
                f"looking every {poll_s} s", object=str(path), next_step=f"Give {POLL_S_MIN} to {POLL_S_MAX} s."
            )
        pool = ThreadPoolExecutor(THREADS, thread_name_prefix="names")
        try:
            folder = await _within(pool, str(path), lambda: NameFolder(path))
        except BaseException:
            pool.shutdown(wait=False)
            raise
        return cls(folder, pool, poll_s)

    async def add(self, name: str, value: bytes, *, ttl_s: float | None, replace: bool = False) -> Entry:
        check_entry(name, value, ttl_s)
        return await self._run(name, lambda: self._folder.add(name, value, ttl_s, replace))

    async def renew(self, name: str, token: int, *, value: bytes | None = None) -> Entry:
        check_entry(name, value, None)
        return await self._run(name, lambda: self._folder.renew(name, token, value))

    async def get(self, name: str) -> Entry:
        check_name(name)
        entry = await self._run(name, lambda: self._folder.get(name))
        if entry is None:
            raise NotFound("there is no such name", object=name)
        return entry

    async def list(self, prefix: str = "") -> list[Entry]:
        plain = check_prefix(prefix)
        return await self._run(plain or "names", lambda: self._folder.list(plain))

    async def watch(self, prefix: str = "") -> AsyncGenerator[Change, None]:
        view: dict[str, Entry] = {}
        plain = check_prefix(prefix)
        while True:
            present = {entry.name: entry for entry in await self.list(plain)}
            gone = [name for name in view if name not in present]
            # Whoever came last has the highest token, so new entries are told in the order they were added.
            for name in (*gone, *sorted(present, key=lambda n: present[n].token)):
                change = compare(view.get(name), present.get(name))
                if change is not None:
                    note(view, change)
                    yield change
            await asyncio.sleep(self._poll_s)

    async def remove(self, name: str, token: int) -> None:
        check_name(name)
        if not await self._run(name, lambda: self._folder.remove(name, token)):
            raise NotFound("there is no such name", object=name)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await _within(self._pool, "names", self._folder.close)
            self._pool.shutdown(wait=False)

    async def _run(self, thing: str, call: Callable[[], T]) -> T:
        if self._closed:
            raise Unavailable("these names are closed", object=thing, next_step="Open them again.")
        return await _within(self._pool, thing, call)


async def _within(pool: ThreadPoolExecutor, thing: str, call: Callable[[], T]) -> T:
    """A result, or ``TimedOut``; the thread goes on until its file server answers."""
    try:
        async with asyncio.timeout(CALL_S):
            return await asyncio.get_running_loop().run_in_executor(pool, call)
    except TimeoutError as late:
        raise TimedOut(
            f"the folder of names did not answer within {CALL_S:.0f} s", object=thing, next_step="Check its server."
        ) from late
