"""A request boiled down to numbers: what the fitting code and the queue look at.

Requests with the same demand are interchangeable for fitting, so each demand is made once per line of the queue. It
knows no node's state, no priority and no time.
"""

from __future__ import annotations

from clutch.core.scheduling.quota import group_of, user_scope, workspace_scope
from clutch.wire.ids import NodeId
from clutch.wire.resources import ANY
from clutch.wire.schedule import Part, Request
from clutch.wire.specs import Members, Split, Spread

CELL_PROMISE_S = 60.0
"""Work that promises to leave within this may borrow the interactive headroom (the default patience of a cell)."""


class Need:
    """One role: ``count`` units, each of so many slots, CPUs and bytes. A split is units of one slot."""

    __slots__ = (
        "avoid",
        "count",
        "even",
        "first_rank",
        "kind",
        "max_nodes",
        "memory_bytes",
        "millicpus",
        "role",
        "slots",
        "split",
        "spread",
        "subscribed",
        "subscribed_kind",
    )

    def __init__(self, part: Part, usual: str) -> None:
        self.role = part.role
        self.first_rank = part.first_rank
        self.spread = part.spread
        self.avoid = frozenset(() if part.spread is Spread.NONE else part.avoid)
        self.subscribed = part.subscribes.slots if part.subscribes else 0
        self.subscribed_kind = part.subscribes.kind if part.subscribes else "cuda"
        shape = part.shape
        if isinstance(shape, Split):
            self.split = True
            self.kind = _meant(shape.kind, usual)
            self.slots = 1
            self.count = shape.slots
            self.millicpus = shape.millicpus_per_slot
            self.memory_bytes = shape.memory_bytes_per_slot
            self.max_nodes = shape.max_nodes
            self.even = shape.even
        else:
            self.split = False
            self.kind = _meant(shape.each.kind, usual)
            self.slots = shape.each.slots
            self.count = shape.count
            self.millicpus = shape.each.millicpus
            self.memory_bytes = shape.each.memory_bytes
            self.max_nodes = 0
            self.even = False

    def relaxed(self, *, spread: bool = False, subscription: bool = False) -> Need:
        """The same need without a constraint, to find out whether that constraint is what it waits for."""
        new = Need.__new__(Need)
        for name in Need.__slots__:
            setattr(new, name, getattr(self, name))
        if spread:
            new.spread = Spread.NONE
            new.avoid = frozenset()
        if subscription:
            new.subscribed = 0
        return new


class Demand:
    """All roles of a request, with the nodes it may not or must use. Slots of any kind are of the pool's ``usual``."""

    __slots__ = ("borrows", "excluded", "interactive", "needs", "only", "slots", "slots_by_kind", "wait_limit_s")

    def __init__(self, request: Request, usual: str = ANY) -> None:
        self.needs = tuple(Need(part, usual) for part in request.parts)
        self.excluded = frozenset(request.excluded_nodes)
        cell = request.interactive
        self.interactive = cell is not None
        self.only: tuple[NodeId, ...] | None = tuple(sorted(dict.fromkeys(cell.nodes))) if cell else None
        self.wait_limit_s = cell.wait_limit_s if cell else 0.0
        self.slots_by_kind: dict[str, int] = {}
        for need in self.needs:
            if need.slots:
                self.slots_by_kind[need.kind] = self.slots_by_kind.get(need.kind, 0) + need.slots * need.count
        self.slots = sum(self.slots_by_kind.values())
        self.borrows = not is_firm(request)
        """It may use room kept for cells: whoever holds it promises to be gone in time."""

    def relaxed(self, *, exclusion: bool = False, spread: bool = False, subscription: bool = False) -> Demand:
        new = Demand.__new__(Demand)
        for name in Demand.__slots__:
            setattr(new, name, getattr(self, name))
        if exclusion:
            new.excluded = frozenset()
        if spread or subscription:
            new.needs = tuple(need.relaxed(spread=spread, subscription=subscription) for need in self.needs)
        return new


def _meant(kind: str, usual: str) -> str:
    return usual if kind == ANY else kind


def is_open(request: Request) -> bool:
    """Whether some of its slots are of whichever kind the pool has."""
    shapes = [part.shape for part in request.parts]
    return any((shape.kind if isinstance(shape, Split) else shape.each.kind) == ANY for shape in shapes)


def is_firm(request: Request) -> bool:
    """Whether work may stay on its slots longer than a cell would wait."""
    return not (request.preemptible and request.leave_within_s <= CELL_PROMISE_S)


def line_key(request: Request) -> tuple[object, ...]:
    """Requests with equal keys are interchangeable for fitting and for the rules of passing."""
    return (
        request.parts,
        request.excluded_nodes,
        request.interactive,
        request.preemptible,
        request.leave_within_s,
    )


def slots_wanted(request: Request) -> int:
    """All slots of a request, over roles and kinds."""
    total = 0
    for part in request.parts:
        shape = part.shape
        total += shape.count * shape.each.slots if isinstance(shape, Members) else shape.slots
    return total


def scopes_of(request: Request) -> tuple[str, str, str]:
    """The three things that may bound how much a request's owner holds: user, workspace, group."""
    return user_scope(request.owner), workspace_scope(request.workspace), "group:" + group_of(request)
