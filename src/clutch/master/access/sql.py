"""The few things that every table of access does alike, in SQLAlchemy Core."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_
from sqlalchemy.dialects import postgresql, sqlite


def put(connection: Connection, table: Table, **values: Any) -> None:
    """Insert a row, or replace what is not its key."""
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    keys = [column.name for column in table.primary_key]
    rest = {name: value for name, value in values.items() if name not in keys}
    connection.execute(insert(table).values(**values).on_conflict_do_update(index_elements=keys, set_=rest))


def put_new(connection: Connection, table: Table, **values: Any) -> bool:
    """Insert a row unless its key is taken; whether it was."""
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    keys = [column.name for column in table.primary_key]
    done = connection.execute(
        insert(table).values(**values).on_conflict_do_nothing(index_elements=keys).returning(*table.primary_key)
    )
    return done.first() is not None


def is_row(table: Table, **key: Any) -> ColumnElement[bool]:
    """The condition that these columns have these values."""
    return and_(*(table.c[name] == value for name, value in key.items()))
