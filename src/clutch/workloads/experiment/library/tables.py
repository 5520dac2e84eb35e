"""The tables of the library, in SQLAlchemy Core: the same on SQLite and on PostgreSQL.

They stand beside the journal, as those of access do (decision 1670). ``VERSION`` grows with every change; ``STEPS``
brings an older database up.
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

VERSION = 2

metadata = MetaData()
_text = Text().with_variant(Text(collation="C"), "postgresql")
"""Compared by code point everywhere, so that a page is the same on every store."""
_number = BigInteger().with_variant(Integer(), "sqlite")


def _name(name: str, *, key: bool = False) -> Column[Any]:
    return Column(name, _text, primary_key=key, nullable=False)


def _words(name: str) -> Column[Any]:
    return Column(name, Text, nullable=False)


def _moment(name: str) -> Column[Any]:
    return Column(name, Double, nullable=False)


meta = Table("library_meta", metadata, _name("name", key=True), Column("value", LargeBinary, nullable=False))
"""``version`` in decimal."""

models = Table(
    "library_models",
    metadata,
    _name("workspace", key=True),
    _name("name", key=True),
    _words("description"),
    _words("notes"),
    _words("labels"),  # with commas before, between and behind them; empty: none
    _words("metadata"),  # JSON
    Column("archived", Boolean, nullable=False),
    Column("last_number", BigInteger, nullable=False),  # only grows
    _words("created_by"),
    _moment("created_at"),
    _moment("changed_at"),
)

versions = Table(
    "library_versions",
    metadata,
    _name("workspace", key=True),
    _name("model", key=True),
    Column("number", _number, primary_key=True, autoincrement=False),
    Column("held", Boolean, nullable=False),  # its checkpoint is; before that nobody sees it
    _name("checkpoint"),
    _words("experiment"),
    _words("trial"),
    Column("step", BigInteger, nullable=False),
    _words("name"),
    _words("notes"),
    _words("labels"),
    _words("metrics"),  # JSON
    _words("created_by"),
    _moment("created_at"),
    Index("library_versions_by_checkpoint", "checkpoint"),
)

aliases = Table(
    "library_aliases",
    metadata,
    _name("workspace", key=True),
    _name("model", key=True),
    _name("alias", key=True),
    Column("number", BigInteger, nullable=False),
    _words("changed_by"),
    _moment("changed_at"),
)

pins = Table(
    "library_pins",
    metadata,
    _name("holder", key=True),
    _name("checkpoint", key=True),
    Column("hold", Boolean, nullable=False),
)
"""What is yet to be said to experiments: hold this checkpoint, or let it go. Empty most of the time."""

templates = Table(
    "library_templates",
    metadata,
    _name("workspace", key=True),
    _name("name", key=True),
    _words("description"),
    _words("config"),  # JSON
    _words("source"),
    _words("changed_by"),
    _moment("changed_at"),
)

defaults = Table(
    "library_defaults",
    metadata,
    _name("scope", key=True),
    _words("description"),
    _words("config"),
    _words("source"),
    _words("changed_by"),
    _moment("changed_at"),
)

webhooks = Table(
    "library_webhooks",
    metadata,
    _name("scope", key=True),
    _name("name", key=True),
    _words("id"),  # a webhook of the same name that comes later is another one
    _words("key_id"),
    Column("sealed", LargeBinary, nullable=False),  # its address and its secret: either lets one in somewhere
    _words("origin"),  # scheme and host, for those who may only look
    _words("format"),
    _words("triggers"),  # as labels
    _words("experiments"),
    Column("on_request", Boolean, nullable=False),
    Column("enabled", Boolean, nullable=False),
    _words("created_by"),
    _moment("created_at"),
)

deliveries = Table(
    "library_deliveries",
    metadata,
    Column("number", _number, primary_key=True, autoincrement=True),
    _name("webhook"),  # its id
    _name("token"),
    _words("experiment"),
    _words("state"),
    Column("status", BigInteger, nullable=False),
    _words("error"),
    Column("again", Boolean, nullable=False),
    Column("took_s", Double, nullable=False),
    _moment("at"),
    Index("library_deliveries_by_webhook", "webhook", "number"),
    Index("library_deliveries_by_token", "token"),
)

messages = Table(
    "library_messages",
    metadata,
    _name("webhook", key=True),  # its id
    _name("token", key=True),
    Column("payload", LargeBinary, nullable=False),
    Column("tries", BigInteger, nullable=False),
    _moment("next_at"),
    _moment("at"),  # when it came here
    Index("library_messages_by_next", "webhook", "next_at"),
)
"""What waits to be said to each webhook. A message goes when it was taken, refused for good, or given up."""

STEPS: dict[int, Callable[[Connection], None]] = {1: messages.create}
"""version -> what brings a database of that version to the next one."""

CONTENTS = Contents("library", metadata, meta, VERSION, STEPS)
