"""Where a request fits: the one place that knows, used by both policies, by ``why`` and by autoscale.

``fit(index, demand, rules)`` gives the placements of all members, or None. All or nothing. It reads an index of rooms
and changes nothing; it knows no priority, no queue and no time.

A role of one member takes the fullest (or, to spread, the emptiest) node that fits. A role of many takes the fewest
nodes, and among those the choice that leaves least over: 12 slots on nodes with 8, 6 and 4 free go to 8 and 4. Several
roles are placed hardest first; if that fails, a bounded search tries other ways before the answer is no.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from clutch.core.scheduling.demand import Demand, Need
from clutch.core.scheduling.packing import Size, choose_nodes, deal_out
from clutch.core.scheduling.room_index import Desk, RoomIndex, slots_of
from clutch.wire.ids import NodeId
from clutch.wire.schedule import Placement
from clutch.wire.specs import Fit, Spread

SEARCH_STEPS = 2000
"""How many placements a search over several roles may try before it gives up."""


class Claim(NamedTuple):
    """What a reservation will need on one node besides slots; work without slots may use the rest."""

    millicpus: int
    memory_bytes: int


class Rules(NamedTuple):
    """How to choose among nodes, and which ones are not to be used."""

    fit: Fit = Fit.BEST
    reserved: Mapping[NodeId, Claim] = {}
    """Nodes kept for somebody else: nothing with slots goes there."""


Wanted = tuple[Need, Demand, Rules]


def fit(index: RoomIndex, demand: Demand, rules: Rules) -> tuple[Placement, ...] | None:
    """Placements for every member, or None if they do not all fit."""
    for kind, slots in demand.slots_by_kind.items():
        if index.totals.get(kind, 0) < slots:
            return None
    if len(demand.needs) == 1:
        return place(index, demand.needs[0], demand, rules)
    if demand.only is not None:
        return _fit_on_one(index, demand, rules)
    needs = sorted(demand.needs, key=_hardness, reverse=True)
    found = _fit_in_turn(index, needs, demand, rules)
    if found is None:
        found = _Search(demand, rules).run(index, needs)
    if found is None:
        return None
    places = {need.role: place for place, need in enumerate(demand.needs)}
    return tuple(sorted(found, key=lambda placement: (places[placement.role], placement.rank)))


def _hardness(need: Need) -> tuple[int, int, int, int]:
    return (need.slots if not need.split else 0, need.count * need.slots, need.memory_bytes, need.millicpus)


def _fit_in_turn(index: RoomIndex, needs: list[Need], demand: Demand, rules: Rules) -> tuple[Placement, ...] | None:
    work = index.fork()
    found: list[Placement] = []
    for need in needs:
        placed = place(work, need, demand, rules)
        if placed is None:
            return None
        work.take(placed)
        found.extend(placed)
    return tuple(found)


def _fit_on_one(index: RoomIndex, demand: Demand, rules: Rules) -> tuple[Placement, ...] | None:
    """A cell with several roles: all of them on one and the same node."""
    for node in demand.only or ():
        single = demand.relaxed()
        single.only = (node,)
        found = _fit_in_turn(index, list(demand.needs), single, rules)
        if found is not None:
            return found
    return None


def place(index: RoomIndex, need: Need, demand: Demand, rules: Rules) -> tuple[Placement, ...] | None:
    """Placements for one role, or None."""
    if need.count == 0:
        return ()
    if need.count == 1:
        node = _one_node(index, need, demand, rules)
        return None if node is None else _placements(index, need, [(node, 1)])
    if demand.only is not None:
        return _all_on_one(index, need, demand, rules)
    if need.spread is Spread.NONE or need.split:
        shares = _gather(index, need, demand, rules)
    else:
        shares = _apart(index, need, demand, rules)
    return None if shares is None else _placements(index, need, shares)


def _all_on_one(index: RoomIndex, need: Need, demand: Demand, rules: Rules) -> tuple[Placement, ...] | None:
    for desk in _candidates(index, need, demand, rules):
        if units(desk, need, rules) >= need.count:
            return _placements(index, need, [(desk.node, need.count)])
    return None


def units(desk: Desk, need: Need, rules: Rules) -> int:
    """How many units of a need this node could take now."""
    most = need.count
    if need.slots:
        if desk.node in rules.reserved:
            return 0
        most = min(most, desk.free.get(need.kind, 0).bit_count() // need.slots)
        if not most:
            return 0
    else:
        claim = rules.reserved.get(desk.node)
        if claim is not None:
            # Slotless members stay for long: leave what the reservation will need once its blockers have ended.
            if need.millicpus:
                spare = desk.capacity_millicpus - desk.resident_millicpus - claim.millicpus
                most = min(most, max(spare, 0) // need.millicpus)
            if need.memory_bytes:
                spare = desk.capacity_memory - desk.resident_memory - claim.memory_bytes
                most = min(most, max(spare, 0) // need.memory_bytes)
    if need.millicpus:
        most = min(most, max(desk.millicpus, 0) // need.millicpus)
    if need.memory_bytes:
        most = min(most, max(desk.memory_bytes, 0) // need.memory_bytes)
    if need.subscribed:
        spare = desk.bound.get(need.subscribed_kind, 0) - desk.subscribed.get(need.subscribed_kind, 0)
        if need.split:
            most = most if spare >= need.subscribed else 0
        else:
            most = min(most, max(spare, 0) // need.subscribed)
    return most


def hosts(index: RoomIndex, demand: Demand, rules: Rules) -> Iterator[NodeId]:
    """Nodes where at least one unit of the hardest role fits, in order of preference."""
    need = max(demand.needs, key=_hardness)
    for desk in _candidates(index, need, demand, rules):
        if units(desk, need, rules) >= 1:
            yield desk.node


def _candidates(index: RoomIndex, need: Need, demand: Demand, rules: Rules) -> Iterator[Desk]:
    """Usable nodes that are not excluded and have the slots, in order of preference."""
    desks = index.desks
    excluded = demand.excluded
    if demand.only is not None:
        for node in demand.only:
            desk = desks.get(node)
            if desk is not None and desk.usable and node not in excluded:
                yield desk
        return
    if need.slots:
        files = index.files.get(need.kind, [])
        counts = range(need.slots, len(files)) if rules.fit is Fit.BEST else range(len(files) - 1, need.slots - 1, -1)
        for count in counts:
            for node in files[count]:
                if node not in excluded:
                    yield desks[node]
        return
    for node in index.nodes:
        if node not in excluded:
            yield desks[node]


def _one_node(index: RoomIndex, need: Need, demand: Demand, rules: Rules) -> NodeId | None:
    hard = need.spread is Spread.HARD
    second: NodeId | None = None
    if not need.slots and demand.only is None:
        return _slotless_node(index, need, demand, rules)
    for desk in _candidates(index, need, demand, rules):
        if units(desk, need, rules) >= 1:
            if desk.node not in need.avoid:
                return desk.node
            if not hard and second is None:
                second = desk.node
    return second


def _slotless_node(index: RoomIndex, need: Need, demand: Demand, rules: Rules) -> NodeId | None:
    """For a member without slots of its own: few subscriptions first, then little CPU left (or much, to spread)."""
    hard = need.spread is Spread.HARD
    best: tuple[bool, float, int, NodeId] | None = None
    sign = 1 if rules.fit is Fit.BEST else -1
    kind = need.subscribed_kind
    for desk in _candidates(index, need, demand, rules):
        avoided = desk.node in need.avoid
        if (avoided and hard) or units(desk, need, rules) < 1:
            continue
        load = desk.subscribed.get(kind, 0) / desk.bound[kind] if need.subscribed else 0.0
        rank = (avoided, load, sign * desk.millicpus, desk.node)
        if best is None or rank < best:
            best = rank
    return best[3] if best else None


def _gather(index: RoomIndex, need: Need, demand: Demand, rules: Rules) -> list[tuple[NodeId, int]] | None:
    """Many units over the fewest nodes; nodes to avoid only if it must be (or never, if the spread is hard)."""
    sizes: list[Size] = []
    avoided: list[Size] = []
    want = (need, demand, rules)
    if need.slots:
        for free, file in enumerate(index.files.get(need.kind, [])):
            if free >= need.slots:
                _sizes(index, file, want, sizes, avoided)
    else:
        _sizes(index, index.nodes, want, sizes, avoided)
    best = rules.fit is Fit.BEST
    chosen = choose_nodes(sizes, need.count, need.max_nodes, even=need.even, best=best)
    if chosen is None and avoided and need.spread is not Spread.HARD:
        chosen = choose_nodes(sizes + avoided, need.count, need.max_nodes, even=need.even, best=best)
    return chosen


def _sizes(index: RoomIndex, nodes: list[NodeId], want: Wanted, sizes: list[Size], avoided: list[Size]) -> None:
    """Add how many units fit on each of these nodes, which all have equally many slots free."""
    need, demand, rules = want
    desks, excluded = index.desks, demand.excluded
    full = 0
    for node in nodes:
        if node in excluded:
            continue
        desk = desks[node]
        size = units(desk, need, rules)
        if not size:
            continue
        free = desk.free_count(need.kind)
        if node in need.avoid:
            avoided.append((size, free, node))
            continue
        sizes.append((size, free, node))
        if need.slots and size == min(free // need.slots, need.count):
            full += size
            # More nodes of one size than could hold it all are never needed (equal shares may need them).
            if full >= need.count and not need.even:
                return


def _apart(index: RoomIndex, need: Need, demand: Demand, rules: Rules) -> list[tuple[NodeId, int]] | None:
    """Members on different nodes: at least while there are enough, or else not at all."""
    fresh: list[tuple[NodeId, int]] = []
    used: list[tuple[NodeId, int]] = []
    for desk in _candidates(index, need, demand, rules):
        size = units(desk, need, rules)
        if not size:
            continue
        if desk.node in need.avoid:
            used.append((desk.node, size))
        else:
            fresh.append((desk.node, size))
            if len(fresh) == need.count:
                return [(node, 1) for node, _ in fresh]
    if need.spread is Spread.HARD:
        return None
    return deal_out(fresh, used, need.count)


def _placements(index: RoomIndex, need: Need, shares: list[tuple[NodeId, int]]) -> tuple[Placement, ...]:
    """Members with their ranks and exact slots, the largest share first."""
    found: list[Placement] = []
    rank = need.first_rank
    for node, share in shares:
        free = index.desks[node].free.get(need.kind, 0)
        members = 1 if need.split else share
        slots_each = need.slots * share if need.split else need.slots
        factor = share if need.split else 1
        for _ in range(members):
            slots = slots_of(free, slots_each) if slots_each else ()
            for slot in slots:
                free ^= 1 << slot
            found.append(
                Placement(
                    need.role,
                    rank,
                    node,
                    slots,
                    need.kind,
                    need.millicpus * factor,
                    need.memory_bytes * factor,
                    need.subscribed,
                    need.subscribed_kind,
                )
            )
            rank += 1
    return tuple(found)


class _Search:
    """Several roles at once, member by member, trying other nodes when a later one does not fit. Bounded."""

    def __init__(self, demand: Demand, rules: Rules) -> None:
        self.demand = demand
        self.rules = rules
        self.steps = SEARCH_STEPS

    def run(self, index: RoomIndex, needs: list[Need]) -> tuple[Placement, ...] | None:
        singles = [need for need in needs if not need.split]
        splits = [need for need in needs if need.split]
        members = [(need, need.first_rank + number) for need in singles for number in range(need.count)]
        for order in [splits, splits[::-1]] if len(splits) > 1 else [splits]:
            found = self._next(index.fork(), members, order, ())
            if found is not None:
                return found
        return None

    def _next(
        self, index: RoomIndex, members: list[tuple[Need, int]], splits: list[Need], done: tuple[Placement, ...]
    ) -> tuple[Placement, ...] | None:
        if not members:
            rest = _fit_in_turn(index, splits, self.demand, self.rules)
            return None if rest is None else done + rest
        need, rank = members[0]
        seen: dict[tuple[object, ...], None] = {}
        for desk in list(_candidates(index, need, self.demand, self.rules)):
            if self.steps <= 0:
                return None
            if self._barred(desk, need, done) or units(desk, need, self.rules) < 1:
                continue
            alike = (*desk.likeness(), desk.node in need.avoid)
            if alike in seen and not self._marked(desk.node, done):
                continue
            seen[alike] = None
            self.steps -= 1
            placement = msgspec.structs.replace(_placements(index, need, [(desk.node, 1)])[0], rank=rank)
            index.take((placement,))
            found = self._next(index, members[1:], splits, (*done, placement))
            if found is not None:
                return found
            index.give((placement,))
        return None

    def _barred(self, desk: Desk, need: Need, done: tuple[Placement, ...]) -> bool:
        if need.spread is not Spread.HARD:
            return False
        return desk.node in need.avoid or any(p.node == desk.node and p.role == need.role for p in done)

    def _marked(self, node: NodeId, done: tuple[Placement, ...]) -> bool:
        """Whether a member lies there already: then it is not like another node with the same room left."""
        return any(p.node == node for p in done)
