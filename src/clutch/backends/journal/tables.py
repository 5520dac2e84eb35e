"""The journal's tables in SQLAlchemy Core: what queries are built from and what the schema must look like.

The tables of rows, leader, snapshots and outbox are changed only by a migration. The tables of views are derived from
the view structs, field by field, and gain columns when the structs gain fields (see ``schema``).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    text,
)
from sqlalchemy.types import TypeEngine

from clutch.backends.journal.shapes import COLUMNS, Value

metadata = MetaData()
"""All of it, for queries."""

_text = Text().with_variant(Text(collation="C"), "postgresql")

_SQL: dict[type[Value], tuple[TypeEngine[Any], str]] = {
    str: (_text, "''"),
    int: (BigInteger(), "0"),
    float: (Double(), "0"),
    bool: (Boolean(), "false"),
    bytes: (LargeBinary(), "''"),
}
"""SQL type and default. Text compares by code point everywhere, so that a page is the same on every store."""

_VIEW_INDEXES: dict[str, tuple[tuple[str, ...], ...]] = {
    "tasks": (("submitted_at",), ("owner", "submitted_at"), ("ended_at", "submitted_at"), ("name",)),
    "allocations": (("task",),),
    "leases": (("task",),),
    "experiments": (
        ("submitted_at",), ("owner", "submitted_at"), ("workspace", "submitted_at"), ("state", "submitted_at"),
        ("name",),
    ),
    "trials": (("experiment", "trial"),),
    "workloads": (("trial",),),
    "checkpoints": (("experiment", "committed_at"),),
}  # fmt: skip
"""What lists are ordered or filtered by most; each with the key behind it, as pages are. Those who live are few among
those who ended, so ``ended_at`` (0 while a task lives) comes before the order."""


def column_for(name: str, kind: type[Value]) -> Column[Any]:
    sql, default = _SQL[kind]
    return Column(name, sql, nullable=False, primary_key=name == "key", server_default=text(default))


def _view_table(name: str) -> Table:
    columns = COLUMNS[name]
    indexes = [Index(f"{name}_by_{'_'.join(by)}", *by, "key") for by in _VIEW_INDEXES.get(name, ())]
    return Table(name, metadata, *(column_for(c, kind) for c, kind in columns.items()), *indexes)


VIEW_TABLES: dict[str, Table] = {name: _view_table(name) for name in COLUMNS}

_big_key = BigInteger().with_variant(Integer(), "sqlite")

journal = Table(
    "journal",
    metadata,
    Column("seq", _big_key, primary_key=True, autoincrement=False),
    Column("term", BigInteger, nullable=False),
    Column("at", Double, nullable=False),
    Column("cause", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("checksum", BigInteger, nullable=False),
)

leader = Table(
    "leader",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("generation", BigInteger, nullable=False),
    Column("term", BigInteger, nullable=False),
    Column("holder", Text, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("base_index", BigInteger, nullable=False),
    Column("base_checksum", BigInteger, nullable=False),
    Column("last_index", BigInteger, nullable=False),
    Column("last_checksum", BigInteger, nullable=False),
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("id", _big_key, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("checksum", BigInteger, nullable=False),
)

snapshot_pieces = Table(
    "snapshot_pieces",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("piece", Integer, primary_key=True, autoincrement=False),
    Column("payload", LargeBinary, nullable=False),
)

outbox = Table(
    "outbox",
    metadata,
    Column("token", _text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("due_at", Double, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Index("outbox_by_due_at", "due_at", "token"),
)
