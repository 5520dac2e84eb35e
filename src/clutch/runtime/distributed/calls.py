"""A call of a group: what every message of it says about itself, so that ranks in different calls are found. Pure."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from clutch.wire.errors import BadRequest, Conflict

HISTORY = 256
"""So many calls back a contradiction can be named."""


class Call(msgspec.Struct, frozen=True, array_like=True):
    """What a rank is in. Calls of one scope are counted from 1, the same on each rank."""

    scope: str
    number: int
    name: str
    root: int = 0
    detail: str = ""
    """How it reduces, which all ranks must say alike."""

    def __str__(self) -> str:
        local = "_local" if self.scope.startswith("local") else ""
        inside = {"broadcast": f"root={self.root}", "reduce": self.detail, "allreduce": self.detail}.get(self.name, "")
        return f"{self.name}{local}({inside}) #{self.number}"


class Step:
    """What a call is, apart from what it does."""

    def __init__(self, name: str, timeout_s: float, *, root: int = 0, detail: str = "") -> None:
        if not timeout_s > 0:
            raise BadRequest(f"{timeout_s} s is no time to wait", object=name, next_step="Give seconds above 0.")
        self.name, self.timeout_s, self.root, self.detail = name, timeout_s, root, detail


class Calls:
    """The calls of one rank: how many in each scope, which one it is in, what the last ones were."""

    def __init__(self) -> None:
        self.made: dict[str, int] = {}
        self.current: Call | None = None
        self.entered_at = 0.0
        self._history: dict[str, deque[Call]] = {}

    def enter(self, scope: str, name: str, now: float, root: int = 0, detail: str = "") -> Call:
        number = self.made.get(scope, 0) + 1
        call = Call(scope, number, name, root, detail)
        self._history.setdefault(scope, deque(maxlen=HISTORY)).append(call)
        self.made[scope] = number
        self.entered_at = now
        self.current = call
        return call

    def leave(self) -> None:
        self.current = None

    def at(self, scope: str, number: int) -> Call | None:
        for call in reversed(self._history.get(scope, ())):
            if call.number == number:
                return call
        return None

    def against(self, other: Call, own: Call) -> Call:
        """Which call of ours to hold against another rank's: the one of the same number where it is remembered."""
        return self.at(other.scope, other.number) or own


def contradiction(rank: int, call: Any, other_rank: int, other_call: Any) -> Conflict:
    """The same words whichever of the two found it."""
    if other_rank < rank:
        rank, call, other_rank, other_call = other_rank, other_call, rank, call
    return Conflict(
        f"rank {rank} is in {call} while rank {other_rank} is in {other_call}",
        object="group",
        next_step="Make the same calls in the same order on every rank.",
    )
