"""Where the tables of the library are kept: a SQLite file, or the journal's own PostgreSQL database.

The ways to both are those of access; only the tables differ.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sqlalchemy import Connection, text

from clutch.backends.journal.sqlite_file import speaking_of
from clutch.master.access.database import Database, PostgresDatabase, SqliteDatabase
from clutch.wire.errors import BadRequest
from clutch.workloads.experiment.library.tables import prepare

FILE = "library.db"
_BUSY_S = 5.0
_PREPARE_LOCK = 0x6C696272


class SqliteLibrary(SqliteDatabase):
    """One file of its own, for its owner alone."""

    def _prepare(self) -> None:
        with speaking_of(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not self.path.exists():
                self.path.touch(mode=0o600)
            raw = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)
            try:
                raw.execute("PRAGMA journal_mode = WAL")
            finally:
                raw.close()
            with self._writer.begin() as connection:
                prepare(connection, self.address)


class PostgresLibrary(PostgresDatabase):
    """Tables beside the journal's, over a few connections of their own."""

    @classmethod
    async def open(cls, url: str) -> PostgresLibrary:
        found = cls(url)

        def made(connection: Connection) -> None:
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _PREPARE_LOCK})
            prepare(connection, found.address)

        try:
            await found.write(made)
        except BaseException:
            await found.close()
            raise
        return found


async def open_database(folder: Path, url: str) -> Database:
    """The library's database for a master: its file in the data folder, or the PostgreSQL it was told."""
    if not url:
        return await SqliteLibrary.open(folder / FILE)
    if not url.startswith(("postgresql://", "postgres://")):
        raise BadRequest(
            "the library is kept in SQLite or PostgreSQL",
            object=url.partition(":")[0],
            next_step="Leave the database out, or give postgresql://USER:PASSWORD@HOST/DATABASE.",
        )
    return await PostgresLibrary.open(url)
