"""Who holds cell leases on this machine. Plain members do not: what is handed to nobody is free at once."""

from __future__ import annotations

from typing import Protocol

from clutch.wire.ids import LeaseId
from clutch.wire.messages import ObservedLease, WantedLease


class Holders(Protocol):
    """Members that take and give back slots while they live, such as notebook sidecars."""

    async def held(self) -> list[ObservedLease]:
        """Leases that are in use now, whoever handed them over: asked when an agent starts."""
        ...

    async def hand_over(self, lease: WantedLease) -> None:
        """Let the member use these slots."""
        ...

    async def take_back(self, lease: LeaseId, number: int, deadline: float) -> None:
        """Returns when nothing of ours is left on the slots: given back by ``deadline`` (wall clock; 0 is at once), or
        its interpreter ended."""
        ...


class NoHolders:
    """Nobody here holds a lease."""

    async def held(self) -> list[ObservedLease]:
        return []

    async def hand_over(self, lease: WantedLease) -> None:
        return None

    async def take_back(self, lease: LeaseId, number: int, deadline: float) -> None:
        return None
