"""How much room each node of a pool has, found fast by how many slots are free.

A ``Desk`` is one node, counted: free slots as bits, CPUs, memory, subscriptions. A ``RoomIndex`` files the usable desks
by free slots of each kind, so that "the fullest node with four free" is a look-up. ``fork`` gives a cheap copy that
shares its desks until one side changes one: a policy works on forks, so the ledger it read stays as it was.

It knows nothing of requests, priorities or time, and never chooses: ``fitting`` does.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from clutch.wire.errors import BrokenInvariant
from clutch.wire.ids import NodeId
from clutch.wire.schedule import Placement, Room


def mask_of(slots: Iterable[int]) -> int:
    mask = 0
    for index in slots:
        mask |= 1 << index
    return mask


def slots_of(mask: int, count: int) -> tuple[int, ...]:
    """The lowest ``count`` slots of a mask."""
    found = []
    for _ in range(count):
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return tuple(found)


class Desk:
    """One node, counted. Free amounts go negative only when a node came back smaller than what it holds."""

    __slots__ = (
        "bound",
        "capacity_memory",
        "capacity_millicpus",
        "enabled",
        "free",
        "memory_bytes",
        "millicpus",
        "node",
        "owned",
        "resident_memory",
        "resident_millicpus",
        "subscribed",
        "taken",
        "usable",
    )

    def __init__(self, room: Room, max_subscription: float) -> None:
        self.node = room.node
        self.usable = room.usable
        self.owned: dict[str, int] = {}
        for slot in room.capacity.slots:
            self.owned[slot.kind] = self.owned.get(slot.kind, 0) | (1 << slot.index)
        disabled = mask_of(room.disabled_slots)
        self.enabled = {kind: mask & ~disabled for kind, mask in self.owned.items()}
        self.free = dict(self.enabled)
        self.taken: dict[str, int] = {}
        self.capacity_millicpus = self.millicpus = room.capacity.millicpus
        self.capacity_memory = self.memory_bytes = room.capacity.memory_bytes
        self.bound = {kind: int(max_subscription * mask.bit_count()) for kind, mask in self.owned.items()}
        self.subscribed: dict[str, int] = {}
        self.resident_millicpus = 0
        self.resident_memory = 0

    def clone(self) -> Desk:
        new = Desk.__new__(Desk)
        new.node = self.node
        new.usable = self.usable
        new.owned = self.owned
        new.enabled = self.enabled
        new.free = self.free.copy()
        new.taken = self.taken.copy()
        new.capacity_millicpus = self.capacity_millicpus
        new.capacity_memory = self.capacity_memory
        new.millicpus = self.millicpus
        new.memory_bytes = self.memory_bytes
        new.bound = self.bound
        new.subscribed = self.subscribed.copy()
        new.resident_millicpus = self.resident_millicpus
        new.resident_memory = self.resident_memory
        return new

    def free_count(self, kind: str) -> int:
        return self.free.get(kind, 0).bit_count()

    def refuses(self, placement: Placement) -> str:
        """Why this placement cannot be taken here, or nothing."""
        conflict = self.conflicts(placement)
        if conflict:
            return conflict
        if placement.millicpus and placement.millicpus > self.millicpus:
            return f"{placement.millicpus} millicpus wanted, {self.millicpus} free"
        if placement.memory_bytes and placement.memory_bytes > self.memory_bytes:
            return f"{placement.memory_bytes} bytes of memory wanted, {self.memory_bytes} free"
        if placement.subscribed:
            kind = placement.subscribed_kind
            if self.subscribed.get(kind, 0) + placement.subscribed > self.bound.get(kind, 0):
                return (
                    f"subscription of {placement.subscribed} {kind} slots is over the bound {self.bound.get(kind, 0)}"
                )
        return ""

    def conflicts(self, placement: Placement) -> str:
        """Why its slots cannot be its own, however large the room is; or nothing."""
        if placement.slots:
            mask = mask_of(placement.slots)
            if mask.bit_count() != len(placement.slots):
                return f"slot named twice in {placement.slots}"
            if mask & ~self.owned.get(placement.kind, 0):
                return f"no such {placement.kind} slot among {placement.slots}"
            if mask & self.taken.get(placement.kind, 0):
                return f"slot among {placement.slots} is taken"
        return ""

    def take(self, placement: Placement) -> None:
        if placement.slots:
            kind = placement.kind
            mask = mask_of(placement.slots)
            self.taken[kind] = self.taken.get(kind, 0) | mask
            self.free[kind] = self.free.get(kind, 0) & ~mask
        else:
            self.resident_millicpus += placement.millicpus
            self.resident_memory += placement.memory_bytes
        self.millicpus -= placement.millicpus
        self.memory_bytes -= placement.memory_bytes
        if placement.subscribed:
            kind = placement.subscribed_kind
            self.subscribed[kind] = self.subscribed.get(kind, 0) + placement.subscribed

    def give(self, placement: Placement) -> None:
        if placement.slots:
            kind = placement.kind
            mask = mask_of(placement.slots)
            self.taken[kind] = self.taken.get(kind, 0) & ~mask
            self.free[kind] = self.free.get(kind, 0) | (mask & self.enabled.get(kind, 0))
        else:
            self.resident_millicpus -= placement.millicpus
            self.resident_memory -= placement.memory_bytes
        self.millicpus += placement.millicpus
        self.memory_bytes += placement.memory_bytes
        if placement.subscribed:
            self.subscribed[placement.subscribed_kind] -= placement.subscribed

    def clamp(self, other: Desk) -> None:
        """Keep only what is free on ``other`` as well."""
        for kind, mask in self.free.items():
            self.free[kind] = mask & other.free.get(kind, 0)
        self.millicpus = min(self.millicpus, other.millicpus)
        self.memory_bytes = min(self.memory_bytes, other.memory_bytes)
        for kind, count in other.subscribed.items():
            self.subscribed[kind] = max(self.subscribed.get(kind, 0), count)

    def emptied(self) -> Desk:
        """The same node with nothing on it."""
        new = self.clone()
        new.free = dict(self.enabled)
        new.taken = {}
        new.millicpus = self.capacity_millicpus
        new.memory_bytes = self.capacity_memory
        new.subscribed = {}
        new.resident_millicpus = new.resident_memory = 0
        return new

    def likeness(self) -> tuple[object, ...]:
        """Equal for nodes with the same room left, whatever their names and slot numbers."""
        return (
            tuple((kind, mask.bit_count()) for kind, mask in self.free.items()),
            self.millicpus,
            self.memory_bytes,
            tuple((kind, bound - self.subscribed.get(kind, 0)) for kind, bound in self.bound.items()),
        )

    def measure(self) -> tuple[object, ...]:
        """Everything counted, for comparison with a recount."""
        return (
            self.usable,
            {kind: mask for kind, mask in self.free.items() if mask},
            {kind: mask for kind, mask in self.taken.items() if mask},
            self.millicpus,
            self.memory_bytes,
            {kind: count for kind, count in self.subscribed.items() if count},
            self.resident_millicpus,
            self.resident_memory,
        )


class RoomIndex:
    """Desks by node, and the usable ones filed by free slots of each kind they own."""

    __slots__ = ("_mine", "desks", "files", "nodes", "totals")

    def __init__(self) -> None:
        self.desks: dict[NodeId, Desk] = {}
        self.nodes: list[NodeId] = []
        """The usable ones, sorted. Replaced, never changed in place, so forks share it."""
        self.files: dict[str, list[list[NodeId]]] = {}
        """By kind: at place ``f`` the sorted nodes with ``f`` free slots."""
        self.totals: dict[str, int] = {}
        """Free slots of usable nodes, by kind."""
        self._mine: dict[NodeId, None] = {}

    def fork(self) -> RoomIndex:
        """A copy that may be changed; both sides clone a desk before they change it from now on."""
        new = RoomIndex.__new__(RoomIndex)
        new.desks = self.desks.copy()
        new.nodes = self.nodes
        new.files = {kind: [file.copy() for file in files] for kind, files in self.files.items()}
        new.totals = self.totals.copy()
        new._mine = {}
        self._mine = {}
        return new

    def put(self, desk: Desk) -> None:
        """A new node, or another count of a known one."""
        self.drop(desk.node)
        self.desks[desk.node] = desk
        if desk.usable:
            nodes = self.nodes.copy()
            insort(nodes, desk.node)
            self.nodes = nodes
            for kind in desk.owned:
                self._file(desk.node, kind, desk.free_count(kind))

    def drop(self, node: NodeId) -> None:
        desk = self.desks.pop(node, None)
        self._mine.pop(node, None)
        if desk is not None and desk.usable:
            self.nodes = [name for name in self.nodes if name != node]
            for kind in desk.owned:
                self._unfile(node, kind, desk.free_count(kind))

    def take(self, placements: Iterable[Placement]) -> None:
        """Take the room of placements known to fit."""
        for placement in placements:
            desk = self._own(placement.node)
            before = desk.free.get(placement.kind, 0)
            desk.take(placement)
            if placement.slots and desk.usable:
                self._refile(desk, placement.kind, before.bit_count())

    def give(self, placements: Iterable[Placement]) -> None:
        """Give the room of placements back."""
        for placement in placements:
            desk = self._own(placement.node)
            before = desk.free.get(placement.kind, 0)
            desk.give(placement)
            if placement.slots and desk.usable:
                self._refile(desk, placement.kind, before.bit_count())

    def clamp(self, node: NodeId, other: Desk) -> None:
        """Keep of a node's room only what ``other`` has free as well."""
        desk = self._own(node)
        before = {kind: desk.free_count(kind) for kind in desk.free}
        desk.clamp(other)
        if desk.usable:
            for kind, count in before.items():
                self._refile(desk, kind, count)

    def _own(self, node: NodeId) -> Desk:
        desk = self.desks.get(node)
        if desk is None:
            raise BrokenInvariant("no such node in this pool", object=node)
        if node not in self._mine:
            desk = self.desks[node] = desk.clone()
            self._mine[node] = None
        return desk

    def _refile(self, desk: Desk, kind: str, before: int) -> None:
        after = desk.free_count(kind)
        if after != before and kind in desk.owned:
            self._unfile(desk.node, kind, before)
            self._file(desk.node, kind, after)

    def _file(self, node: NodeId, kind: str, free: int) -> None:
        files = self.files.setdefault(kind, [])
        while len(files) <= free:
            files.append([])
        insort(files[free], node)
        self.totals[kind] = self.totals.get(kind, 0) + free

    def _unfile(self, node: NodeId, kind: str, free: int) -> None:
        file = self.files[kind][free]
        del file[bisect_left(file, node)]
        self.totals[kind] -= free
