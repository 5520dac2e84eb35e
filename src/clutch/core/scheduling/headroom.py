"""The slots a pool keeps for cells.

Work that cannot be gone in time (firm work) may hold at most all usable slots but ``interactive_headroom``. Work that
promises to leave in time may fill the rest; where it does, it is marked as borrowed, and cells may ask it to leave
first. Once firm work waits for its turn under this bound, no firm work behind it slips through with less.
"""

from __future__ import annotations

from collections.abc import Iterable

from clutch.core.scheduling.demand import Demand, is_firm
from clutch.core.scheduling.ledger import Ledger
from clutch.wire.schedule import Holding


class Headroom:
    """How many slots firm work, and all work that is not a cell, may still take in this pass."""

    def __init__(self, ledger: Ledger) -> None:
        self.kept = ledger.pool.interactive_headroom
        self.firm_left = self.left = self.firm_coming = self.most = 0
        self.closed = False
        """Firm work waits for this bound: nobody firm behind it may pass."""
        if self.kept:
            self._count(ledger)

    def _count(self, ledger: Ledger) -> None:
        usable = firm = other = 0
        for node in ledger.index.nodes:
            usable += sum(mask.bit_count() for mask in ledger.index.desks[node].enabled.values())
            firm += ledger.firm_slots.get(node, 0)
            other += ledger.soft_slots.get(node, 0)
        self.most = usable - self.kept
        self.firm_left = self.most - firm
        self.left = self.firm_left - other
        self.evicted(ledger.evictable.leaving.values())

    def binds(self, demand: Demand) -> bool:
        """Whether this is work that the bound is for."""
        return bool(self.kept and demand.slots) and not demand.interactive and not demand.borrows

    def add(self, slots: int) -> None:
        """More slots in the pool, as by new machines."""
        self.most += slots
        self.firm_left += slots
        self.left += slots

    def evicted(self, holdings: Iterable[Holding]) -> None:
        """Firm work that is coming back."""
        for holding in holdings:
            if self.kept and holding.request.interactive is None and is_firm(holding.request):
                self.firm_coming += sum(len(placement.slots) for placement in holding.placements)

    def allows(self, demand: Demand) -> bool:
        """Whether it may be granted now."""
        return not self.binds(demand) or (demand.slots <= self.firm_left and not self.closed)

    def missing(self, demand: Demand) -> int:
        """How many slots of firm work must be gone, beyond what is coming back, before it may be granted."""
        return demand.slots - self.firm_left - self.firm_coming if self.binds(demand) else 0

    def close(self, demand: Demand) -> None:
        """It waits for the bound; if it could ever be within it, it keeps its place before other firm work."""
        if demand.slots <= self.most:
            self.closed = True

    def would_borrow(self, demand: Demand) -> bool:
        return bool(self.kept) and self.left < demand.slots

    def take(self, demand: Demand) -> bool:
        """Count slots given out or promised; True if they are borrowed from the headroom."""
        if not self.kept or demand.interactive or not demand.slots:
            return False
        self.left -= demand.slots
        if not demand.borrows:
            coming = min(self.firm_coming, max(demand.slots - self.firm_left, 0))
            self.firm_coming -= coming
            self.firm_left -= demand.slots - coming
        return self.left < 0 and demand.borrows
