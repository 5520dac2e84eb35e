"""Alembic's entry: run the steps on the connection that ``schema.upgrade`` passes in, inside its transaction."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from clutch.backends.journal.schema import VERSION_TABLE

connection = context.config.attributes["connection"]
assert isinstance(connection, Connection)
context.configure(connection=connection, version_table=VERSION_TABLE, transactional_ddl=False)
context.run_migrations()
