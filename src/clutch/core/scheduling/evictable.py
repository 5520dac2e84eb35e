"""What a pool would look like if less important work were gone, kept up to date so that asking is cheap.

``at(threshold)`` is the room if every holding that is leaving, lingers, or is preemptible and less important than the
threshold were gone. A threshold is twice a priority: even if backfilled work of that priority is to go, else one more.
It is a memory of the ledger's, derived and bounded; it knows no time (``min_run_s`` is the search's business) and never
chooses a victim.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from typing import TypeVar

from clutch.core.scheduling.room_index import Desk, RoomIndex
from clutch.wire.errors import BrokenInvariant
from clutch.wire.ids import NodeId, RequestId
from clutch.wire.schedule import Holding, Request

Key = TypeVar("Key")

NOBODY = 1000
"""A threshold below every priority: only what leaves or lingers is gone."""
KEPT = 24
"""How many thresholds are remembered; the one unused for longest is forgotten first."""


def is_out(holding: Holding, threshold: int) -> bool:
    """Whether this holding could make way for a request as important as the threshold."""
    if holding.leaving or holding.lingering:
        return True
    request = holding.request
    if not request.preemptible or request.interactive is not None:
        return False
    level = 2 * request.priority
    return level > threshold or (holding.backfilled and level >= threshold)


def only_less_important_than(priority: int) -> int:
    """The threshold at which everything less important than a priority is gone."""
    return 2 * priority + 1


def and_backfilled_at(priority: int) -> int:
    """The threshold at which backfilled work of that very priority is gone as well."""
    return 2 * priority


class Evictable:
    """Indexes by threshold, the holdings on their way out, and the priorities at which there is anything to evict."""

    def __init__(self) -> None:
        self.leaving: dict[RequestId, Holding] = {}
        self.leaving_for: dict[RequestId, dict[RequestId, Holding]] = {}
        """By whom they were asked to leave for: the holdings that are leaving."""
        self.levels: dict[int, int] = {}
        """Preemptible holdings by priority: how many."""
        self.backfilled: dict[int, list[tuple[int, RequestId]]] = {}
        """Backfilled holdings by priority, sorted by order."""
        self._indexes: dict[int, RoomIndex] = {}

    def at(self, threshold: int, index: RoomIndex, holdings: Mapping[RequestId, Holding]) -> RoomIndex:
        """The room if everything less important than the threshold were gone. To be forked, not changed."""
        found = self._indexes.pop(threshold, None)
        if found is None:
            found = index.fork()
            for holding in holdings.values():
                if is_out(holding, threshold):
                    found.give(holding.placements)
            if len(self._indexes) >= KEPT:
                del self._indexes[next(iter(self._indexes))]
        self._indexes[threshold] = found
        return found

    def thresholds(self, request: Request, *, preemption: bool) -> list[int]:
        """Which thresholds are worth a try for a request, the least important victims first."""
        found = [NOBODY]
        if preemption:
            priority = request.priority
            levels = sorted((level for level in self.levels if level > priority), reverse=True)
            found.extend(only_less_important_than(level - 1) for level in levels)
            backfilled = self.backfilled.get(priority)
            if backfilled and (backfilled[-1][0] > request.order or request.interactive is not None):
                found.append(and_backfilled_at(priority))
        return found

    def add(self, holding: Holding) -> None:
        for threshold, index in self._indexes.items():
            if not is_out(holding, threshold):
                index.take(holding.placements)
        self._count(holding, 1)

    def remove(self, holding: Holding) -> None:
        for threshold, index in self._indexes.items():
            if not is_out(holding, threshold):
                index.give(holding.placements)
        self._count(holding, -1)

    def put_room(self, desk: Desk, tenants: Iterable[Holding]) -> None:
        tenants = list(tenants)
        for threshold, index in self._indexes.items():
            new = desk.clone()
            for holding in tenants:
                if is_out(holding, threshold):
                    for placement in holding.placements:
                        if placement.node == desk.node:
                            new.give(placement)
            index.put(new)

    def drop_room(self, node: NodeId) -> None:
        for index in self._indexes.values():
            index.drop(node)

    def check(self, index: RoomIndex, holdings: Mapping[RequestId, Holding]) -> None:
        """Compare every remembered index with one made from scratch."""
        for threshold, kept in self._indexes.items():
            fresh = index.fork()
            for holding in holdings.values():
                if is_out(holding, threshold):
                    fresh.give(holding.placements)
            for node, desk in fresh.desks.items():
                if kept.desks[node].measure() != desk.measure():
                    raise BrokenInvariant(f"what threshold {threshold} would free differs from a recount", object=node)
            if kept.nodes != fresh.nodes or kept.desks.keys() != fresh.desks.keys():
                raise BrokenInvariant(f"the nodes at threshold {threshold} differ from a recount")
        if self.leaving != {name: holding for name, holding in holdings.items() if holding.leaving}:
            raise BrokenInvariant("what is leaving differs from a recount")

    def _count(self, holding: Holding, change: int) -> None:
        request = holding.request
        if holding.leaving:
            name, whom = request.request, holding.leaving_for
            if change > 0:
                self.leaving[name] = holding
                self.leaving_for.setdefault(whom, {})[name] = holding
            else:
                del self.leaving[name]
                del self.leaving_for[whom][name]
                if not self.leaving_for[whom]:
                    del self.leaving_for[whom]
            return
        if request.preemptible and request.interactive is None:
            bump(self.levels, request.priority, change)
            if holding.backfilled:
                backfilled = self.backfilled.setdefault(request.priority, [])
                if change > 0:
                    insort(backfilled, (request.order, request.request))
                else:
                    backfilled.remove((request.order, request.request))


def bump(counts: dict[Key, int], key: Key, change: int) -> None:
    """Change a count; what counts nothing is forgotten."""
    count = counts.get(key, 0) + change
    if count:
        counts[key] = count
    else:
        del counts[key]
