"""Who is heard: one connection a name, the highest incarnation wins. Pure."""

from __future__ import annotations

from clutch.backends.transports.base import Identity
from clutch.wire.errors import Conflict, Stale, Unavailable

PEERS_MAX = 100_000


class Roster:
    """Names with the highest incarnation that was heard of each, and whether it is here now."""

    def __init__(self, peers_max: int = PEERS_MAX) -> None:
        self._peers_max = peers_max
        self._highest: dict[str, int] = {}
        self._here: set[str] = set()

    def admit(self, peer: Identity) -> Identity | None:
        """Let it in; returns the lower incarnation it takes over from, if one is here."""
        self.check(peer)
        highest = self._highest.get(peer.name)
        here = peer.name in self._here
        if here and highest == peer.incarnation:
            raise Conflict(
                "this name speaks on another connection",
                object=str(peer),
                next_step="Give each start a higher incarnation.",
            )
        if highest is None and len(self._highest) >= self._peers_max:
            raise Unavailable(f"{self._peers_max} peers are known already", object=str(peer))
        self._highest[peer.name] = peer.incarnation
        self._here.add(peer.name)
        return Identity(peer.name, highest) if here and highest is not None else None

    def check(self, peer: Identity) -> None:
        """``Stale`` when a higher incarnation of this name was heard."""
        highest = self._highest.get(peer.name, -1)
        if peer.incarnation < highest:
            raise Stale(f"incarnation {highest} of it was heard", object=str(peer), next_step="Stop this process.")

    def leave(self, peer: Identity) -> bool:
        """It is not here any more; False if it was not."""
        if peer.name not in self._here or self._highest[peer.name] != peer.incarnation:
            return False
        self._here.discard(peer.name)
        return True
