"""What was asked for, by whom, and how it ended: the store of it, and the lane that writes it.

``Lane.note`` never waits: entries go into a bounded queue, and one writer takes them in batches. If the database is
away for so long that the queue is full, further entries are counted, and that count is an entry of its own, in their
place. ``close`` returns when everything is written.
"""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec
import structlog
from sqlalchemy import insert, select

from clutch.master.access.database import Database
from clutch.master.access.tables import audit
from clutch.wire.access import AuditEntry
from clutch.wire.errors import ClutchError

QUEUE_MAX = 20_000
BATCH_MAX = 500
AGAIN_S = 1.0
CLOSE_S = 20.0
TEXT_MAX = 2000


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Empty and 0 ask for nothing in particular."""

    who: str = ""
    action: str = ""
    object: str = ""
    since: float = 0.0
    until: float = 0.0


class Audit:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, entries: list[AuditEntry]) -> None:
        rows = [
            {"at": e.at, "who": e.who, "action": e.action, "object": e.object, "status": e.status, "detail": e.detail}
            for e in entries
        ]
        await self._database.write(lambda connection: connection.execute(insert(audit), rows).rowcount)

    async def page(self, asked: AuditFilter, before: int, limit: int) -> list[AuditEntry]:
        """Newest first, with an index below ``before`` (0: from the newest)."""
        question = select(audit).order_by(audit.c["index"].desc()).limit(limit)
        if before:
            question = question.where(audit.c["index"] < before)
        for name in ("who", "action", "object"):
            if getattr(asked, name):
                question = question.where(audit.c[name] == getattr(asked, name))
        if asked.since:
            question = question.where(audit.c.at >= asked.since)
        if asked.until:
            question = question.where(audit.c.at < asked.until)
        found = await self._database.read(lambda connection: connection.execute(question).mappings().all())
        return [AuditEntry(**row) for row in found]

    async def forget(self, before: float) -> int:
        """Remove entries older than a time; how many."""
        statement = audit.delete().where(audit.c.at < before)
        return await self._database.write(lambda connection: connection.execute(statement).rowcount)


def _storable(entry: AuditEntry) -> AuditEntry:
    """The entry as any database keeps it. What somebody put into a path must not hold up the entries behind it."""

    def kept(text: str) -> str:
        return text.encode("utf-8", "replace").decode().replace("\x00", "\ufffd")[:TEXT_MAX]

    return AuditEntry(
        at=entry.at,
        who=kept(entry.who),
        action=kept(entry.action),
        object=kept(entry.object),
        status=entry.status,
        detail=kept(entry.detail),
    )


class Lane:
    """The way of entries to the store."""

    def __init__(self, audit: Audit, queue_max: int = QUEUE_MAX) -> None:
        self._audit = audit
        self._queue_max = queue_max
        self._waiting: deque[AuditEntry] = deque()
        self._lost: list[AuditEntry] = []
        self._lost_count = 0
        self._news = asyncio.Event()
        self._flushing: asyncio.Task[None] | None = None
        self._log = structlog.get_logger("audit")

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def note(self, entry: AuditEntry) -> None:
        entry = _storable(entry)
        if len(self._waiting) < self._queue_max:
            self._waiting.append(entry)
        else:
            self._lost = [*self._lost[:1], entry] if self._lost_count else [entry]
            self._lost_count += 1
        self._news.set()

    async def run(self) -> None:
        """Write what comes until cancelled. What is then left, ``close`` writes."""
        while True:
            await self._news.wait()
            try:
                await self.flush()
            except ClutchError as error:
                self._log.error("audit cannot be written", waiting=self.waiting, error=str(error))
                await asyncio.sleep(AGAIN_S)

    async def flush(self) -> None:
        """Returns when all that was noted before is in the store. Cancelling it leaves a write that has begun alone,
        or an entry could be written twice."""
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush())
        await asyncio.shield(self._flushing)

    async def _flush(self) -> None:
        self._news.clear()
        while self._waiting or self._lost_count:
            batch = [self._waiting[i] for i in range(min(BATCH_MAX, len(self._waiting)))]
            gap = self._gap() if len(batch) == len(self._waiting) else []
            told = self._lost_count if gap else 0
            await self._audit.add([*batch, *gap])
            for _ in batch:
                self._waiting.popleft()
            self._lost_count -= told

    def _gap(self) -> list[AuditEntry]:
        """An entry that stands for those which had no place."""
        if not self._lost_count:
            return []
        first, last = self._lost[0], self._lost[-1]
        detail = f"{self._lost_count} entries were lost between {first.at:.3f} and {last.at:.3f}: the store was away"
        return [AuditEntry(at=last.at, who="master", action="audit_gap", object="audit", status=507, detail=detail)]

    async def close(self) -> None:
        """Write the rest. An error is the caller's: it was not complete."""
        async with asyncio.timeout(CLOSE_S):
            await self.flush()
