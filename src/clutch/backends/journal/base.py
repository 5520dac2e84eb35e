"""The journal's contract: who leads appends, what was appended is read back in order, start needs only the tail.

Every implementation passes ``clutch.testing.journal_suite``. The rules the suite tries to break:

- ``append`` is one transaction. When it returns, the batch survives a power cut. When it raises, nothing of it is
  visible, now or after a restart; the only exception is a connection that broke during the commit, after which the
  caller cannot know and must stop (law 4: a failed commit ends the process).
- Only the current leader appends. The check and the append are in the same transaction, on the store's own clock, so a
  leader that slept through its own replacement is refused with ``Stale``.
- Rows come back exactly as they were given, in order, without holes; a row that fails its checksum is ``Corrupt`` and
  names its index. Nothing is repaired silently.
- Storing something newer than this release can read is ``TooNew``; a full disk is ``DiskFull``; both change nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

import msgspec

from clutch.wire.journal import Batch, Chunk, Leadership, Origin, OutboxItem, Row, Snapshot
from clutch.wire.views import View


class Has(msgspec.Struct, frozen=True):
    """The column has this text somewhere in it, letter for letter."""

    text: str


Wanted = str | int | tuple[str, ...] | Has
Where = Mapping[str, Wanted]
"""What a view's columns must equal; of a tuple, any one."""


class Journal(Protocol):
    """Append a batch, read from an index, snapshot; and the leadership row that guards the first."""

    async def lead(self, holder: str, ttl_s: float) -> Leadership:
        """Take the lead for ``ttl_s`` seconds as the next term. ``Unavailable`` while another holder's time runs.

        A holder with an equal name takes over at once: a process that restarts under its own name need not wait. The
        caller makes the name say who it is (host, boot, process); its earlier self, if it still runs, is ``Stale``.
        """
        ...

    async def renew(self, ttl_s: float) -> None:
        """Stay leader for ``ttl_s`` more seconds. ``Stale`` when another has taken over."""
        ...

    async def append(self, batch: Batch) -> int:
        """Make a batch durable and return its last index. ``Stale`` unless this journal object still leads."""
        ...

    async def read(self, after: int, limit: int = 10_000) -> list[Row]:
        """The next rows behind ``after``, at most ``limit``, checked; empty at the end.

        ``NotFound`` when rows behind ``after`` were forgotten: start from the snapshot.
        """
        ...

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        """Keep this snapshot beside earlier ones. Rows are not removed. ``Stale`` unless this object still leads."""
        ...

    async def load_snapshot(self) -> Snapshot | None:
        """The newest snapshot that passes its checksum, or None.

        ``Corrupt`` when none passes and the rows they covered are forgotten: there is nothing to start from.
        """
        ...

    async def resign(self) -> None:
        """Give up the lead at once so that a standby need not wait for the term's end. Nothing if not leading."""
        ...

    async def close(self) -> None:
        """Release files and connections. The lead is kept until it expires, as after a crash."""
        ...


@runtime_checkable
class Views(Protocol):
    """The extra ability to answer questions about views."""

    async def view(self, table: str, key: str) -> View | None: ...

    async def page(self, table: str, where: Where, order_by: str, after: str, limit: int) -> list[View]:
        """Rows that match, ordered by a column and key (``-column``: both descending), behind the key ``after``.

        ``after`` is the last key of the page before, or empty. ``BadRequest`` for an unknown table or column.
        """
        ...


@runtime_checkable
class Outbox(Protocol):
    """The extra ability to list effects that wait."""

    async def pending(self, limit: int) -> list[OutboxItem]:
        """Undelivered items, oldest due first. The same token put twice is one item, as it was put last."""
        ...


@runtime_checkable
class Maintenance(Protocol):
    """The extra ability to copy a journal, and to start from a copy under a higher generation."""

    async def forget(self, before: int) -> int:
        """Remove rows with a lower index that a checked snapshot covers, and snapshots that lost their rows.

        Returns how many rows went. ``Stale`` unless this object still leads.
        """
        ...

    def export(self) -> AbstractAsyncContextManager[tuple[Origin, AsyncIterator[Chunk]]]:
        """One consistent copy while the leader goes on appending: where it begins and ends, then all of it."""
        ...

    async def adopt(self, origin: Origin, chunks: Iterable[Chunk]) -> None:
        """Fill an empty journal with a copy, in one transaction, under ``origin.generation``.

        ``Conflict`` when it is not empty or somebody leads it; ``Corrupt`` when the rows do not form the chain that
        ``origin`` promises.
        """
        ...


class FullJournal(Journal, Views, Outbox, Maintenance, Protocol):
    """What every way of ours can do; ``open_journal`` gives one."""
