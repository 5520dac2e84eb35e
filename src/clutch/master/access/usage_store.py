"""Usage as it is stored: the days' rows, and in the same transaction how far the journal was accounted."""

from __future__ import annotations

import datetime

import msgspec
from sqlalchemy import Connection, delete, func, literal, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite

from clutch.master.access.accumulator import Account, Accumulator, Changes, Holding, OpenTask
from clutch.master.access.database import Database
from clutch.master.access.sql import put
from clutch.master.access.tables import usage, usage_holdings, usage_mark, usage_tasks
from clutch.wire.access import UsageRow
from clutch.wire.errors import BadRequest, Stale
from clutch.wire.ids import NodeId, TaskId

KEYS = ("day", "user", "workspace", "project", "pool")
_EPOCH = datetime.date(1970, 1, 1)


class UsageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows, and summed up by what. Empty asks for nothing in particular."""

    since: str = ""
    until: str = ""
    user: str = ""
    workspaces: tuple[str, ...] | None = None
    project: str = ""
    pool: str = ""
    by: tuple[str, ...] = KEYS


def day_text(day: int) -> str:
    return (_EPOCH + datetime.timedelta(days=day)).isoformat()


class UsageRows:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, asked: UsageFilter, after: str, limit: int) -> list[UsageRow]:
        """Sums by the asked columns (the others are empty), in their order, behind the cursor ``after``."""
        keys = [usage.c[name] if name in asked.by else literal("") for name in KEYS]
        named = [key.label(name) for key, name in zip(keys, KEYS, strict=True)]
        sums = [func.sum(usage.c[name]).label(name) for name in ("slot_seconds_held", "slot_seconds_used", "tasks")]
        question = select(*named, *sums).limit(limit)
        if asked.since:
            question = question.where(usage.c.day >= asked.since)
        if asked.until:
            question = question.where(usage.c.day <= asked.until)
        for name in ("user", "project", "pool"):
            if getattr(asked, name):
                question = question.where(usage.c[name] == getattr(asked, name))
        if asked.workspaces is not None:
            question = question.where(usage.c.workspace.in_(asked.workspaces))
        grouped = [usage.c[name] for name in KEYS if name in asked.by]
        if grouped:
            question = question.group_by(*grouped).order_by(*grouped)
            if after:
                question = question.where(tuple_(*grouped) > tuple_(*_cursor(after, len(grouped))))
        found = await self._database.read(lambda connection: connection.execute(question).all())
        return [
            UsageRow(
                **{name: getattr(row, name) for name in KEYS},
                slot_seconds_held=max(0.0, float(row.slot_seconds_held)),
                slot_seconds_used=float(row.slot_seconds_used),
                tasks=int(row.tasks),
            )
            for row in found
            if row.tasks is not None
        ]

    async def load(self) -> tuple[int, Accumulator]:
        """The turn of the last write, and an accumulator that goes on from it."""

        def work(connection: Connection) -> tuple[int, Accumulator]:
            found = Accumulator()
            mark = connection.execute(select(usage_mark)).first()
            tasks = {
                TaskId(row.task): OpenTask(
                    Account(row.user, row.workspace, row.project, row.pool), int(row.counted_day)
                )
                for row in connection.execute(select(usage_tasks).order_by(usage_tasks.c.task))
            }
            holdings = {
                row.holding: Holding(TaskId(row.task), NodeId(row.node), _numbers(row.slots))
                for row in connection.execute(select(usage_holdings).order_by(usage_holdings.c.holding))
            }
            if mark is None:
                return 0, found
            found.load(mark.journal_index, mark.charged_at, tasks, holdings)
            return int(mark.turn), found

        return await self._database.read(work)

    async def save(self, turn: int, index: int, charged_at: float, changes: Changes) -> None:
        """Write what changed as the turn after ``turn``. ``Stale`` when another has written it, or when an earlier
        try of ours arrived after all: then load again."""

        def work(connection: Connection) -> None:
            _take_turn(connection, turn, index, charged_at)
            _charge(connection, changes)
            for task, found in changes.tasks.items():
                if found is None:
                    connection.execute(delete(usage_tasks).where(usage_tasks.c.task == task))
                else:
                    account = msgspec.structs.asdict(found.account)
                    put(connection, usage_tasks, task=task, counted_day=str(found.counted_day), **account)
            for name, holding in changes.holdings.items():
                if holding is None:
                    connection.execute(delete(usage_holdings).where(usage_holdings.c.holding == name))
                else:
                    slots = ",".join(map(str, holding.slots))
                    put(connection, usage_holdings, holding=name, task=holding.task, node=holding.node, slots=slots)

        await self._database.write(work)


def _take_turn(connection: Connection, turn: int, index: int, charged_at: float) -> None:
    values = {"turn": turn + 1, "journal_index": index, "charged_at": charged_at}
    if turn == 0:
        dialect = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
        first = dialect(usage_mark).values(id=1, **values).on_conflict_do_nothing(index_elements=["id"])
        done = connection.execute(first.returning(usage_mark.c.id)).first() is not None
    else:
        done = connection.execute(update(usage_mark).where(usage_mark.c.turn == turn).values(**values)).rowcount == 1
    if not done:
        raise Stale("usage was written by somebody else", object="usage", next_step="Load it again.")


def _charge(connection: Connection, changes: Changes) -> None:
    dialect = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    for (day, account), charge in changes.charges.items():
        row = {
            "day": day_text(day),
            **msgspec.structs.asdict(account),
            "slot_seconds_held": charge.held_s,
            "slot_seconds_used": charge.used_s,
            "tasks": charge.tasks,
        }
        more = dialect(usage).values(**row)
        sums = {name: usage.c[name] + more.excluded[name] for name in row if name not in KEYS}
        connection.execute(more.on_conflict_do_update(index_elements=list(KEYS), set_=sums))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def cursor_of(row: UsageRow, by: tuple[str, ...]) -> str:
    """Where the page behind this row begins."""
    return ",".join(getattr(row, name) for name in KEYS if name in by)


def _cursor(text: str, parts: int) -> list[str]:
    found = text.split(",")
    if len(found) != parts:
        raise BadRequest("it is no cursor", object="page", path="after", next_step="Begin without one.")
    return found
