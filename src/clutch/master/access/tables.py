"""The tables of access, in SQLAlchemy Core: the same on SQLite and on PostgreSQL.

They stand beside the journal, never in it: who may do what is no decision of the scheduler, and a password hash or a
sealed secret has no place in history. ``VERSION`` grows with every change; ``STEPS`` brings an older database up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)

from clutch.master.access.contents import Contents

VERSION = 1
STEPS: dict[int, Callable[[Connection], None]] = {}
"""version -> what brings a database of that version to the next one."""

metadata = MetaData()
_text = Text().with_variant(Text(collation="C"), "postgresql")
"""Compared by code point everywhere, so that a page is the same on every store."""
_number = BigInteger().with_variant(Integer(), "sqlite")


def _name(name: str, *, key: bool = False) -> Column[Any]:
    return Column(name, _text, primary_key=key, nullable=False)


meta = Table("access_meta", metadata, _name("name", key=True), Column("value", LargeBinary, nullable=False))
"""``version`` in decimal, and ``key_check``: something sealed with the master key, to know it again."""

users = Table(
    "access_users",
    metadata,
    _name("name", key=True),
    Column("display_name", Text, nullable=False),
    Column("password_hash", Text, nullable=False),
    Column("active", Boolean, nullable=False),
    Column("uid", BigInteger),
    Column("gid", BigInteger),
    Column("created_at", Double, nullable=False),
)

groups = Table("access_groups", metadata, _name("name", key=True), Column("created_at", Double, nullable=False))

memberships = Table(
    "access_memberships",
    metadata,
    _name("group", key=True),
    _name("user", key=True),
    Index("access_memberships_by_user", "user"),
)

workspaces = Table(
    "access_workspaces",
    metadata,
    _name("name", key=True),
    Column("description", Text, nullable=False),
    Column("archived", Boolean, nullable=False),
    Column("created_at", Double, nullable=False),
)

projects = Table(
    "access_projects",
    metadata,
    _name("workspace", key=True),
    _name("name", key=True),
    Column("description", Text, nullable=False),
    Column("archived", Boolean, nullable=False),
)

role_grants = Table(
    "access_role_grants",
    metadata,
    _name("subject", key=True),
    _name("scope", key=True),
    Column("role", Text, nullable=False),
    Index("access_role_grants_by_scope", "scope"),
)

tokens = Table(
    "access_tokens",
    metadata,
    _name("id", key=True),
    Column("hash", LargeBinary, nullable=False, unique=True),
    Column("kind", Text, nullable=False),
    _name("user"),
    Column("description", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),  # 0: never
    Column("last_used_at", Double, nullable=False),
    Column("revoked", Boolean, nullable=False),
    Column("role", Text, nullable=False),  # the ceiling; empty: none
    Column("workspace", Text, nullable=False),
    Column("pool", Text, nullable=False),
    _name("node"),  # of an agent's token
    Index("access_tokens_by_user", "user", "created_at"),
    Index("access_tokens_by_node", "node"),
)

secrets = Table(
    "access_secrets",
    metadata,
    _name("workspace", key=True),
    _name("name", key=True),
    Column("key_id", Text, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("changed_at", Double, nullable=False),
)

audit = Table(
    "access_audit",
    metadata,
    Column("index", _number, primary_key=True, autoincrement=True),
    Column("at", Double, nullable=False),
    _name("who"),
    _name("action"),
    _name("object"),
    Column("status", BigInteger, nullable=False),
    Column("detail", Text, nullable=False),
    Index("access_audit_by_at", "at"),
    Index("access_audit_by_who", "who", "index"),
)

usage = Table(
    "access_usage",
    metadata,
    _name("day", key=True),
    _name("user", key=True),
    _name("workspace", key=True),
    _name("project", key=True),
    _name("pool", key=True),
    Column("slot_seconds_held", Double, nullable=False),
    Column("slot_seconds_used", Double, nullable=False),
    Column("tasks", BigInteger, nullable=False),
)

usage_mark = Table(
    "access_usage_mark",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("turn", BigInteger, nullable=False),  # one more with each write: two writers notice each other
    Column("journal_index", BigInteger, nullable=False),
    Column("charged_at", Double, nullable=False),
)

usage_tasks = Table(
    "access_usage_tasks",
    metadata,
    _name("task", key=True),
    _name("user"),
    _name("workspace"),
    _name("project"),
    _name("pool"),
    Column("counted_day", Text, nullable=False),
)

usage_holdings = Table(
    "access_usage_holdings",
    metadata,
    _name("holding", key=True),
    _name("task"),
    Column("node", Text, nullable=False),
    Column("slots", Text, nullable=False),  # comma-separated
)

CONTENTS = Contents("access", metadata, meta, VERSION, STEPS)
