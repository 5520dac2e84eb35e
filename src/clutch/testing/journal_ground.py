"""What the journal's suite stands on: storage that can be harmed, and things to put into it.

A ``Ground`` is the storage under one journal as a test sees it: it opens the journal again and again, lets time pass on
the store's clock, and does real harm to what is stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Protocol

from msgspec.structs import replace

from clutch.backends.journal.base import FullJournal, Journal
from clutch.wire.errors import ClutchError
from clutch.wire.journal import Batch, Leadership, OutboxItem, Row
from clutch.wire.views import NodeView, TaskView

TTL_S = 0.3


class Ground(Protocol):
    """Storage for one journal. Everything it opens is closed by whoever made the ground."""

    async def open(self) -> FullJournal: ...

    async def outlive(self, ttl_s: float) -> None:
        """Let this much time pass on the store's clock."""
        ...

    async def damage_row(self, index: int) -> None:
        """Change one bit of a stored row."""
        ...

    async def lose_rows(self, first: int, last: int) -> None:
        """Remove stored rows behind the journal's back."""
        ...

    async def damage_snapshot(self, age: int) -> None:
        """Change one bit of a stored snapshot: the newest is 0, the one before it 1."""
        ...


class FullGround(Ground, Protocol):
    """Storage on a disk that is small enough to fill."""

    async def free_space(self) -> None:
        """Make room again."""
        ...


class CrashingGround(Ground, Protocol):
    """Storage whose writer can be cut off in the middle of a write."""

    async def crash_while_appending(self, batch_rows: int) -> int:
        """Append numbered batches (see ``numbered_batch``) until the power is cut; the last acknowledged index."""
        ...


Check = Callable[[Ground], Awaitable[None]]


async def refused(kind: type[ClutchError], call: Awaitable[Any]) -> ClutchError:
    """The error, which must be of this very kind and say cause and object."""
    try:
        await call
    except ClutchError as error:
        assert type(error) is kind, f"expected {kind.__name__}, got {error!r}: {error}"
        assert error.cause
        assert error.object, f"{error!r} does not say what it is about"
        return error
    raise AssertionError(f"expected {kind.__name__}, nothing was raised")


def make_rows(lead: Leadership, first: int, count: int, size: int = 32) -> tuple[Row, ...]:
    """Rows whose payload no store can compress, the same ones each time."""
    return tuple(
        Row(n, lead.term, 1_000.0 + n / 8, "test", "Happened", 1, Random(n).randbytes(size))
        for n in range(first, first + count)
    )


def task(key: str, **changes: Any) -> TaskView:
    plain = TaskView(
        key=key, kind="trial", name=key, pool="default", owner="ann", workspace="w", state="waiting", reason="",
        detail="", priority=50, epoch=0, restarts=0, slots=1, submitted_at=0.0, ended_at=0.0,
    )  # fmt: skip
    return replace(plain, **changes)


def node(key: str) -> NodeView:
    return NodeView(
        key=key, pool="default", state="ready", reason="", slots=8, slots_held=0, millicpus=64_000,
        memory_bytes=2**40, changed_at=1.5,
    )  # fmt: skip


def numbered_batch(lead: Leadership, first: int, count: int) -> Batch:
    """A batch whose parts all say its last index, so that a half-applied one shows."""
    last = first + count - 1
    rows = make_rows(lead, first, count, size=256)
    views = (task("counter", epoch=last), task(f"t{last}"))
    return Batch(rows, views, (OutboxItem(f"o{last}", "webhook", float(last), b""),))


async def read_all(journal: Journal, after: int = 0, limit: int = 10_000) -> list[Row]:
    rows: list[Row] = []
    while found := await journal.read(after, limit):
        rows += found
        after = found[-1].index
    return rows
