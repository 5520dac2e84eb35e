"""Who holds what, and who waits, in one pool.

A mutable index, kept up to date only through the verbs below, one per kind of fact; ``plan`` reads it. Each verb either
does all it says or raises ``BrokenInvariant`` and changes nothing. ``check`` recounts everything from scratch.

It never decides: no clock, no policy, no choice of slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from clutch.core.scheduling.demand import is_firm
from clutch.core.scheduling.evictable import Evictable, bump
from clutch.core.scheduling.fitting import Rules, fit
from clutch.core.scheduling.quota import QuotaBook, group_of
from clutch.core.scheduling.room_index import Desk, RoomIndex
from clutch.core.scheduling.waiting_line import Line, WaitingLines
from clutch.wire.errors import BrokenInvariant
from clutch.wire.ids import NodeId, RequestId
from clutch.wire.resources import Capacity, Slot, usual_kind
from clutch.wire.schedule import Holding, Placement, Request, Room
from clutch.wire.specs import Autoscale, PoolSpec


def slots_held(placements: Iterable[Placement]) -> int:
    total = 0
    for placement in placements:
        total += len(placement.slots)
    return total


class Ledger:
    """The books of one pool."""

    def __init__(self, pool: PoolSpec, quotas: QuotaBook) -> None:
        self.pool = pool
        self.quotas = quotas
        self.index = RoomIndex()
        self.lines = WaitingLines(quotas)
        self.evictable = Evictable()
        self.tenants: dict[NodeId, dict[RequestId, int]] = {}
        """By node: the holdings with members there, and how many."""
        self.group_slots: dict[str, int] = {}
        self.firm_slots: dict[NodeId, int] = {}
        """By node: slots held by work that is no cell and may stay longer than one would wait."""
        self.soft_slots: dict[NodeId, int] = {}
        """By node: slots held by other work that is no cell."""
        self.version = 0
        """Grows with every change."""
        self.rooms_version = 0
        """Grows when a node comes, goes or changes."""
        self._slots_of: dict[str, int] = {}
        """By kind: how many slots the nodes own."""
        self._empty: tuple[int, RoomIndex] | None = None
        self._rooms: dict[NodeId, Room] = {}
        self._holdings: dict[RequestId, Holding] = {}
        self.lines.mean(self.usual_kind)

    @property
    def waiting(self) -> Mapping[RequestId, Request]:
        return self.lines.requests

    @property
    def holdings(self) -> Mapping[RequestId, Holding]:
        return self._holdings

    @property
    def rooms(self) -> Mapping[NodeId, Room]:
        return self._rooms

    def reconfigure(self, pool: PoolSpec) -> None:
        """The pool's rules changed. What is held stays held, even beyond a lower subscription bound."""
        self.pool = pool
        self.lines.mean(self.usual_kind)
        for room in list(self._rooms.values()):
            self.put_room(room)

    def put_room(self, room: Room) -> None:
        """A new node, or one whose capacity, usability or disabled slots changed. What it holds stays held."""
        self.version += 1
        self.rooms_version += 1
        self._count_slots(self._rooms.get(room.node), room)
        self._rooms[room.node] = room
        desk = Desk(room, self.pool.max_subscription)
        tenants = self.tenants.setdefault(room.node, {})
        for name in tenants:
            for placement in self._holdings[name].placements:
                if placement.node == room.node:
                    desk.take(placement)
        self.index.put(desk)
        self.evictable.put_room(desk, [self._holdings[name] for name in tenants])

    def drop_room(self, node: NodeId) -> None:
        """Forget a node that holds nothing."""
        if node not in self._rooms:
            raise BrokenInvariant("no such node in this pool", object=node)
        if self.tenants[node]:
            raise BrokenInvariant(f"still holds {', '.join(self.tenants[node])}", object=node)
        self.version += 1
        self.rooms_version += 1
        self._count_slots(self._rooms.pop(node), None)
        del self.tenants[node]
        self.index.drop(node)
        self.evictable.drop_room(node)

    def _count_slots(self, before: Room | None, after: Room | None) -> None:
        """Keep in step what slots of any kind mean here."""
        for room, sign in ((before, -1), (after, 1)):
            for slot in room.capacity.slots if room is not None else ():
                bump(self._slots_of, slot.kind, sign)
        self.lines.mean(self.usual_kind)

    @property
    def usual_kind(self) -> str:
        """Of slots that are asked for without a kind, by all that the pool has or may add."""
        scale = self.pool.autoscale
        grown = [scale.kind] if scale is not None and scale.slots_per_node else []
        return usual_kind([*self._slots_of, *grown])

    def enqueue(self, request: Request) -> None:
        if request.request in self._holdings:
            raise BrokenInvariant("holds resources already", object=request.request)
        self.lines.add(request)
        self.version += 1

    def withdraw(self, request: RequestId) -> None:
        self.lines.remove(request)
        self.version += 1

    def hold(self, holding: Holding) -> None:
        """Give a holding its resources; if its request waits, it leaves the queue."""
        self._must_accept(holding.request.request, holding.placements)
        self.keep(holding)

    def keep(self, holding: Holding) -> None:
        """Enter what is held already, as a snapshot has it: its room may have shrunk since it was granted, and what is
        held is held. Only a slot that two hold is refused."""
        name = holding.request.request
        if name in self._holdings:
            raise BrokenInvariant("holds resources already", object=name)
        for placement in holding.placements:
            conflict = self.index.desks[placement.node].conflicts(placement)
            if conflict:
                raise BrokenInvariant(f"{placement.role}.{placement.rank} on {placement.node}: {conflict}", object=name)
        if name in self.lines.requests:
            self.lines.remove(name)
        self._holdings[name] = holding
        self._book(holding, holding.placements)
        self.evictable.add(holding)

    def extend(self, request: RequestId, placements: tuple[Placement, ...]) -> None:
        """More members for something that already holds some."""
        holding = self._holding(request)
        members = {(placement.role, placement.rank) for placement in holding.placements}
        for placement in placements:
            if (placement.role, placement.rank) in members:
                raise BrokenInvariant(f"has a member {placement.role}.{placement.rank} already", object=request)
        self._must_accept(request, placements)
        self.evictable.remove(holding)
        changed = msgspec.structs.replace(holding, placements=holding.placements + tuple(placements))
        self._holdings[request] = changed
        self._book(changed, placements)
        self.evictable.add(changed)

    def release_part(self, request: RequestId, members: tuple[tuple[str, int], ...]) -> None:
        """Members that are gone; with the last one the holding is gone."""
        holding = self._holding(request)
        gone = [p for p in holding.placements if (p.role, p.rank) in members]
        if len(gone) != len(members):
            raise BrokenInvariant(f"does not hold all of {members}", object=request)
        kept = tuple(p for p in holding.placements if (p.role, p.rank) not in members)
        self.evictable.remove(holding)
        self._unbook(holding, gone)
        if kept:
            changed = self._holdings[request] = msgspec.structs.replace(holding, placements=kept)
            self.evictable.add(changed)
        else:
            del self._holdings[request]

    def release(self, request: RequestId) -> None:
        """Everything it held is free again."""
        holding = self._holding(request)
        self.evictable.remove(holding)
        self._unbook(holding, holding.placements)
        del self._holdings[request]

    def mark(
        self,
        request: RequestId,
        *,
        leaving: bool | None = None,
        leaving_for: RequestId | None = None,
        lingering: bool | None = None,
        last_victim_at: float | None = None,
    ) -> None:
        """Note what changed about a holding without moving it; None leaves a mark as it is."""
        holding = self._holding(request)
        self.evictable.remove(holding)
        changed = msgspec.structs.replace(
            holding,
            leaving=holding.leaving if leaving is None else leaving,
            leaving_for=holding.leaving_for if leaving_for is None else leaving_for,
            lingering=holding.lingering if lingering is None else lingering,
            last_victim_at=holding.last_victim_at if last_victim_at is None else last_victim_at,
        )
        self._holdings[request] = changed
        self.evictable.add(changed)
        self.version += 1

    def amend(self, request: Request) -> None:
        """Say something else of a request that waits or holds: its priority, weight, owner, cap."""
        name = request.request
        if name in self.lines.requests:
            self.lines.remove(name)
            self.lines.add(request)
            self.version += 1
            return
        holding = self._holding(name)
        self.evictable.remove(holding)
        self._unbook(holding, holding.placements)
        changed = self._holdings[name] = msgspec.structs.replace(holding, request=request)
        self._book(changed, changed.placements)
        self.evictable.add(changed)

    def check(self) -> None:
        """Recount everything from rooms and holdings alone and compare; raise ``BrokenInvariant`` on any difference."""
        recount = Ledger(self.pool, QuotaBook())
        for room in self._rooms.values():
            recount.put_room(room)
        owners: dict[tuple[NodeId, int], RequestId] = {}
        for name, holding in self._holdings.items():
            if name in self.lines.requests:
                raise BrokenInvariant("waits and holds at once", object=name)
            for placement in holding.placements:
                for slot in placement.slots:
                    other = owners.setdefault((placement.node, slot), name)
                    if other != name:
                        raise BrokenInvariant(f"slot {slot} is held by {other} and {name}", object=placement.node)
            recount._holdings[name] = holding
            recount._book(holding, holding.placements)
        for node, desk in self.index.desks.items():
            if desk.measure() != recount.index.desks[node].measure():
                raise BrokenInvariant("the books and a recount differ", object=node)
        if recount.index.desks.keys() != self.index.desks.keys() or recount.tenants != self.tenants:
            raise BrokenInvariant("nodes or tenants differ from a recount", object=self.pool.name)
        if recount._slots_of != self._slots_of:
            raise BrokenInvariant("kinds of slots differ from a recount", object=self.pool.name)
        self.lines.check(self.usual_kind)
        self._check_files(recount)
        self.evictable.check(self.index, self._holdings)

    def empty_index(self) -> RoomIndex:
        """Every node of the pool with nothing on it, usable or not, and those its autoscale may still add."""
        if self._empty is None or self._empty[0] != self.rooms_version:
            index = RoomIndex()
            rooms = list(self._rooms.values())
            scale = self.pool.autoscale
            if scale is not None:
                rooms.extend(blank_room(scale, number) for number in range(scale.nodes_max - len(rooms)))
            for room in rooms:
                index.put(Desk(msgspec.structs.replace(room, usable=True), self.pool.max_subscription))
            self._empty = (self.rooms_version, index)
        return self._empty[1]

    def fits_empty(self, line: Line) -> bool:
        """Whether the pool could hold a request of this line if it were empty."""
        if line.fits_empty is None or line.fits_empty[0] != self.rooms_version:
            found = fit(self.empty_index(), line.demand, Rules(self.pool.fit))
            line.fits_empty = (self.rooms_version, found is not None)
        return line.fits_empty[1]

    def _check_files(self, recount: Ledger) -> None:
        mine, theirs = self.index, recount.index
        totals = {kind: total for kind, total in mine.totals.items() if total}
        if totals != {kind: total for kind, total in theirs.totals.items() if total} or mine.nodes != theirs.nodes:
            raise BrokenInvariant("totals differ from a recount", object=self.pool.name)
        for kind, files in theirs.files.items():
            filed = [file for file in enumerate(files) if file[1]]
            if filed != [file for file in enumerate(mine.files.get(kind, [])) if file[1]]:
                raise BrokenInvariant(f"the files of {kind} differ from a recount", object=self.pool.name)
        for sums in ("group_slots", "firm_slots", "soft_slots"):
            if getattr(recount, sums) != getattr(self, sums):
                raise BrokenInvariant(f"{sums} differ from a recount", object=self.pool.name)
        for scope, slots in recount.quotas.used.items():
            if self.quotas.used.get(scope, 0) < slots:
                raise BrokenInvariant(f"{slots} slots held here, fewer on the books of all pools", object=scope)

    def _holding(self, request: RequestId) -> Holding:
        holding = self._holdings.get(request)
        if holding is None:
            raise BrokenInvariant("holds nothing", object=request)
        return holding

    def _must_accept(self, name: RequestId, placements: tuple[Placement, ...]) -> None:
        refusal = refused_by(self.index, placements)
        if refusal:
            raise BrokenInvariant(refusal, object=name)

    def _book(self, holding: Holding, placements: Iterable[Placement]) -> None:
        name = holding.request.request
        placements = tuple(placements)
        self.version += 1
        self.index.take(placements)
        for placement in placements:
            tenants = self.tenants[placement.node]
            tenants[name] = tenants.get(name, 0) + 1
        self._count(holding.request, placements, 1)

    def _unbook(self, holding: Holding, placements: Iterable[Placement]) -> None:
        name = holding.request.request
        placements = tuple(placements)
        self.version += 1
        self.index.give(placements)
        for placement in placements:
            tenants = self.tenants[placement.node]
            tenants[name] -= 1
            if not tenants[name]:
                del tenants[name]
        self._count(holding.request, placements, -1)

    def _count(self, request: Request, placements: tuple[Placement, ...], sign: int) -> None:
        """Keep the sums by group, quota scope and node in step."""
        slots = slots_held(placements)
        if not slots:
            return
        bump(self.group_slots, group_of(request), sign * slots)
        if sign > 0:
            self.quotas.take(request, slots)
        else:
            self.quotas.give(request, slots)
        if request.interactive is None:
            sums = self.firm_slots if is_firm(request) else self.soft_slots
            for placement in placements:
                if placement.slots:
                    bump(sums, placement.node, sign * len(placement.slots))


def blank_room(scale: Autoscale, number: int) -> Room:
    """A machine the pool's autoscale could add, as it would look when empty. Its name sorts behind real ones."""
    slots = tuple(Slot(index, scale.kind) for index in range(scale.slots_per_node))
    capacity = Capacity(slots, scale.millicpus_per_node, scale.memory_bytes_per_node)
    return Room(NodeId(f"~new-{number:04d}"), capacity)


def refused_by(index: RoomIndex, placements: Iterable[Placement]) -> str:
    """Why these placements, taken together, do not fit the rooms; nothing if they do."""
    touched: dict[NodeId, Desk] = {}
    for placement in placements:
        desk = touched.get(placement.node)
        if desk is None:
            found = index.desks.get(placement.node)
            if found is None:
                return f"no node {placement.node} in this pool"
            desk = touched[placement.node] = found.clone()
        refusal = desk.refuses(placement)
        if refusal:
            return f"{placement.role}.{placement.rank} on {placement.node}: {refusal}"
        desk.take(placement)
    return ""
