"""The room of a pool while a plan is being made: what is open now, and what will be soon.

``open`` is what a newcomer may take. ``soon`` adds what is coming back: holdings that are leaving and victims chosen in
this pass, less what was promised to those they leave for. Everything is a fork: the ledger is only read.
"""

from __future__ import annotations

from collections.abc import Iterable

from clutch.core.evictable import is_out
from clutch.core.ledger import Ledger
from clutch.core.room_index import RoomIndex
from clutch.wire.ids import NodeId, RequestId
from clutch.wire.schedule import Holding, Placement


class Workbench:
    """Open and soon, kept in step with each other and with what each set of victims would free."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.open = ledger.index.fork()
        self.victims: dict[RequestId, Holding] = {}
        self.unripe: dict[RequestId, Holding] = {}
        """Victims that are waited for but not asked yet: they have just begun."""
        self._taken: list[tuple[Placement, ...]] = []
        self._soon: RoomIndex | None = None
        self._potentials: dict[int, RoomIndex] = {}

    @property
    def soon(self) -> RoomIndex:
        if self._soon is None:
            self._soon = self.open.fork()
            for holding in self.ledger.evictable.leaving.values():
                self._soon.give(holding.placements)
        return self._soon

    def potential(self, threshold: int) -> RoomIndex:
        """The room if everything less important than the threshold were gone, less what this pass gave away."""
        found = self._potentials.get(threshold)
        if found is None:
            ledger = self.ledger
            found = ledger.evictable.at(threshold, ledger.index, ledger.holdings).fork()
            for victim in self.victims.values():
                if not is_out(victim, threshold):
                    found.give(victim.placements)
            for placements in self._taken:
                found.take(placements)
            self._potentials[threshold] = found
        return found

    def grant(self, placements: tuple[Placement, ...]) -> None:
        """Take room that is open."""
        self._taken.append(placements)
        self.open.take(placements)
        if self._soon is not None:
            self._soon.take(placements)
        for index in self._potentials.values():
            index.take(placements)

    def evict(self, holdings: Iterable[Holding]) -> None:
        """Count holdings as coming back."""
        for holding in holdings:
            self.soon.give(holding.placements)
            self.victims[holding.request.request] = holding
            for threshold, index in self._potentials.items():
                if not is_out(holding, threshold):
                    index.give(holding.placements)

    def promise(self, placements: tuple[Placement, ...]) -> tuple[NodeId, ...]:
        """Keep room of ``soon`` for somebody; what of it is open now is open no more."""
        soon = self.soon
        self._taken.append(placements)
        soon.take(placements)
        for index in self._potentials.values():
            index.take(placements)
        nodes = tuple(dict.fromkeys(placement.node for placement in placements))
        for node in nodes:
            self.open.clamp(node, soon.desks[node])
        return nodes
