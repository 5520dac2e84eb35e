"""A bounded queue between what arrives and who takes it, with a deadline on every wait. No threads, no own clock."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from clutch.wire.errors import ClutchError, TimedOut

T = TypeVar("T")


class Doorbell:
    """Wakes those who wait for something to change."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def ring(self) -> None:
        """Wake all."""
        while self._waiting:
            self.ring_one()

    def ring_one(self) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return

    async def wait(self, until: float) -> bool:
        """Until it rings; False when the loop's time has reached ``until``."""
        loop = asyncio.get_running_loop()
        if loop.time() >= until:
            return False
        waiting = loop.create_future()
        self._waiting.append(waiting)
        timer = loop.call_at(until, _give_up, waiting)
        try:
            await waiting
        except TimeoutError:
            return False
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                self.ring_one()  # it rang for us, but we are leaving: pass it on
            raise
        finally:
            timer.cancel()
        return True


def _give_up(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_exception(TimeoutError())


class Inbox(Generic[T]):
    """What arrived, and troubles, in order. Only items count towards the bound; there is one trouble a peer at most."""

    def __init__(self, limit: int, on_room: Callable[[], None] = lambda: None) -> None:
        self._limit = limit
        self._on_room = on_room  # told when a full inbox has room again
        self._entries: deque[T | ClutchError] = deque()
        self._items = 0
        self._arrived = Doorbell()
        self._room = Doorbell()
        self._ended: ClutchError | None = None

    @property
    def full(self) -> bool:
        return self._items >= self._limit

    def put(self, item: T) -> None:
        """The caller has seen that it is not full."""
        self._entries.append(item)
        self._items += 1
        self._arrived.ring_one()

    def put_dropping(self, item: T) -> int:
        """Put it, dropping the oldest items if need be; how many were dropped."""
        dropped = 0
        while self.full:
            at = next(n for n, entry in enumerate(self._entries) if not isinstance(entry, ClutchError))
            del self._entries[at]
            self._items -= 1
            dropped += 1
        self.put(item)
        return dropped

    def trouble(self, error: ClutchError) -> None:
        """Raised once, after what came before it."""
        self._entries.append(error)
        self._arrived.ring_one()

    def end(self, error: ClutchError) -> None:
        """Raised by every wait from now on."""
        self._ended = error
        self._arrived.ring()
        self._room.ring()

    async def take(self, within_s: float, thing: str) -> T:
        if not self._entries and self._ended is None:
            until = asyncio.get_running_loop().time() + within_s
            while not self._entries and self._ended is None:
                if not await self._arrived.wait(until):
                    raise TimedOut(f"nothing came within {within_s} s", object=thing)
        if self._ended is not None:
            raise self._ended
        entry = self._entries.popleft()
        if isinstance(entry, ClutchError):
            raise entry
        self._items -= 1
        if self._items == self._limit - 1:
            self._on_room()
        self._room.ring_one()
        return entry

    async def room(self, until: float) -> bool:
        """Wait until there is room; False when the loop's time has reached ``until``."""
        while self.full and self._ended is None:
            if not await self._room.wait(until):
                return False
        if self._ended is not None:
            raise self._ended
        return True
