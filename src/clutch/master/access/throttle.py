"""How often somebody may guess a password. Pure: the time is an argument, and what it remembers is bounded.

Failures are counted for a name as seen from one address, and for the address alone. Nobody can lock another person out
from elsewhere, and trying many names from one place is slowed as well.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from clutch.wire.errors import TooMany

FREE_FOR_NAME, FREE_FOR_ADDRESS = 5, 50
WAIT_MAX_S = 300.0
FORGOTTEN_AFTER_S = 3600.0
REMEMBERED = 10_000


class _Failures(msgspec.Struct, frozen=True):
    count: int
    last_at: float


class Throttle:
    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._failures: OrderedDict[tuple[str, str], _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def check(self, name: str, address: str, now: float) -> None:
        """Nothing, or ``TooMany`` while this name or address has to wait."""
        wait = max(self._wait((name, address), FREE_FOR_NAME, now), self._wait(("", address), FREE_FOR_ADDRESS, now))
        if wait > 0:
            raise TooMany("too many failed logins", object="login", next_step=f"Try again in {wait:.0f} s.")

    def _wait(self, key: tuple[str, str], free: int, now: float) -> float:
        failures = self._failures.get(key)
        if failures is None or failures.count < free:
            return 0.0
        pause = min(WAIT_MAX_S, 2.0 ** min(failures.count - free, 20))
        return failures.last_at + pause - now

    def failed(self, name: str, address: str, now: float) -> None:
        for key in ((name, address), ("", address)):
            known = self._failures.pop(key, None)
            fresh = known is None or now - known.last_at > FORGOTTEN_AFTER_S
            self._failures[key] = _Failures(1 if fresh or known is None else known.count + 1, now)
        while len(self._failures) > self._remembered:
            self._failures.popitem(last=False)

    def succeeded(self, name: str, address: str) -> None:
        self._failures.pop((name, address), None)
