"""The slots a pool keeps for cells.

Work that cannot be gone in time may hold at most all usable slots but ``interactive_headroom``. Work that promises to
leave in time may fill the rest; where it does, it is marked as borrowed, and cells may ask it to leave first.
"""

from __future__ import annotations

from clutch.core.demand import CELL_PROMISE_S, Demand
from clutch.core.ledger import Ledger
from clutch.wire.schedule import Request


def is_firm(request: Request) -> bool:
    """Whether work may stay on its slots longer than a cell would wait."""
    return not (request.preemptible and request.leave_within_s <= CELL_PROMISE_S)


class Headroom:
    """How many slots firm work, and all work that is not a cell, may still take in this pass."""

    def __init__(self, ledger: Ledger) -> None:
        self.kept = ledger.pool.interactive_headroom
        self.firm_left = self.left = 0
        if self.kept:
            self._count(ledger)

    def _count(self, ledger: Ledger) -> None:
        usable = 0
        for node in ledger.index.nodes:
            usable += sum(mask.bit_count() for mask in ledger.index.desks[node].enabled.values())
        firm = other = 0
        for holding in ledger.holdings.values():
            if holding.request.interactive is None:
                slots = sum(len(p.slots) for p in holding.placements if ledger.rooms[p.node].usable)
                if is_firm(holding.request):
                    firm += slots
                else:
                    other += slots
        self.firm_left = usable - self.kept - firm
        self.left = self.firm_left - other

    def add(self, slots: int) -> None:
        """More slots in the pool, as by new machines."""
        self.firm_left += slots
        self.left += slots

    def allows(self, demand: Demand) -> bool:
        if not self.kept or demand.interactive or demand.borrows or not demand.slots:
            return True
        return demand.slots <= self.firm_left

    def would_borrow(self, demand: Demand) -> bool:
        return bool(self.kept) and self.left < demand.slots

    def take(self, demand: Demand) -> bool:
        """Count slots given out; True if they are borrowed from the headroom."""
        if not self.kept or demand.interactive or not demand.slots:
            return False
        self.left -= demand.slots
        if not demand.borrows:
            self.firm_left -= demand.slots
        return self.left < 0 and demand.borrows
