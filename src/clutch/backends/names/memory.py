"""Names in one process, on a clock that is given.

``NameBoard`` is the store; each party opens its own ``MemoryNames`` over it. Nothing here reads a clock of its own:
entries expire when somebody looks after their deadline, or when whoever drives the clock calls ``expire``. A watcher
that waits for an expiry sleeps on the event loop's time until the next deadline, which in the simulator is virtual.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from heapq import heappop, heappush

import msgspec

from clutch.backends.names.base import (
    Change,
    Entry,
    Seen,
    check_entry,
    check_name,
    check_prefix,
    compare,
    covers,
    note,
)
from clutch.wire.errors import Conflict, NotFound, Stale

LOOK_AGAIN_S = 0.001
"""A watcher whose deadline is due on a clock that stands still looks again after this long."""


class _Held(msgspec.Struct):
    entry: Entry
    ttl_s: float | None
    deadline: float


class _Watcher:
    """Which names changed since this watcher looked; never more than there are names."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.dirty: dict[str, None] = {}
        self.awake = asyncio.Event()


class NameBoard:
    """All entries, their deadlines and those who watch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: dict[str, _Held] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._last_token = 0
        self._watchers: list[_Watcher] = []

    def expire(self) -> None:
        """Let go of what is past its deadline now. Every other call begins with this."""
        now = self._clock()
        while self._deadlines and self._deadlines[0][0] < now:
            _, name = heappop(self._deadlines)
            held = self._held.get(name)
            if held is None:
                continue
            if held.deadline < now:
                self._drop(name)

    def next_deadline(self) -> float | None:
        """When something expires next, if nobody renews."""
        while self._deadlines:
            deadline, name = self._deadlines[0]
            held = self._held.get(name)
            if held is not None and held.deadline == deadline:
                return deadline
            heappop(self._deadlines)
        return None

    def add(self, name: str, value: bytes, ttl_s: float | None, replace: bool) -> Entry:
        self.expire()
        if name in self._held and not replace:
            raise Conflict("somebody holds this name", object=name, next_step="Wait until it is gone, or replace it.")
        self._last_token += 1
        return self._put(Entry(name, value, self._last_token), ttl_s)

    def renew(self, name: str, token: int, value: bytes | None) -> Entry:
        held = self._tenure(name, token)
        if held is None:
            raise Stale("this tenure is over", object=name, next_step="Add the name again, or stop.")
        entry = held.entry if value is None else msgspec.structs.replace(held.entry, value=value)
        return self._put(entry, held.ttl_s)

    def remove(self, name: str, token: int) -> None:
        if self._tenure(name, token) is not None:
            self._drop(name)
        elif name in self._held:
            raise Stale("another holds this name now", object=name, next_step="Leave it alone.")
        else:
            raise NotFound("there is no such name", object=name)

    def get(self, name: str) -> Entry | None:
        self.expire()
        held = self._held.get(name)
        return held.entry if held else None

    def list(self, prefix: str) -> list[Entry]:
        self.expire()
        return [self._held[name].entry for name in sorted(self._held) if covers(prefix, name)]

    def enter(self, watcher: _Watcher) -> None:
        self._watchers.append(watcher)

    def leave(self, watcher: _Watcher) -> None:
        self._watchers.remove(watcher)

    def patience_s(self) -> float | None:
        """How long a watcher may sleep if nothing is touched."""
        deadline = self.next_deadline()
        return None if deadline is None else max(deadline - self._clock(), 0.0) + LOOK_AGAIN_S

    def _tenure(self, name: str, token: int) -> _Held | None:
        self.expire()
        held = self._held.get(name)
        return held if held is not None and held.entry.token == token else None

    def _put(self, entry: Entry, ttl_s: float | None) -> Entry:
        deadline = math.inf if ttl_s is None else self._clock() + ttl_s
        self._held[entry.name] = _Held(entry, ttl_s, deadline)
        if ttl_s is not None:
            heappush(self._deadlines, (deadline, entry.name))
            self._forget_renewed()
        self._touch(entry.name)
        return entry

    def _forget_renewed(self) -> None:
        """Renewals leave old deadlines behind; keep no more of them than there are entries."""
        if len(self._deadlines) > 64 + 4 * len(self._held):
            self._deadlines = sorted((h.deadline, n) for n, h in self._held.items() if h.ttl_s is not None)

    def _drop(self, name: str) -> None:
        del self._held[name]
        self._touch(name)

    def _touch(self, name: str) -> None:
        for watcher in self._watchers:
            if covers(watcher.prefix, name):
                watcher.dirty.pop(name, None)
                watcher.dirty[name] = None
                watcher.awake.set()


class MemoryNames:
    """One party's view of a board."""

    def __init__(self, board: NameBoard) -> None:
        self._board = board

    async def add(self, name: str, value: bytes, *, ttl_s: float | None, replace: bool = False) -> Entry:
        check_entry(name, value, ttl_s)
        return self._board.add(name, value, ttl_s, replace)

    async def renew(self, name: str, token: int, *, value: bytes | None = None) -> Entry:
        check_entry(name, value, None)
        return self._board.renew(name, token, value)

    async def get(self, name: str) -> Entry:
        check_name(name)
        entry = self._board.get(name)
        if entry is None:
            raise NotFound("there is no such name", object=name)
        return entry

    async def list(self, prefix: str = "") -> list[Entry]:
        return self._board.list(check_prefix(prefix))

    async def watch(self, prefix: str = "") -> AsyncGenerator[Change, None]:
        watcher = _Watcher(check_prefix(prefix))
        self._board.enter(watcher)
        try:
            view = {entry.name: entry for entry in self._board.list(watcher.prefix)}
            for entry in list(view.values()):
                yield Change(Seen.ADDED, entry)
            while True:
                self._board.expire()
                while watcher.dirty:
                    name = next(iter(watcher.dirty))
                    del watcher.dirty[name]
                    change = compare(view.get(name), self._board.get(name))
                    if change is None:
                        continue
                    note(view, change)
                    yield change
                watcher.awake.clear()
                await _wait(watcher.awake, self._board.patience_s())
        finally:
            self._board.leave(watcher)

    async def remove(self, name: str, token: int) -> None:
        check_name(name)
        self._board.remove(name, token)

    async def close(self) -> None:
        """Nothing is held open."""


async def _wait(event: asyncio.Event, timeout_s: float | None) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
