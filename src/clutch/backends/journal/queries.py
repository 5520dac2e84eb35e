"""Questions about views and the outbox, built with SQLAlchemy Core and run by each store on its own driver."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Dialect, Select, bindparam, func, select, tuple_

from clutch.backends.journal.base import Has, Wanted, Where
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
    return _one_sql(table, dialect), [key]


@lru_cache(maxsize=64)
def _one_sql(table: str, dialect: Dialect) -> str:
    """Asked for at every submission, and putting SQL together costs more than running it."""
    found = VIEW_TABLES[table]
    sql, _ = compiled(select(found).where(found.c.key == bindparam("is", "", found.c.key.type)), dialect)
    return sql


EQUALS, HAS = -1, -2


class Shape(NamedTuple):
    """What of a page's question decides its SQL; the values are filled in. There are few of them, asked again and
    again, and putting SQL together costs more than running it."""

    table: str
    where: tuple[tuple[str, int], ...]
    """Columns, and of how many values each must be one; ``EQUALS`` or ``HAS`` for the one it equals or has in it."""
    column: str
    descending: bool
    behind: bool


@lru_cache(maxsize=512)
def _page_sql(shape: Shape, dialect: Dialect) -> tuple[str, tuple[tuple[str, object], ...]]:
    """The SQL of a shape, and its arguments in order: their names, and the value of those that are always the same."""
    found = VIEW_TABLES[shape.table]
    order, key = found.c[shape.column], found.c.key
    statement = select(found)
    for number, (name, count) in enumerate(shape.where):
        column = found.c[name]
        if count == EQUALS:
            statement = statement.where(column == bindparam(f"is{number}", None, column.type))
        elif count == HAS:
            found_at = func.strpos if dialect.name == "postgresql" else func.instr
            statement = statement.where(found_at(column, bindparam(f"is{number}", None, column.type)) > 0)
        else:
            any_of = [bindparam(f"is{number}_{place}", None, column.type) for place in range(count)]
            statement = statement.where(column.in_(any_of))
    last_key = bindparam("last_key", None, key.type)
    if shape.behind and shape.column == "key":
        statement = statement.where(key < last_key if shape.descending else key > last_key)
    elif shape.behind:
        here = tuple_(bindparam("last_value", None, order.type), last_key)
        place = tuple_(order, key)
        statement = statement.where(place < here if shape.descending else place > here)
    by = (order.desc(), key.desc()) if shape.descending else (order, key)
    statement = statement.order_by(*by).limit(bindparam("rows", 1, BigInteger()))
    result = statement.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
    names = result.positiontup
    assert names is not None, "both drivers take arguments by place"
    return str(result), tuple((name, result.params[name]) for name in names)


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
        counts = tuple((name, _count(want)) for name, want in self.where.items())
        shape = Shape(self.table, counts, self.column, self.descending, bool(self.after))
        sql, arguments = _page_sql(shape, dialect)
        given: dict[str, object] = {"last_key": self.after, "last_value": value, "rows": self.limit}
        for number, want in enumerate(self.where.values()):
            if isinstance(want, tuple):
                given |= {f"is{number}_{place}": one for place, one in enumerate(want)}
            else:
                given[f"is{number}"] = want.text if isinstance(want, Has) else want
        return sql, [given.get(name, always) for name, always in arguments]


def _count(want: Wanted) -> int:
    if isinstance(want, Has):
        return HAS
    return len(want) if isinstance(want, tuple) else EQUALS


def due(limit: int, dialect: Dialect) -> Statement:
    return compiled(select(outbox).order_by(outbox.c.due_at, outbox.c.token).limit(limit), dialect)
