"""Stopping at the same call on every rank, without a question at each call. Pure.

Calls are counted on each rank. The chief's *desk* grants everybody a limit; up to it a rank answers by itself. A rank
says now and then how far it is, and the limit moves on before it is reached; only a rank beyond it waits. When somebody
asks to stop, the desk names the call after the highest limit it ever granted. No rank has passed that call: to do so it
would have needed a higher limit. So all stop there, whatever is delayed.

The window adapts: it covers ``HORIZON_S`` of calls, so that slow steps stop after two more and quick ones do not wait.
"""

from __future__ import annotations

FIRST_LIMIT = 2
WINDOW_MIN, WINDOW_MAX = 2, 1 << 16
HORIZON_S = 0.05
MEASURE_S = 0.01


class Desk:
    """The chief's side of one agreement."""

    def __init__(self) -> None:
        self.limit = FIRST_LIMIT
        self.stop = 0
        self._window = WINDOW_MIN
        self._wanted = WINDOW_MIN
        self._highest = 0
        self._since = 0.0
        self._since_count = 0

    def heard(self, count: int, asks: bool, waits: bool, now: float) -> bool:
        """A rank is at this call. Whether everybody must be told of a new limit or the stop."""
        if self.stop:
            return False
        self._pace(count, now)
        if asks:
            self.stop = self.limit + 1
            return True
        if waits and count > self.limit:
            self._window = min(self._window * 2, max(4 * self._wanted, 4 * WINDOW_MIN), WINDOW_MAX)
        beyond = self._highest + self._window
        if beyond - self.limit < max(1, self._window // 4) and count <= self.limit:
            return False
        self.limit = max(self.limit, beyond)
        return True

    def _pace(self, count: int, now: float) -> None:
        """How many calls fit into the horizon. Reports that come in a heap say nothing about it."""
        self._highest = max(self._highest, count)
        if not self._since:
            self._since, self._since_count = now, self._highest
        elapsed = now - self._since
        if elapsed >= MEASURE_S and self._highest > self._since_count:
            calls = (self._highest - self._since_count) * HORIZON_S / elapsed
            self._wanted = int(max(WINDOW_MIN, min(calls, WINDOW_MAX)))
            self._window = min(self._wanted, self._window * 2)
            self._since, self._since_count = now, self._highest


class Counter:
    """One rank's side of it."""

    def __init__(self) -> None:
        self.count = 0
        self.limit = FIRST_LIMIT
        self.stop = 0
        self._reported = 0
        self._asked = False

    def next_call(self) -> None:
        self.count += 1

    def granted(self, limit: int, stop: int) -> None:
        self.limit = max(self.limit, limit)
        self.stop = self.stop or stop

    def answer(self) -> bool | None:
        """The answer of this call; None: it is not known yet."""
        if self.stop:
            return self.count >= self.stop
        return False if self.count <= self.limit else None

    def report(self, asks: bool) -> bool:
        """Whether the desk should hear of this call now."""
        if self.stop:
            return False
        news = asks and not self._asked
        self._asked = self._asked or asks
        window = self.limit - self._reported
        due = (self.limit - self.count) * 4 < window * 3
        if news or due:
            self._reported = self.count
            return True
        return False
