"""Which nodes a blocked request waits for: those closest to holding it once what runs there has ended.

A reservation is a set of nodes, not a time. Nodes with the most room are chosen first, ties by name, counting what
would make way for the request as gone. Since nothing new that would not make way is put on a chosen node, it only gets
emptier, and the choice settles (see ``docs/architecture/scheduling.md``). It reads an index and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from clutch.core.scheduling.demand import Demand, Need
from clutch.core.scheduling.fitting import Claim, Rules, fit, units
from clutch.core.scheduling.room_index import Desk, RoomIndex
from clutch.wire.ids import NodeId
from clutch.wire.specs import Spread


def reserve(room: RoomIndex, demand: Demand, rules: Rules) -> dict[NodeId, Claim] | None:
    """Nodes to keep, with the CPUs and memory to keep on each; None if other reservations leave too few."""
    need = demand.needs[0]
    simple = len(demand.needs) == 1 and demand.only is None and not need.even and not need.max_nodes
    choose = _closest if simple else _any
    found = choose(room, demand, rules, _without_leases) if demand.slots else None
    return found if found is not None else choose(room, demand, rules, Desk.emptied)


def _any(room: RoomIndex, demand: Demand, rules: Rules, imagine: Callable[[Desk], Desk]) -> dict[NodeId, Claim] | None:
    """For demands with several roles or a particular cut: where the whole would go if the nodes were empty."""
    empty = RoomIndex()
    for node in room.nodes:
        if node not in rules.reserved:
            empty.put(imagine(room.desks[node]))
    placements = fit(empty, demand, rules)
    if placements is None:
        return None
    claims: dict[NodeId, Claim] = {}
    for placement in placements:
        old = claims.get(placement.node, Claim(0, 0))
        claims[placement.node] = Claim(old.millicpus + placement.millicpus, old.memory_bytes + placement.memory_bytes)
    return claims


def _closest(
    room: RoomIndex, demand: Demand, rules: Rules, imagine: Callable[[Desk], Desk]
) -> dict[NodeId, Claim] | None:
    need = demand.needs[0]
    claims: dict[NodeId, Claim] = {}
    missing = need.count
    apart = need.spread is Spread.HARD and not need.split
    for desk in _emptiest_first(room, need):
        if desk.node in rules.reserved or desk.node in demand.excluded:
            continue
        if desk.node in need.avoid and need.spread is Spread.HARD:
            continue
        size = units(imagine(desk), need, rules)
        if not size:
            continue
        size = min(1 if apart else size, missing)
        claims[desk.node] = Claim(need.millicpus * size, need.memory_bytes * size)
        missing -= size
        if not missing:
            return claims
    return None


def _emptiest_first(index: RoomIndex, need: Need) -> Iterator[Desk]:
    if need.slots:
        for file in reversed(index.files.get(need.kind, [])):
            for node in file:
                yield index.desks[node]
    else:
        for node in sorted(index.nodes, key=lambda node: (-index.desks[node].millicpus, node)):
            yield index.desks[node]


def _without_leases(desk: Desk) -> Desk:
    """A node as it would be if everything that holds slots had ended; slotless members stay for long."""
    new = desk.emptied()
    new.millicpus -= desk.resident_millicpus
    new.memory_bytes -= desk.resident_memory
    new.subscribed = desk.subscribed
    return new
