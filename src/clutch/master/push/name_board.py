"""The names of one scope: who holds which, until when, and what changed in which order. Pure: time is an argument.

Every change has a number; a watcher says the last number it has seen and gets what came after it. Names that are gone
are remembered for a while; a watcher that slept longer is given everything instead.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush

import msgspec

from clutch.backends.names.base import Entry, covers
from clutch.wire.errors import Conflict, NotFound, Stale, TooLarge

GONE_REMEMBERED = 1_000
NAMES_MAX = 100_000


class Tenure(msgspec.Struct, frozen=True):
    """A name that is held. ``key`` is what its holder called its own request, so that repeating it does no harm."""

    name: str
    value: bytes
    token: int
    ttl_s: float | None = None
    key: str = ""

    @property
    def entry(self) -> Entry:
        return Entry(self.name, self.value, self.token)


class Board:
    """Names of one scope. Methods that check (``adding``, ``renewing``, ``removing``) change nothing; ``put`` and
    ``drop`` do, after whoever keeps the board has made the change durable."""

    def __init__(self, first_token: int) -> None:
        self._token = first_token
        self._held: dict[str, Tenure] = {}
        self._until: dict[str, float] = {}
        self._due: list[tuple[float, str]] = []
        self._changed: dict[str, int] = {}
        """When a name was last touched, in order; includes those that are gone and still remembered."""
        self.version = 0
        self._forgotten = 0
        """Up to this change, names that went are no longer known."""

    # -- asking --------------------------------------------------------------------------------------------------

    def get(self, name: str) -> Tenure | None:
        return self._held.get(name)

    def under(self, prefix: str) -> list[Tenure]:
        return [self._held[name] for name in sorted(self._held) if covers(prefix, name)]

    def changes(self, prefix: str, after: int) -> list[tuple[str, Tenure | None]] | None:
        """What was touched behind that change, oldest first; None when it is too long ago to tell."""
        if after < self._forgotten or after > self.version:
            return None
        found: list[tuple[str, Tenure | None]] = []
        for name in reversed(self._changed):
            if self._changed[name] <= after:
                break
            if covers(prefix, name):
                found.append((name, self._held.get(name)))
        return found[::-1]

    def next_due(self) -> float | None:
        while self._due and self._until.get(self._due[0][1]) != self._due[0][0]:
            heappop(self._due)
        return self._due[0][0] if self._due else None

    # -- checking ------------------------------------------------------------------------------------------------

    def adding(self, wanted: Tenure, replace: bool) -> Tenure:
        """The tenure this add gives. The same request again gives the tenure that it gave before."""
        held = self._held.get(wanted.name)
        if held is not None and wanted.key and held.key == wanted.key:
            return held
        if held is not None and not replace:
            raise Conflict(
                "somebody holds this name", object=wanted.name, next_step="Wait until it is gone, or replace it."
            )
        if held is None and len(self._held) >= NAMES_MAX:
            raise TooLarge(f"{NAMES_MAX} names are held here already", object=wanted.name)
        self._token += 1
        return msgspec.structs.replace(wanted, token=self._token)

    def renewing(self, name: str, token: int, value: bytes | None) -> Tenure:
        held = self._held.get(name)
        if held is None or held.token != token:
            raise Stale("this tenure is over", object=name, next_step="Add the name again, or stop.")
        return held if value is None else msgspec.structs.replace(held, value=value)

    def removing(self, name: str, token: int) -> Tenure:
        held = self._held.get(name)
        if held is None:
            raise NotFound("there is no such name", object=name)
        if held.token != token:
            raise Stale("another holds this name now", object=name, next_step="Leave it alone.")
        return held

    # -- changing ------------------------------------------------------------------------------------------------

    def put(self, tenure: Tenure, now: float) -> None:
        self._token = max(self._token, tenure.token)
        before = self._held.get(tenure.name)
        self._held[tenure.name] = tenure
        until = math.inf if tenure.ttl_s is None else now + tenure.ttl_s
        self._until[tenure.name] = until
        if tenure.ttl_s is not None:
            heappush(self._due, (until, tenure.name))
            if len(self._due) > 64 + 4 * len(self._held):  # renewals leave old deadlines behind
                self._due = [(self._until[n], n) for n, t in self._held.items() if t.ttl_s is not None]
                heapify(self._due)
        if before is None or before.entry != tenure.entry:
            self._touch(tenure.name)

    def drop(self, name: str) -> None:
        if self._held.pop(name, None) is not None:
            del self._until[name]
            self._touch(name)
            self._forget()

    def expire(self, now: float) -> list[Tenure]:
        """What is past its time at this moment, now gone."""
        gone = []
        while (due := self.next_due()) is not None and due < now:
            _, name = heappop(self._due)
            gone.append(self._held[name])
            self.drop(name)
        return gone

    def _touch(self, name: str) -> None:
        self.version += 1
        self._changed.pop(name, None)
        self._changed[name] = self.version

    def _forget(self) -> None:
        over = len(self._changed) - len(self._held) - GONE_REMEMBERED
        if over < GONE_REMEMBERED:  # rarely and many at once, so that it costs nothing on average
            return
        gone = [name for name in self._changed if name not in self._held]
        for name in gone[:over]:
            self._forgotten = max(self._forgotten, self._changed.pop(name))
