"""Bringing a database to this release's schema when a journal is opened, or refusing one that is newer.

Rows, leader, snapshots and outbox are brought up by migrations. Views are projections: their tables are created from
the view structs, and a field that a struct has gained becomes a column with a default. A column that a struct has lost
stays where it is, at its default for new rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from clutch.backends.journal.shapes import COLUMNS
from clutch.backends.journal.tables import VIEW_TABLES, column_for
from clutch.wire.errors import TooNew

if TYPE_CHECKING:
    from alembic.config import Config

VERSION_TABLE = "journal_version"
HEAD = "0002"
"""The newest step. Known here so that opening a journal that is up to date need not load the migrations."""


def migrations() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config


def revision_of(connection: Connection) -> str:
    """The last step this database went through; empty for a new one."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return ""
    return connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar() or ""


def refuse_newer(connection: Connection, address: str) -> str:
    """The database's revision, or ``TooNew``. Changes nothing."""
    revision = revision_of(connection)
    if revision in ("", HEAD):
        return revision
    from alembic.script import ScriptDirectory

    known = {step.revision for step in ScriptDirectory.from_config(migrations()).walk_revisions()}
    if revision not in known:
        raise TooNew(
            f"its schema is at step {revision}, this release knows steps up to {HEAD}",
            object=address,
            next_step="Run a release at least as new as the one that wrote it; nothing was changed.",
        )
    return revision


def upgrade(connection: Connection, address: str) -> None:
    """Bring the database to this release, inside the caller's transaction."""
    if refuse_newer(connection, address) != HEAD:
        from alembic import command

        config = migrations()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    _match_views(connection)


def _match_views(connection: Connection) -> None:
    inspector = inspect(connection)
    present = set(inspector.get_table_names())
    for name, table in VIEW_TABLES.items():
        if name not in present:
            table.create(connection)
            continue
        stored = {column["name"] for column in inspector.get_columns(name)}
        missing = [column for column in COLUMNS[name] if column not in stored]
        if missing:
            from alembic.operations import Operations
            from alembic.runtime.migration import MigrationContext

            change = Operations(MigrationContext.configure(connection))
            for column in missing:
                change.add_column(name, column_for(column, COLUMNS[name][column]))
        known_indexes = {index["name"] for index in inspector.get_indexes(name)}
        for index in table.indexes:
            if index.name not in known_indexes:
                index.create(connection)
