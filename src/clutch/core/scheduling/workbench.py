"""The room of a pool while a plan is being made: what is open now, and what will be soon.

``open`` is what a newcomer may take. ``soon`` adds what is coming back: holdings that are leaving and victims chosen in
this pass, less what was promised to those they leave for. Everything is a fork: the ledger is only read.
"""

from __future__ import annotations

from collections.abc import Iterable

from clutch.core.scheduling.demand import Demand
from clutch.core.scheduling.evictable import and_backfilled_at, is_out
from clutch.core.scheduling.fitting import Rules, fit
from clutch.core.scheduling.ledger import Ledger
from clutch.core.scheduling.room_index import RoomIndex
from clutch.wire.ids import NodeId, RequestId, TaskId
from clutch.wire.schedule import Holding, Placement, Request


class Behind:
    """The room without backfilled work of one priority, for the request whose turn it is."""

    def __init__(self, index: RoomIndex, entries: list[tuple[int, RequestId]]) -> None:
        self.index = index
        self.entries = entries
        """Backfilled work still behind the request, the first to come last."""
        self.ahead: dict[RequestId, None] = {}
        """Backfilled work that came before the request and has been put back."""


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
        self._behind: dict[int, Behind] = {}

    @property
    def soon(self) -> RoomIndex:
        if self._soon is None:
            self._soon = self.open.fork()
            for holding in self.ledger.evictable.leaving.values():
                self._soon.give(holding.placements)
        return self._soon

    def coming(self, request: Request, demand: Demand, rules: Rules) -> tuple[Placement, ...] | None:
        """Where a request fits once what is leaving has left: with those asked for its sake if they will do."""
        asked = self.ledger.evictable.leaving_for.get(request.request)
        if asked:
            own = self.open.fork()
            for holding in asked.values():
                own.give(holding.placements)
            for holding in asked.values():
                for placement in holding.placements:
                    own.clamp(placement.node, self.soon.desks[placement.node])  # unless it went to somebody ahead
            found = fit(own, demand, rules)
            if found is not None:
                return found
        return fit(self.soon, demand, rules)

    def leavers(self, placements: tuple[Placement, ...]) -> tuple[TaskId, ...]:
        """The tasks that leave, or will be asked to, on the nodes of some placements."""
        nodes = dict.fromkeys(placement.node for placement in placements)
        leaving = [*self.ledger.evictable.leaving.values(), *self.victims.values()]
        return tuple(dict.fromkeys(h.request.task for h in leaving if any(p.node in nodes for p in h.placements)))

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

    def room_for(self, request: Request, threshold: int) -> RoomIndex:
        """The room if all were gone who may make way for this very request at a threshold.

        Backfilled work of its own priority makes way only for those ahead of it. Requests of one priority come in
        order, so what is ahead of one is ahead of the next and is put back once.
        """
        if threshold != and_backfilled_at(request.priority) or request.interactive is not None:
            return self.potential(threshold)
        behind = self._behind.get(threshold)
        if behind is None:
            entries = self.ledger.evictable.backfilled.get(request.priority, [])
            behind = self._behind[threshold] = Behind(self.potential(threshold).fork(), entries[::-1])
        while behind.entries and behind.entries[-1][0] <= request.order:
            _, name = behind.entries.pop()
            if name not in self.victims and not self.ledger.holdings[name].leaving:
                behind.index.take(self.ledger.holdings[name].placements)
                behind.ahead[name] = None
        return behind.index

    def grant(self, placements: tuple[Placement, ...]) -> None:
        """Take room that is open."""
        self._taken.append(placements)
        self.open.take(placements)
        if self._soon is not None:
            self._soon.take(placements)
        self._take_everywhere(placements)

    def evict(self, holdings: Iterable[Holding]) -> None:
        """Count holdings as coming back."""
        for holding in holdings:
            self.soon.give(holding.placements)
            self.victims[holding.request.request] = holding
            for threshold, index in self._potentials.items():
                if not is_out(holding, threshold):
                    index.give(holding.placements)
            for threshold, behind in self._behind.items():
                if not is_out(holding, threshold) or holding.request.request in behind.ahead:
                    behind.index.give(holding.placements)

    def _take_everywhere(self, placements: tuple[Placement, ...]) -> None:
        for index in self._potentials.values():
            index.take(placements)
        for behind in self._behind.values():
            behind.index.take(placements)

    def promise(self, placements: tuple[Placement, ...]) -> tuple[NodeId, ...]:
        """Keep room of ``soon`` for somebody; what of it is open now is open no more."""
        soon = self.soon
        self._taken.append(placements)
        soon.take(placements)
        self._take_everywhere(placements)
        nodes = tuple(dict.fromkeys(placement.node for placement in placements))
        for node in nodes:
            self.open.clamp(node, soon.desks[node])
        return nodes
