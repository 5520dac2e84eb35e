"""How often somebody may guess a password. Pure: the time is an argument, and what it remembers is bounded.

Failures are counted for a name as seen from one address, and for the address alone. Nobody can lock another person out
from elsewhere, and trying many names from one place is slowed as well.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import msgspec

from clutch.wire.errors import TooMany

FREE_FOR_NAME, FREE_FOR_ADDRESS = 5, 50
WAIT_MAX_S = 300.0
FORGOTTEN_AFTER_S = 3600.0
REMEMBERED = 10_000
_ANYBODY = "*"
"""No user can have this name."""


class _Failures(msgspec.Struct, frozen=True):
    count: int
    last_at: float


class Throttle:
    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._failures: OrderedDict[tuple[str, str], _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def attempt(self, name: str, address: str, now: float) -> None:
        """Count a try (an empty name: one without a name), or ``TooMany`` while it has to wait. It counts as failed
        from the start, or many at once would all be free."""
        keys = self._keys(name, address)
        wait = max(self._wait(key, free, now) for key, free in keys.items())
        if wait > 0:
            step = f"Try again in {math.ceil(wait)} s."
            raise TooMany("too many failed logins", object="login", next_step=step)
        for key in keys:
            known = self._failures.pop(key, None)
            fresh = known is None or now - known.last_at > FORGOTTEN_AFTER_S
            self._failures[key] = _Failures(1 if fresh or known is None else known.count + 1, now)
        while len(self._failures) > self._remembered:
            self._failures.popitem(last=False)

    def succeeded(self, name: str, address: str) -> None:
        """It was right: the name begins anew, and the address has failed once less."""
        self._failures.pop((name, address), None)
        known = self._failures.get((_ANYBODY, address))
        if known is not None:
            self._failures[_ANYBODY, address] = _Failures(max(0, known.count - 1), known.last_at)

    @staticmethod
    def _keys(name: str, address: str) -> dict[tuple[str, str], int]:
        """What a try counts for, and how many are free."""
        anybody = {(_ANYBODY, address): FREE_FOR_ADDRESS}
        return {(name, address): FREE_FOR_NAME, **anybody} if name else anybody

    def _wait(self, key: tuple[str, str], free: int, now: float) -> float:
        failures = self._failures.get(key)
        if failures is None or failures.count < free:
            return 0.0
        pause = min(WAIT_MAX_S, 2.0 ** min(failures.count - free, 20))
        return failures.last_at + pause - now
