"""Whom to ask to leave so that a request can be placed: as few as will do, the least important and newest first.

The search goes by thresholds: first only what lingers, then the least important work, and so on up to what is just less
important than the request. At the first threshold where room can be made it looks node by node for few victims and then
strikes out each one that is not needed: no proper subset of what it returns would do. Work that has run for less than
``min_run_s`` is chosen only if nothing else will do, and then waited for, not asked.

It reads a workbench and changes nothing. Running cells and work that cannot be preempted are never victims.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from typing import NamedTuple

from clutch.core.scheduling.demand import Demand, is_firm
from clutch.core.scheduling.evictable import and_backfilled_at, is_out
from clutch.core.scheduling.fitting import Rules, fit, hosts, units
from clutch.core.scheduling.room_index import Desk, RoomIndex
from clutch.core.scheduling.workbench import Workbench
from clutch.wire.ids import NodeId
from clutch.wire.schedule import Holding, Placement, Request
from clutch.wire.specs import Spread

NODES_TRIED = 64
"""How many nodes the search compares for one request."""
ENOUGH_NODES = 16
"""After so many nodes it is content with a single victim that holds no more than what is missing."""
SETS_TRIED = 200
"""How many sets of victims it compares on one node."""

Preference = tuple[bool, int, int, float, int, str]
Cost = tuple[int, int, int, int, list[Preference]]


class Candidate(NamedTuple):
    """A holding that may be asked; sorts with the first to go first."""

    preference: Preference
    holding: Holding
    ripe_at: float
    """From when on it may be asked; 0: now."""


class Eviction(NamedTuple):
    """Victims, where the request goes when they are gone, and from when on they may all be asked (0: now)."""

    candidates: tuple[Candidate, ...]
    placements: tuple[Placement, ...]
    ripe_at: float

    @property
    def victims(self) -> tuple[Holding, ...]:
        return tuple(candidate.holding for candidate in self.candidates)


class VictimSearch:
    """One pass's searches. Candidates by node are remembered while the pass lasts."""

    def __init__(self, bench: Workbench, now: float, *, preemption: bool) -> None:
        self.bench = bench
        self.now = now
        self.preemption = preemption
        self.min_run_s = bench.ledger.pool.min_run_s
        self._by_node: dict[NodeId, list[Candidate]] = {}

    def find(self, request: Request, demand: Demand, rules: Rules) -> Eviction | None:
        """The cheapest eviction that makes room for a request, or None."""
        deferred: Eviction | None = None
        evictable = self.bench.ledger.evictable
        thresholds = evictable.thresholds(request, preemption=self.preemption)
        if fit(self.bench.room_for(request, thresholds[-1]), demand, rules) is None:
            return None  # not even if all who may make way did
        for threshold in thresholds:
            target = fit(self.bench.room_for(request, threshold), demand, rules)
            if target is None:
                continue
            found = self._at(threshold, request, demand, rules, target)
            if found is not None and not found.ripe_at:
                return found
            if deferred is None:
                deferred = found
        return deferred

    def _at(
        self, threshold: int, request: Request, demand: Demand, rules: Rules, target: tuple[Placement, ...]
    ) -> Eviction | None:
        ways: list[tuple[Candidate, ...] | None] = []
        if all(placement.node == target[0].node for placement in target):
            ways.append(self._on_one_node(threshold, request, demand, rules))
        else:
            ways.append(self._on_many(threshold, request, demand, rules, target))
        if demand.only is None and (len(demand.needs) > 1 or demand.needs[0].count > 1):
            ways.append(self._anywhere(threshold, request, demand, rules))
        pruned = [self._pruned(way, demand, rules) for way in ways if way]
        return min((way for way in pruned if way), key=lambda way: cost_of(way.candidates), default=None)

    def _anywhere(self, threshold: int, request: Request, demand: Demand, rules: Rules) -> tuple[Candidate, ...] | None:
        """One victim if any one will do, else victims from the top of the list until it fits, wherever they are."""
        found: dict[str, Candidate] = {}
        for tried, node in enumerate(hosts(self.bench.room_for(request, threshold), demand, rules)):
            if tried >= NODES_TRIED:
                break
            for candidate in self.candidates(node, request, threshold):
                found[candidate.holding.request.request] = candidate
        work = self.bench.soon.fork()
        candidates = sorted(found.values())
        for candidate in candidates:
            if not _enough(work, candidate, demand):
                continue
            work.give(candidate.holding.placements)
            if fit(work, demand, rules) is not None:
                return (candidate,)
            work.take(candidate.holding.placements)
        for count, candidate in enumerate(candidates, 1):
            work.give(candidate.holding.placements)
            if fit(work, demand, rules) is not None:
                return tuple(candidates[:count])
        return None

    def _on_one_node(
        self, threshold: int, request: Request, demand: Demand, rules: Rules
    ) -> tuple[Candidate, ...] | None:
        """The node where the fewest and cheapest victims make room for everything."""
        potential, soon = self.bench.room_for(request, threshold), self.bench.soon
        best: Cost | None = None
        chosen: tuple[Candidate, ...] | None = None
        for tried, node in enumerate(hosts(potential, demand, rules)):
            if tried >= NODES_TRIED:
                break
            if tried >= ENOUGH_NODES and best is not None and best[:2] <= (0, 1) and best[2] <= demand.slots:
                break
            desk = soon.desks[node]
            missing = {kind: slots - desk.free_count(kind) for kind, slots in demand.slots_by_kind.items()}
            found = few(desk, self.candidates(node, request, threshold), missing, partial(_holds, demand, rules))
            if found is None:
                continue
            cost = cost_of(found)
            if best is None or cost < best:
                best, chosen = cost, found
        return chosen

    def _on_many(
        self, threshold: int, request: Request, demand: Demand, rules: Rules, target: tuple[Placement, ...]
    ) -> tuple[Candidate, ...] | None:
        """Victims on each node of the target in turn; one victim may free several nodes."""
        work = self.bench.soon.fork()
        chosen: dict[str, Candidate] = {}
        by_node: dict[NodeId, list[Placement]] = {}
        for placement in target:
            by_node.setdefault(placement.node, []).append(placement)
        for node, wanted in by_node.items():
            desk = work.desks[node]
            if _takes(wanted, desk):
                continue
            candidates = self.candidates(node, request, threshold)
            others = [candidate for candidate in candidates if candidate.holding.request.request not in chosen]
            missing: dict[str, int] = {}
            for placement in wanted:
                missing[placement.kind] = missing.get(placement.kind, 0) + len(placement.slots)
            for kind in missing:
                missing[kind] -= desk.free_count(kind)
            found = few(desk, others, missing, partial(_takes, wanted))
            if found is None:
                return None
            for candidate in found:
                work.give(candidate.holding.placements)
                chosen[candidate.holding.request.request] = candidate
        return tuple(chosen.values())

    def find_firm(self, request: Request, demand: Demand, rules: Rules, missing: int) -> Eviction | None:
        """Victims among work that may not use what is kept for cells: so many slots of it, and enough to fit."""
        if not self.preemption or not any(level > request.priority for level in self.bench.ledger.evictable.levels):
            return None
        threshold = and_backfilled_at(request.priority)
        candidates = sorted(
            self._candidate(holding)
            for name, holding in self.bench.ledger.holdings.items()
            if name not in self.bench.victims
            and is_firm(holding.request)
            and self._may_leave(holding, request, threshold)
        )
        work = self.bench.soon.fork()
        chosen: list[Candidate] = []
        for candidate in candidates:
            chosen.append(candidate)
            work.give(candidate.holding.placements)
            missing -= _slots(candidate)
            if missing <= 0 and fit(work, demand, rules) is not None:
                return self._pruned(chosen, demand, rules, -missing)
        return None

    def candidates(self, node: NodeId, request: Request, threshold: int) -> list[Candidate]:
        """Who on a node may be asked to leave for a request, the first to go first."""
        known = self._by_node.get(node)
        if known is None:
            holdings = self.bench.ledger.holdings
            known = self._by_node[node] = sorted(
                self._candidate(holdings[name]) for name in self.bench.ledger.tenants.get(node, ())
            )
        asked = self.bench.victims
        return [
            candidate
            for candidate in known
            if candidate.holding.request.request not in asked and self._may_leave(candidate.holding, request, threshold)
        ]

    def _may_leave(self, holding: Holding, request: Request, threshold: int) -> bool:
        if holding.leaving:
            return False
        if holding.lingering:
            return True
        held = holding.request
        if not self.preemption or not held.preemptible or held.interactive is not None:
            return False
        cell = request.interactive
        if cell is not None and held.leave_within_s > cell.wait_limit_s:
            return False
        if not is_out(holding, threshold):
            return False
        if held.priority > request.priority:
            return True
        if not holding.backfilled or held.priority < request.priority:
            return False
        return cell is not None or held.order > request.order

    def _candidate(self, holding: Holding) -> Candidate:
        ripe_at = 0.0
        if not holding.lingering:
            ripe_at = max(holding.since, holding.last_victim_at or holding.since) + self.min_run_s
            if ripe_at <= self.now:
                ripe_at = 0.0
        kind = 0 if holding.lingering else 1 if holding.backfilled else 2
        held = holding.request
        preference = (ripe_at > 0, kind, -held.priority, -holding.since, -held.order, str(held.request))
        return Candidate(preference, holding, ripe_at)

    def _pruned(
        self, chosen: Sequence[Candidate], demand: Demand, rules: Rules, spare: int | None = None
    ) -> Eviction | None:
        """Strike out, dearest first, every victim that is not needed; at most ``spare`` slots, if that is bound."""
        kept = sorted(chosen)
        work = self.bench.soon.fork()
        for candidate in kept:
            work.give(candidate.holding.placements)
        placements = fit(work, demand, rules)
        if placements is None:
            return None
        if len(kept) > 1:
            for candidate in reversed(kept[:]):
                if spare is not None and _slots(candidate) > spare:
                    continue
                work.take(candidate.holding.placements)
                fewer = fit(work, demand, rules)
                if fewer is None:
                    work.give(candidate.holding.placements)
                else:
                    kept.remove(candidate)
                    placements = fewer
                    spare = None if spare is None else spare - _slots(candidate)
        ripe_at = max((candidate.ripe_at for candidate in kept), default=0.0)
        return Eviction(tuple(kept), placements, ripe_at)


def few(
    desk: Desk, candidates: list[Candidate], missing: dict[str, int], fits: Callable[[Desk], bool]
) -> tuple[Candidate, ...] | None:
    """Few victims on one node that make it fit: one if one will do, else as few as the bounded search finds.

    ``missing`` is by kind how many slots too few are free: what cannot free so many is not tried.
    """
    freed = [_freed(desk.node, candidate, missing) for candidate in candidates]
    for candidate, free in zip(candidates, freed, strict=True):
        if all(free[kind] >= slots for kind, slots in missing.items()) and fits(_without(desk, (candidate,))):
            return (candidate,)
    pile: list[Candidate] = []
    for place, candidate in enumerate(candidates):
        pile.append(candidate)
        enough = all(sum(free[kind] for free in freed[: place + 1]) >= slots for kind, slots in missing.items())
        if place and enough and fits(_without(desk, pile)):
            break
    else:
        return None
    for candidate in reversed(pile[:]):
        rest = [other for other in pile if other is not candidate]
        if fits(_without(desk, rest)):
            pile = rest
    tries = SETS_TRIED
    for size in range(2, len(pile)):
        for some in combinations(candidates, size):
            tries -= 1
            if tries < 0:
                return tuple(pile)
            if fits(_without(desk, some)):
                return some
    return tuple(pile)


def _slots(candidate: Candidate) -> int:
    return sum(len(placement.slots) for placement in candidate.holding.placements)


def _freed(node: NodeId, candidate: Candidate, missing: dict[str, int]) -> dict[str, int]:
    """How many slots of each missing kind would be free on a node without somebody."""
    freed = dict.fromkeys(missing, 0)
    for placement in candidate.holding.placements:
        if placement.node == node and placement.kind in freed:
            freed[placement.kind] += len(placement.slots)
    return freed


def cost_of(chosen: Sequence[Candidate]) -> Cost:
    """What a set of victims costs: those that must be waited for, how many, how many slots they lose, who they are."""
    working = [candidate for candidate in chosen if not candidate.holding.lingering]
    slots = sum(len(p.slots) for candidate in working for p in candidate.holding.placements)
    unripe = sum(1 for candidate in chosen if candidate.ripe_at)
    return (unripe, len(working), slots, len(chosen), [candidate.preference for candidate in chosen])


def _enough(index: RoomIndex, candidate: Candidate, demand: Demand) -> bool:
    """Whether enough slots would be free in sum without somebody."""
    for kind, slots in demand.slots_by_kind.items():
        held = sum(len(p.slots) for p in candidate.holding.placements if p.kind == kind)
        if index.totals.get(kind, 0) + held < slots:
            return False
    return True


def _without(desk: Desk, candidates: Sequence[Candidate]) -> Desk:
    new = desk.clone()
    for candidate in candidates:
        for placement in candidate.holding.placements:
            if placement.node == desk.node:
                new.give(placement)
    return new


def _takes(wanted: list[Placement], desk: Desk) -> bool:
    """Whether a node could take as much as these placements, on whichever slots."""
    slots: dict[str, int] = {}
    subscribed: dict[str, int] = {}
    for placement in wanted:
        slots[placement.kind] = slots.get(placement.kind, 0) + len(placement.slots)
        kind = placement.subscribed_kind
        subscribed[kind] = subscribed.get(kind, 0) + placement.subscribed
    return (
        all(desk.free_count(kind) >= count for kind, count in slots.items())
        and all(desk.bound.get(k, 0) - desk.subscribed.get(k, 0) >= n for k, n in subscribed.items() if n)
        and desk.millicpus >= sum(placement.millicpus for placement in wanted)
        and desk.memory_bytes >= sum(placement.memory_bytes for placement in wanted)
    )


def _holds(demand: Demand, rules: Rules, desk: Desk) -> bool:
    """Whether one node alone could hold a whole demand."""
    need = demand.needs[0]
    if len(demand.needs) == 1 and need.spread is Spread.NONE:
        return units(desk, need, rules) >= need.count
    alone = RoomIndex()
    alone.put(desk)
    return fit(alone, demand, rules) is not None
