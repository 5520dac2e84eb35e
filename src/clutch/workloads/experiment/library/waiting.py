"""Messages that wait for their webhooks, in the library's database: put there once, tried until they are settled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, UpdateBase, and_, delete, func, select, update

from clutch.master.access.database import Database
from clutch.master.access.sql import is_row, put_new
from clutch.workloads.experiment.library.tables import messages

WAITING_MAX = 1_000
"""Messages that wait for one webhook; when one more comes the oldest is given up."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """One message for one webhook."""

    webhook: str
    token: str
    payload: bytes
    tries: int
    next_at: float
    at: float


class Queued(msgspec.Struct, frozen=True):
    """What waits for one webhook."""

    count: int = 0
    next_at: float = 0.0
    tries: int = 0
    """Of the message that was tried most often."""


class Messages:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, hooks: Iterable[str], token: str, payload: bytes, now: float) -> list[Waiting]:
        """The message waits for these webhooks (it may have before); those that are given up to make room."""

        def work(connection: Connection) -> list[Waiting]:
            crowded: list[Waiting] = []
            for hook in hooks:
                put_new(connection, messages, webhook=hook, token=token, payload=payload, tries=0, next_at=now, at=now)
                here = messages.c.webhook == hook
                count = connection.execute(select(func.count()).where(here)).scalar_one()
                if count > WAITING_MAX:
                    oldest = select(messages).where(here).order_by(messages.c.at, messages.c.token)
                    crowded += [_waiting(row) for row in connection.execute(oldest.limit(count - WAITING_MAX))]
            for one in crowded:
                connection.execute(delete(messages).where(_is(one)))
            return crowded

        return await self._database.write(work)

    async def queues(self) -> dict[str, Queued]:
        """By webhook: how much waits for it, and when the first of that is due."""
        counted = select(
            messages.c.webhook, func.count(), func.min(messages.c.next_at), func.max(messages.c.tries)
        ).group_by(messages.c.webhook)
        found = await self._database.read(lambda connection: connection.execute(counted).all())
        return {hook: Queued(count, next_at, tries) for hook, count, next_at, tries in found}

    async def due(self, hook: str, now: float, limit: int) -> list[Waiting]:
        """Of one webhook, the longest due first."""
        question = select(messages).where(messages.c.webhook == hook, messages.c.next_at <= now)
        question = question.order_by(messages.c.next_at, messages.c.at, messages.c.token).limit(limit)
        found = await self._database.read(lambda connection: connection.execute(question).all())
        return [_waiting(row) for row in found]

    async def expire(self, hook: str, before: float) -> int:
        """Give up what has waited for one webhook since before this moment; how much that was."""
        old = and_(messages.c.webhook == hook, messages.c.at < before)
        return await self._database.write(lambda connection: connection.execute(delete(messages).where(old)).rowcount)


def tried(one: Waiting, next_at: float) -> UpdateBase:
    """It was not taken, and is tried again then."""
    return update(messages).where(_is(one)).values(tries=one.tries + 1, next_at=next_at)


def settled(one: Waiting) -> UpdateBase:
    """It was taken, refused for good or given up."""
    return delete(messages).where(_is(one))


def _is(one: Waiting) -> ColumnElement[bool]:
    return is_row(messages, webhook=one.webhook, token=one.token)


def _waiting(row: Row[Any]) -> Waiting:
    return msgspec.convert(row, Waiting, from_attributes=True)
