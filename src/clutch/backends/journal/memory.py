"""One process's way to a ``MemoryStore``: the journal of the simulator, of tests, and of a master that may forget.

It never looks at a real clock, starts no thread, draws no chance and suspends only inside the fault hook.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from clutch.backends.journal.base import Has, Wanted, Where
from clutch.backends.journal.platter import CommitHook, MemoryStore
from clutch.backends.journal.shapes import (
    TABLES,
    Value,
    check_batch,
    check_origin,
    check_question,
    check_snapshot,
    no_such_page,
)
from clutch.wire.errors import Conflict, Stale, Unavailable
from clutch.wire.journal import Batch, Chunk, Leadership, Origin, OutboxItem, Row, Snapshot
from clutch.wire.views import View

__all__ = ["CommitHook", "MemoryJournal", "MemoryStore"]


class MemoryJournal:
    """One process's way to a ``MemoryStore``."""

    def __init__(self, store: MemoryStore, *, hook: CommitHook | None = None) -> None:
        """``hook`` is this process's own; the store's is used otherwise."""
        self.store = store
        self._hook = hook
        self._lead: Leadership | None = None

    def _leading(self) -> Leadership:
        lead = self._lead
        if lead is None or lead.term != self.store.term or not self.store.holder:
            self._lead = None
            raise Stale(
                f"this process leads no longer; the journal is at term {self.store.term}",
                object="journal",
                next_step="Stop; the present leader goes on.",
            )
        return lead

    async def lead(self, holder: str, ttl_s: float) -> Leadership:
        store = self.store
        now = store.clock()
        if store.holder and store.holder != holder and store.expires_at > now:
            raise Unavailable(
                f"{store.holder} leads for another {store.expires_at - now:.1f} s",
                object="journal",
                next_step="Wait, or stop that process.",
            )
        store.term += 1
        store.holder, store.expires_at = holder, now + ttl_s
        self._lead = Leadership(store.generation, store.term, holder, store.last_index)
        return self._lead

    async def renew(self, ttl_s: float) -> None:
        self._leading()
        self.store.expires_at = self.store.clock() + ttl_s

    async def append(self, batch: Batch) -> int:
        hook = self._hook or self.store.hook
        if hook is not None:
            await hook.before_commit(batch)
        lead = self._leading()
        check_batch(batch, lead, self.store.last_index)
        self.store.write(batch)
        last = self.store.last_index
        if hook is not None:
            await hook.after_commit(batch)
        return last

    async def read(self, after: int, limit: int = 10_000) -> list[Row]:
        return self.store.read(after, limit)

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        self._leading()
        check_snapshot(snapshot, self.store.last_index)
        self.store.keep_snapshot(snapshot)

    async def load_snapshot(self) -> Snapshot | None:
        return self.store.snapshot()

    async def resign(self) -> None:
        if self._lead is not None and self._lead.term == self.store.term:
            self.store.holder, self.store.expires_at = "", 0.0
        self._lead = None

    async def close(self) -> None:
        self._lead = None

    async def view(self, table: str, key: str) -> View | None:
        return self.store.views(table).get(key)

    async def page(self, table: str, where: Where, order_by: str, after: str, limit: int) -> list[View]:
        column, descending = check_question(table, where, order_by, limit)
        views = self.store.views(table)

        def place(view: View) -> tuple[Value, str]:
            return (getattr(view, column), view.key)

        found = [view for view in views.values() if all(_is(getattr(view, name), want) for name, want in where.items())]
        found.sort(key=place, reverse=descending)
        if not after:
            return found[:limit]
        if column == "key":
            return [v for v in found if (v.key < after if descending else v.key > after)][:limit]
        if after not in views:
            raise no_such_page(table, after)
        edge = place(views[after])
        return [v for v in found if (place(v) < edge if descending else place(v) > edge)][:limit]

    async def pending(self, limit: int) -> list[OutboxItem]:
        return self.store.outbox()[:limit]

    async def forget(self, before: int) -> int:
        self._leading()
        snapshot = self.store.snapshot()
        if snapshot is None:
            return 0
        return self.store.forget(min(before, snapshot.index + 1))

    @asynccontextmanager
    async def export(self) -> AsyncIterator[tuple[Origin, AsyncIterator[Chunk]]]:
        store = MemoryStore.from_bytes(self.store.serialise(), self.store.clock)
        origin = Origin(
            store.generation,
            store.term,
            store.base_index,
            store.base_checksum,
            store.last_index,
            store.last_checksum,
        )
        yield origin, _chunks(store)

    async def adopt(self, origin: Origin, chunks: Iterable[Chunk]) -> None:
        store = self.store
        led = bool(store.holder) and store.expires_at > store.clock()
        if led or not store.is_empty():
            raise Conflict(
                f"the journal is led by {store.holder}" if led else "the journal is not empty",
                object="journal",
                next_step="Restore into a new, empty journal.",
            )
        filled = MemoryStore(store.clock, store.hook)
        filled.base_index, filled.base_checksum = origin.base_index, origin.base_checksum
        for chunk in chunks:
            if chunk.snapshot is not None:
                filled.keep_snapshot(chunk.snapshot)
            filled.write(Batch(chunk.rows, chunk.views, chunk.outbox))
        check_origin(filled.last_index, filled.last_checksum, origin.last_index, origin.last_checksum)
        filled.generation, filled.term = origin.generation, max(store.term, origin.term)
        store.become(filled)


def _is(value: Value, want: Wanted) -> bool:
    if isinstance(want, Has):
        return isinstance(value, str) and want.text in value
    return value in want if isinstance(want, tuple) else value == want


async def _chunks(store: MemoryStore) -> AsyncIterator[Chunk]:
    yield Chunk(snapshot=store.snapshot())
    after = store.base_index
    while rows := store.read(after, 1_000):
        yield Chunk(rows=tuple(rows))
        after = rows[-1].index
    for table in TABLES:
        yield Chunk(views=tuple(store.views(table).values()))
    yield Chunk(outbox=tuple(store.outbox()))
