"""Who sits where: ranks, the nodes they are on, and the ways between them. Pure.

A *node* is what the ranks say it is. A *cell* are those ranks of a node that can reach each other's unix sockets; it is
the whole node unless its members live in different containers. The lowest rank of a cell is its *head*: only heads
speak over the network. A few heads speak with each other directly. Where there are more, small messages go up and down
a tree of heads, large ones around their ring.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from clutch.wire.errors import BadRequest

DIRECT_UP_TO = 4
"""Up to so many heads, each speaks with each of the others."""
STAR_UP_TO = 16
"""Up to so many heads, each speaks with the first one."""
FAN_OUT = 4
"""How many each head of a tree feeds, where there are more."""


class Seat(msgspec.Struct, frozen=True, array_like=True):
    """What a rank says of itself when it comes."""

    rank: int
    size: int
    local_rank: int = 0
    local_size: int = 1
    node: str = ""
    """Which node it is on; empty: that of the rank which its own local rank counts from."""
    place: str = ""
    """Processes of one place reach each other's unix sockets."""
    address: str = ""
    port: int = 0
    door: str = ""
    """Path of its unix socket."""
    process: int = 0

    @property
    def node_key(self) -> str:
        return self.node or f"from {self.rank - self.local_rank}"


class Scope:
    """Those who take part in a call, as one of them sees it: all ranks, or those of its node."""

    def __init__(self, name: str, rank: int, ranks: tuple[int, ...], cells: tuple[tuple[int, ...], ...]) -> None:
        """``cells`` are in the order of their heads; the first head is the chief."""
        self.name = name
        self.rank = rank
        self.ranks = ranks
        self.cells = cells
        self.chief = ranks[0]
        self.key = f"{name}:{ranks[0]}"
        """The same for all who take part, and for nobody else."""
        self._cell_of = {member: index for index, cell in enumerate(cells) for member in cell}
        self.cell_index = self._cell_of[rank]
        self.cell = cells[self.cell_index]
        self.head = self.cell[0]
        self.heads = tuple(cell[0] for cell in cells)

    def cell_of(self, rank: int) -> int:
        return self._cell_of[rank]


class Shape(msgspec.Struct, frozen=True):
    """All seats, by rank."""

    seats: tuple[Seat, ...]
    nodes: tuple[tuple[int, ...], ...]
    """Ranks of each node in the order of local ranks; nodes in the order of their lowest rank."""

    def node_of(self, rank: int) -> int:
        return next(index for index, ranks in enumerate(self.nodes) if rank in ranks)

    def world(self, rank: int) -> Scope:
        return Scope("world", rank, tuple(range(len(self.seats))), self._cells(self.nodes))

    def local(self, rank: int) -> Scope:
        node = self.nodes[self.node_of(rank)]
        return Scope("local", rank, node, self._cells((node,)))

    def _cells(self, nodes: Iterable[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
        found: list[tuple[int, ...]] = []
        for node in nodes:
            by_place: dict[str, list[int]] = {}
            for rank in sorted(node):
                by_place.setdefault(self.seats[rank].place or f"rank {rank}", []).append(rank)
            found += [tuple(ranks) for ranks in by_place.values()]
        return tuple(sorted(found))


def arrange(seats: Sequence[Seat]) -> Shape:
    """The shape of a group whose ranks have all come. ``BadRequest`` names whoever contradicts the others."""
    ordered = sorted(seats, key=lambda seat: seat.rank)
    size = len(ordered)
    for rank, seat in enumerate(ordered):
        if seat.rank != rank or seat.size != size:
            raise BadRequest(f"it says rank {seat.rank} of {seat.size}, and {size} came", object=f"rank {seat.rank}")
    by_node: dict[str, list[Seat]] = {}
    for seat in ordered:
        by_node.setdefault(seat.node_key, []).append(seat)
    nodes = []
    for members in by_node.values():
        members.sort(key=lambda seat: seat.local_rank)
        said = [(seat.local_rank, seat.local_size) for seat in members]
        if said != [(local_rank, len(members)) for local_rank in range(len(members))]:
            listed = ", ".join(f"rank {s.rank} says {s.local_rank} of {s.local_size}" for s in members[:16])
            raise BadRequest(
                f"its {len(members)} ranks contradict each other: {listed}",
                object=f"node of rank {members[0].rank}",
                next_step="Count local ranks from 0 on each node, and say how many there are.",
            )
        ranks = tuple(seat.rank for seat in members)
        if list(ranks) != sorted(ranks):
            raise BadRequest(
                f"its local ranks do not grow with its ranks: {ranks[:16]}", object=f"node of rank {min(ranks)}"
            )
        nodes.append(ranks)
    return Shape(tuple(ordered), tuple(sorted(nodes, key=min)))


def check_seat(seat: Seat) -> None:
    """``BadRequest`` for what no group could have."""
    if not 0 <= seat.rank < seat.size:
        raise BadRequest(f"rank {seat.rank} is not from 0 to {seat.size - 1}", object="group")
    if not 0 <= seat.local_rank < seat.local_size <= seat.size:
        raise BadRequest(
            f"local rank {seat.local_rank} of {seat.local_size} cannot be, with {seat.size} ranks in all",
            object=f"rank {seat.rank}",
        )


# -- the tree of heads --------------------------------------------------------------------------------------------


def parent_of(index: int, count: int, root: int = 0) -> int | None:
    """Whom the head of this index hears from, in a tree with this root; None: it is the root."""
    place = (index - root) % count
    if place == 0:
        return None
    return (_above(place, count) + root) % count


def children_of(index: int, count: int, root: int = 0) -> list[int]:
    place = (index - root) % count
    if count <= STAR_UP_TO:
        below = range(1, count) if place == 0 else range(0)
    else:
        first = place * FAN_OUT + 1
        below = range(min(first, count), min(first + FAN_OUT, count))
    return [(child + root) % count for child in below]


def _above(place: int, count: int) -> int:
    return 0 if count <= STAR_UP_TO else (place - 1) // FAN_OUT
