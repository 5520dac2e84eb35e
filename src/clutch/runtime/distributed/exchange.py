"""How items move in a call: from the ranks of a cell to its head, between heads, and back.

A few heads send each other what their cells have, all at once: one message each way. Where there are more, small items
climb the tree of heads and come down it as one list. Large ones are only announced there; they go around the ring of
heads (to everybody) or straight to the chief, so that no head sends more than everything once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from clutch.runtime.distributed.calls import Call, Calls, contradiction
from clutch.runtime.distributed.far import Far, Parcel
from clutch.runtime.distributed.near import (
    INLINE_BYTES,
    SHORT_BYTES,
    Arrived,
    Item,
    Line,
    Message,
    beginning,
    close_segments,
    settled,
)
from clutch.runtime.distributed.payload import Packed, list_of, unpack, unpack_list
from clutch.runtime.distributed.shape import DIRECT_UP_TO, Scope, children_of, parent_of

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

    def meet(self, scope: Scope, call: Call, until: float) -> None:
        """Until all have come."""
        if len(scope.heads) <= DIRECT_UP_TO:
            if self._rank != scope.head:
                self._send_up(call, (), until, SYNC_UP)
                self._hear(self._lines[scope.head], call, SYNC_DOWN, until)
                return
            for rank in scope.cell[1:]:
                self._hear(self._lines[rank], call, SYNC_UP, until)
            self._directly(scope, call, (), until, SYNC_UP)
            self._say_down(scope.cell[1:], beginning(call, SYNC_DOWN), until)
            return
        items = self.gather(scope, call, (), until, SYNC_UP)
        self.spread(scope, call, items, scope.chief, until, SYNC_DOWN)

    def gather(self, scope: Scope, call: Call, own: Sequence[Item], until: float, phase: int = UP) -> list[Item] | None:
        """On the chief: the items of all ranks, in their order. Elsewhere nothing."""
        if self._rank != scope.head:
            self._send_up(call, own, until, phase)
            return None
        items = list(own)
        for rank in scope.cell[1:]:
            items += self._receive(self._lines[rank], call, phase, until, rank).items
        if len(scope.cells) == 1:
            return items
        small, large = _apart(items)
        everything = self._climb(scope, call, small, [item.rank for item in large], until, phase)
        assert self._far is not None
        if everything is None:
            if large:
                self._far.send([scope.chief], call, AROUND, large)
            return None
        found, announced = everything
        for head in dict.fromkeys(scope.heads[scope.cell_of(rank)] for rank in announced):
            if head != self._rank:
                found += self._far.receive(call, AROUND, head, until, self._look).items
        return _ordered([*found, *large])

    def spread(
        self, scope: Scope, call: Call, items: Sequence[Item] | None, root: int, until: float, phase: int = DOWN
    ) -> list[Item]:  # fmt: skip
        """On every rank: what ``root`` has, one item or none."""
        if self._rank != scope.head:
            if self._rank == root:
                self._send_up(call, items or (), until, phase)
                return list(items or ())
            return self._receive(self._lines[scope.head], call, phase, until, root).items
        arrived: list[Arrived] = []
        if items is None and scope.cell_index == scope.cell_of(root):
            arrived.append(self._receive(self._lines[root], call, phase, until, root))
            items = arrived[0].items
        if len(scope.heads) > 1:
            items = self._among_heads(scope, call, items, scope.cell_of(root), until, phase)
        assert items is not None
        body = _short(items)
        below = [rank for rank in scope.cell[1:] if rank != root]
        if body is not None:
            self._say_down(below, beginning(call, phase) + body, until)
        else:
            self._send_down(below, call, items, until, phase)
        close_segments((), arrived)
        return list(items)

    def allgather(self, scope: Scope, call: Call, packed: Packed, until: float) -> list[Any]:
        """On every rank: the values of all ranks. Short ones, the usual case, are never looked at on their way."""
        own = self.item(scope, packed)
        if self._rank != scope.head:
            self._send_up(call, [own], until, UP)
            came = self._hear(self._lines[scope.head], call, DOWN, until)
            found = unpack_list(came) if isinstance(came, bytes) else _values(came.items)
            close_segments([own] if isinstance(came, bytes) else [own, *came.items])
            return found
        items = [own]
        for rank in scope.cell[1:]:
            items += self._receive(self._lines[rank], call, UP, until, rank).items
        if len(scope.cells) > 1:
            items = _ordered(self._between(scope, call, items, until))
        total = 0
        for item in items:
            total += len(item.packed.body) if not item.packed.buffers else INLINE_BYTES
        if total < INLINE_BYTES:
            listed = list_of([item.packed.body for item in items])
            self._say_down(scope.cell[1:], beginning(call, DOWN) + listed, until)
            return unpack_list(listed)
        self._send_down(scope.cell[1:], call, items, until, DOWN)
        found = _values(items)
        close_segments(items)
        return found

    def item(self, scope: Scope, packed: Packed, rank: int | None = None) -> Item:
        """Ready to be sent: in sealed memory where others of the cell will map it."""
        item = Item(self._rank if rank is None else rank, packed)
        if len(scope.cell) == 1 or (not packed.buffers and len(packed.body) <= SHORT_BYTES):
            return item
        return settled(item)

    def flush(self, until: float) -> None:
        if self._far is not None:
            self._far.flush(until, self._look)

    # -------------------------------------------------------------------------------------------- within a cell

    def _send_up(self, call: Call, items: Sequence[Item], until: float, phase: int) -> None:
        (line,) = self._lines.values()
        body = _short(items)
        if body is not None:
            line.say(beginning(call, phase) + body, until, self._look)
            return
        message = Message(call, phase, self._rank, items)
        try:
            line.send(message, until, self._look)
        finally:
            message.close()

    def _say_down(self, below: Sequence[int], data: bytes, until: float) -> None:
        for rank in below:
            self._lines[rank].say(data, until, self._look)

    def _send_down(self, below: Sequence[int], call: Call, items: Sequence[Item], until: float, phase: int) -> None:
        if not below:
            return
        message = Message(call, phase, self._rank, items)
        try:
            for rank in below:
                self._lines[rank].send(message, until, self._look)
        finally:
            message.close()

    def _hear(self, line: Line, call: Call, phase: int, until: float) -> bytes | Arrived:
        came = line.hear(beginning(call, phase), until, self._look)
        if not isinstance(came, bytes) and (came.call != call or came.phase != phase):
            close_segments((), [came])
            own = self._calls.against(came.call, call)
            raise contradiction(self._rank, own, came.source, came.call)
        return came

    def _receive(self, line: Line, call: Call, phase: int, until: float, owner: int) -> Arrived:
        """A short message holds one value, of this owner, or none."""
        came = self._hear(line, call, phase, until)
        if isinstance(came, bytes):
            return Arrived(call, phase, line.rank, [Item(owner, Packed(came, []))] if came else [], [])
        return came

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
        if len(scope.heads) <= DIRECT_UP_TO:
            return [*items, *self._directly(scope, call, items, until, UP)]
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
            parcel = self._far.receive(call, DOWN, heads[above], until, self._look, _always(below))
            found, later = parcel.items, list(parcel.later)
        mine = {item.rank: item for item in items}
        found = [mine.get(item.rank, item) for item in found]
        if later:
            owners = {scope.cell_of(rank) for rank in later}
            found += self._around(scope, call, large, owners, until)
        return found

    def _directly(self, scope: Scope, call: Call, items: Sequence[Item], until: float, phase: int) -> list[Item]:
        """To every other head what this cell has; from each what its cell has."""
        found: list[Item] = []
        others = [head for head in scope.heads if head != self._rank]
        if others:
            assert self._far is not None
            self._far.send(others, call, phase, items)
            for head in others:
                found += self._far.receive(call, phase, head, until, self._look).items
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


def _short(items: Sequence[Item]) -> bytes | None:
    """What a short message holds of these, if one can hold them."""
    if not items:
        return b""
    packed = items[0].packed
    if len(items) > 1 or packed.buffers or len(packed.body) > SHORT_BYTES:
        return None
    body: bytes = packed.body
    return body


def _ordered(items: list[Item]) -> list[Item]:
    return sorted(items, key=lambda item: item.rank)


def _values(items: Sequence[Item]) -> list[Any]:
    return [unpack(item.packed) for item in items]


def _always(to: list[int]) -> Callable[[Parcel], list[int]]:
    return lambda parcel: to
