"""How items move in a call: from the ranks of a cell to its head, between heads, and back.

Small items climb the tree of heads and come down it as one list. Large ones are only announced there; they go around
the ring of heads (to everybody) or straight to the chief, so that no head sends more than everything once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clutch.runtime.distributed.calls import Call, Calls, contradiction
from clutch.runtime.distributed.far import Far, Parcel
from clutch.runtime.distributed.near import Arrived, Item, Line, Message, close_segments
from clutch.runtime.distributed.shape import Scope, children_of, parent_of

LARGE_BYTES = 32 << 10
UP, DOWN, AROUND, SYNC_UP, SYNC_DOWN = range(5)
"""Phases of a call: what is said in one is never taken for what is said in another."""


class Exchange:
    """One rank's lines and sockets. Every method is one phase of a call; all ranks of the scope take part in it."""

    def __init__(
        self, rank: int, calls: Calls, lines: dict[int, Line], far: Far | None, look: Callable[[], None]
    ) -> None:
        self._rank = rank
        self._calls = calls
        self._lines = lines
        self._far = far
        self._look = look

    def gather(self, scope: Scope, call: Call, own: Sequence[Item], until: float, phase: int = UP) -> list[Item] | None:
        """On the chief: the items of all ranks. Elsewhere nothing."""
        items = self._up(scope, call, own, until, phase)
        if items is None or len(scope.cells) == 1:
            return items
        small, large = _apart(items)
        everything = self._climb(scope, call, small, [item.rank for item in large], until, phase)
        assert self._far is not None
        if everything is None:
            if large:
                self._far.send([scope.chief], call, AROUND, large)
            return None
        found, announced = everything
        heads = dict.fromkeys(scope.heads[scope.cell_of(rank)] for rank in announced)
        for head in heads:
            if head != self._rank:
                found += self._far.receive(call, AROUND, head, until, self._look).items
        return [*found, *large]

    def spread(
        self, scope: Scope, call: Call, items: Sequence[Item] | None, root: int, until: float, phase: int = DOWN
    ) -> list[Item]:  # fmt: skip
        """On every rank: the items that ``root`` has."""
        cell, heads, index = scope.cell, scope.heads, scope.cell_index
        root_index = scope.cell_of(root)
        if self._rank != cell[0]:
            if self._rank == root:
                self._send_up(call, items or (), until, phase)
                return list(items or ())
            return self._receive(self._lines[cell[0]], call, phase, until).items
        arrived: list[Arrived] = []
        if items is None and index == root_index:
            arrived.append(self._receive(self._lines[root], call, phase, until))
            items = arrived[0].items
        if len(heads) > 1:
            items = self._among_heads(scope, call, items, root_index, until, phase)
        assert items is not None
        self._down(scope, call, items, until, phase, skip=root)
        close_segments((), arrived)
        return list(items)

    def exchange(self, scope: Scope, call: Call, own: Sequence[Item], until: float) -> list[Item]:
        """On every rank: the items of all ranks."""
        items = self._up(scope, call, own, until, UP)
        if items is None:
            return self._receive(self._lines[scope.cell[0]], call, DOWN, until).items
        if len(scope.cells) > 1:
            items = self._between(scope, call, items, until)
        self._down(scope, call, items, until, DOWN)
        return items

    def flush(self, until: float) -> None:
        if self._far is not None:
            self._far.flush(until, self._look)

    # -------------------------------------------------------------------------------------------- within a cell

    def _up(self, scope: Scope, call: Call, own: Sequence[Item], until: float, phase: int) -> list[Item] | None:
        """On the head: all items of its cell."""
        cell = scope.cell
        if self._rank != cell[0]:
            self._send_up(call, own, until, phase)
            return None
        items = list(own)
        for rank in cell[1:]:
            items += self._receive(self._lines[rank], call, phase, until).items
        return items

    def _send_up(self, call: Call, items: Sequence[Item], until: float, phase: int) -> None:
        (line,) = self._lines.values()
        message = Message(call, phase, self._rank, items)
        try:
            line.send(message, until, self._look)
        finally:
            message.close()

    def _down(
        self, scope: Scope, call: Call, items: Sequence[Item], until: float, phase: int, skip: int | None = None
    ) -> None:  # fmt: skip
        below = [rank for rank in scope.cell[1:] if rank != skip]
        if not below:
            return
        message = Message(call, phase, self._rank, items)
        try:
            for rank in below:
                self._lines[rank].send(message, until, self._look)
        finally:
            message.close()

    def _receive(self, line: Line, call: Call, phase: int, until: float) -> Arrived:
        arrived = line.receive(until, self._look)
        if arrived.call != call or arrived.phase != phase:
            close_segments((), [arrived])
            own = self._calls.against(arrived.call, call)
            raise contradiction(self._rank, own, arrived.source, arrived.call)
        return arrived

    # -------------------------------------------------------------------------------------------- between heads

    def _climb(
        self, scope: Scope, call: Call, small: Sequence[Item], large: Sequence[int], until: float, phase: int
    ) -> tuple[list[Item], list[int]] | None:  # fmt: skip
        """Up the tree: on its root all small items, and the ranks of the large ones."""
        assert self._far is not None
        heads, index = scope.heads, scope.cell_index
        items, later = list(small), list(large)
        for child in children_of(index, len(heads)):
            parcel = self._far.receive(call, phase, heads[child], until, self._look)
            items += parcel.items
            later += parcel.later
        above = parent_of(index, len(heads))
        if above is None:
            return items, later
        self._far.send([heads[above]], call, phase, items, later=later)
        return None

    def _between(self, scope: Scope, call: Call, items: list[Item], until: float) -> list[Item]:
        """Everything of all cells, on each head."""
        assert self._far is not None
        heads, index = scope.heads, scope.cell_index
        small, large = _apart(items)
        climbed = self._climb(scope, call, small, [item.rank for item in large], until, UP)
        below = [heads[child] for child in children_of(index, len(heads))]
        if climbed is not None:
            found, later = climbed
            self._far.send(below, call, DOWN, found, later=later)
        else:
            above = parent_of(index, len(heads))
            assert above is not None
            parcel = self._far.receive(call, DOWN, heads[above], until, self._look, lambda parcel: below)
            found, later = parcel.items, list(parcel.later)
        mine = {item.rank: item for item in items}
        found = [mine.get(item.rank, item) for item in found]
        if later:
            owners = {scope.cell_of(rank) for rank in later}
            found += self._around(scope, call, large, owners, until)
        return found

    def _around(self, scope: Scope, call: Call, large: list[Item], owners: set[int], until: float) -> list[Item]:
        """Around the ring: each head sends its own, then passes on what it gets, as it gets it."""
        assert self._far is not None
        heads, index = scope.heads, scope.cell_index
        count = len(heads)
        following = (index + 1) % count
        found = list(large)
        if index in owners:
            self._far.send([heads[following]], call, AROUND, large, chain=True)
        for back in range(1, count):
            owner = (index - back) % count
            if owner not in owners:
                continue
            onward = [] if following == owner else [heads[following]]
            before = heads[(index - 1) % count]
            found += self._far.receive(call, AROUND, before, until, self._look, _always(onward)).items
        return found

    def _among_heads(
        self, scope: Scope, call: Call, items: Sequence[Item] | None, root: int, until: float, phase: int
    ) -> list[Item]:  # fmt: skip
        """From one head to all: down a tree, or along a chain where it is large."""
        assert self._far is not None
        heads, index = scope.heads, scope.cell_index
        count = len(heads)
        below = [heads[child] for child in children_of(index, count, root)]
        following = [heads[(index + 1) % count]] if (index + 1) % count != root else []
        if items is None:
            parcel = self._far.receive(
                call, phase, None, until, self._look, lambda parcel: following if parcel.chain else below
            )
            return parcel.items
        chain = count > 2 and sum(item.size for item in items) > LARGE_BYTES
        self._far.send(following if chain else below, call, phase, items, chain=chain)
        return list(items)


def _apart(items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    return [item for item in items if item.size <= LARGE_BYTES], [item for item in items if item.size > LARGE_BYTES]


def _always(to: list[int]) -> Callable[[Parcel], list[int]]:
    return lambda parcel: to
