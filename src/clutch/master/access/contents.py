"""What a database beside the journal holds: tables of one house, their version, and how an older one is brought up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from sqlalchemy import Connection, MetaData, Table, insert, inspect, select

from clutch.wire.errors import BadRequest, TooNew


class Contents(NamedTuple):
    name: str
    metadata: MetaData
    meta: Table
    """A row ``version``, in decimal."""
    version: int
    steps: Mapping[int, Callable[[Connection], None]]
    """version -> what brings a database of that version to the next one."""

    @property
    def file(self) -> str:
        """Where it is kept in a master's folder."""
        return f"{self.name}.db"

    def prepare(self, connection: Connection, address: str) -> None:
        """Create the tables or bring them to this release, in the caller's transaction. ``TooNew`` changes nothing."""
        meta = self.meta
        if not inspect(connection).has_table(meta.name):
            self.metadata.create_all(connection)
            connection.execute(insert(meta).values(name="version", value=str(self.version).encode()))
            return
        stored = connection.execute(select(meta.c.value).where(meta.c.name == "version")).scalar()
        version = int(stored) if stored is not None and bytes(stored).isdigit() else 0
        if version < 1:
            raise BadRequest("these tables are not ours", object=address, next_step="Name another file or database.")
        if version > self.version:
            raise TooNew(
                f"its {self.name} tables are at version {version}, this release knows up to {self.version}",
                object=address,
                next_step="Run a release at least as new as the one that wrote them; nothing was changed.",
            )
        for step in range(version, self.version):
            self.steps[step](connection)
        if version != self.version:
            now = str(self.version).encode()
            connection.execute(meta.update().where(meta.c.name == "version").values(value=now))
