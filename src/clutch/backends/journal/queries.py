"""Questions about views and the outbox, built with SQLAlchemy Core and run by each store on its own driver."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ColumnElement, Dialect, Select, literal, select, tuple_

from clutch.backends.journal.base import Where
from clutch.backends.journal.shapes import check_question, columns_of
from clutch.backends.journal.tables import VIEW_TABLES, outbox

Statement = tuple[str, list[Any]]
"""SQL in the driver's own words, and its arguments in order."""


def compiled(statement: Select[Any], dialect: Dialect) -> Statement:
    result = statement.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
    names = result.positiontup
    assert names is not None, "both drivers take arguments by place"
    return str(result), [result.params[name] for name in names]


def one(table: str, key: str, dialect: Dialect) -> Statement:
    columns_of(table)
    found = VIEW_TABLES[table]
    return compiled(select(found).where(found.c.key == key), dialect)


def _is(column: Column[Any], want: str | int | tuple[str, ...]) -> ColumnElement[bool]:
    return column.in_(want) if isinstance(want, tuple) else column == want


class Question:
    """A page, asked for and checked, before the value at its edge is known."""

    def __init__(self, table: str, where: Where, order_by: str, after: str, limit: int) -> None:
        self.column, self.descending = check_question(table, where, order_by, limit)
        self.table, self.where, self.after, self.limit = table, where, after, limit

    def edge(self, dialect: Dialect) -> Statement | None:
        """Asks for the value at which the next page begins; None when the key alone says it."""
        if not self.after or self.column == "key":
            return None
        found = VIEW_TABLES[self.table]
        return compiled(select(found.c[self.column]).where(found.c.key == self.after), dialect)

    def page(self, dialect: Dialect, value: object = None) -> Statement:
        """The page; ``value`` is what ``edge`` answered."""
        found = VIEW_TABLES[self.table]
        order, key = found.c[self.column], found.c.key
        statement = select(found).where(*(_is(found.c[name], want) for name, want in self.where.items()))
        if self.after and self.column == "key":
            statement = statement.where(key < self.after if self.descending else key > self.after)
        elif self.after:
            here = tuple_(literal(value, order.type), literal(self.after, key.type))
            place = tuple_(order, key)
            statement = statement.where(place < here if self.descending else place > here)
        by = (order.desc(), key.desc()) if self.descending else (order, key)
        return compiled(statement.order_by(*by).limit(self.limit), dialect)


def due(limit: int, dialect: Dialect) -> Statement:
    return compiled(select(outbox).order_by(outbox.c.due_at, outbox.c.token).limit(limit), dialect)
