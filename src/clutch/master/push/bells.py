"""Waiting for news of a thing: thousands may wait, and only those whom the news concerns wake up."""

from __future__ import annotations

import asyncio

from clutch.wire.errors import Unavailable

WAITERS_MAX = 100_000


class Bells:
    """One bell per topic. A waiter costs a future and a timer; a topic that nobody waits for costs nothing."""

    def __init__(self, waiters_max: int = WAITERS_MAX) -> None:
        self._waiting: dict[str, dict[asyncio.Future[None], None]] = {}
        self._waiters_max = waiters_max
        self.count = 0
        self.closed = False

    async def wait(self, topic: str, timeout_s: float) -> None:
        """Returns when the bell rings or the time is over; ``Unavailable`` when this master ends."""
        self._check_open()
        if timeout_s <= 0:
            return
        if self.count >= self._waiters_max:
            raise Unavailable(
                f"{self.count} calls wait already", object="master", next_step="Try again in a few seconds."
            )
        loop = asyncio.get_running_loop()
        rung: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(timeout_s, _settle, rung)
        waiting = self._waiting.setdefault(topic, {})
        waiting[rung] = None
        self.count += 1
        try:
            await rung
        finally:
            self.count -= 1
            timer.cancel()
            waiting.pop(rung, None)
            if not waiting and self._waiting.get(topic) is waiting:
                del self._waiting[topic]
        self._check_open()

    def ring(self, topic: str) -> None:
        """Everybody who waits for this looks again."""
        for rung in self._waiting.pop(topic, {}):
            _settle(rung)

    def close(self) -> None:
        """This master ends: nobody waits any longer, and nobody begins to."""
        self.closed = True
        for topic in list(self._waiting):
            self.ring(topic)

    def _check_open(self) -> None:
        if self.closed:
            raise Unavailable("this master ends", object="master", next_step="Ask again at another address.")


def _settle(rung: asyncio.Future[None]) -> None:
    if not rung.done():
        rung.set_result(None)
