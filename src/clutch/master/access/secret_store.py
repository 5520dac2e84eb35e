"""Secrets as they are stored: sealed with the master key, each for its own workspace and name, never in clear."""

from __future__ import annotations

from sqlalchemy import Connection, delete, select, update

from clutch.master.access.database import Database
from clutch.master.access.keys import MasterKeys
from clutch.master.access.places import no_workspace
from clutch.master.access.sql import is_row, put, put_new
from clutch.master.access.tables import meta, secrets, workspaces
from clutch.wire.access import NewSecret, SecretView
from clutch.wire.errors import BadRequest, Corrupt, NotFound

VALUE_MAX_BYTES = 64 * 2**10
_CHECK = "key_check"
_CHECK_PLACE = "the master key's check"


def _place(workspace: str, name: str) -> str:
    return f"secret {workspace}/{name}"


class Secrets:
    def __init__(self, database: Database, keys: MasterKeys) -> None:
        self._database = database
        self.keys = keys

    async def put(self, workspace: str, new: NewSecret, by: str, now: float) -> SecretView:
        value = new.value.encode()
        if len(value) > VALUE_MAX_BYTES:
            raise BadRequest(
                f"a secret has at most {VALUE_MAX_BYTES} bytes", object=_place(workspace, new.name), path="value",
                next_step="Keep large files in blobs.",
            )  # fmt: skip
        keys = self.keys
        sealed = keys.seal(value, _place(workspace, new.name))

        def work(connection: Connection) -> None:
            if connection.execute(select(workspaces.c.name).where(workspaces.c.name == workspace)).first() is None:
                raise no_workspace(workspace)
            put(
                connection, secrets, workspace=workspace, name=new.name, key_id=keys.newest, sealed=sealed,
                created_by=by, changed_at=now,
            )  # fmt: skip

        await self._database.write(work)
        return SecretView(name=new.name, workspace=workspace, created_by=by, changed_at=now)

    async def page(self, workspace: str, after: str, limit: int) -> list[SecretView]:
        columns = (secrets.c.name, secrets.c.workspace, secrets.c.created_by, secrets.c.changed_at)
        question = select(*columns).where(secrets.c.workspace == workspace, secrets.c.name > after)
        question = question.order_by(secrets.c.name).limit(limit)
        found = await self._database.read(lambda connection: connection.execute(question).all())
        return [
            SecretView(name=row.name, workspace=row.workspace, created_by=row.created_by, changed_at=row.changed_at)
            for row in found
        ]

    async def delete(self, workspace: str, name: str) -> None:
        statement = delete(secrets).where(is_row(secrets, workspace=workspace, name=name))
        if not await self._database.write(lambda connection: connection.execute(statement).rowcount):
            raise NotFound("its workspace has no such secret", object=_place(workspace, name))

    async def values(self, workspace: str, names: tuple[str, ...]) -> dict[str, str]:
        """The values of those that exist, for a start and for nothing else."""
        wanted = list(dict.fromkeys(names))
        question = select(secrets.c.name, secrets.c.key_id, secrets.c.sealed).where(
            secrets.c.workspace == workspace, secrets.c.name.in_(wanted)
        )
        found = await self._database.read(lambda connection: connection.execute(question).all())
        return {
            row.name: self.keys.open(row.key_id, bytes(row.sealed), _place(workspace, row.name)).decode()
            for row in found
        }

    async def check_key(self) -> None:
        """``BadRequest`` unless one of our keys is the one this database knows; the first master decides which."""
        keys = self.keys

        def work(connection: Connection) -> bytes:
            put_new(connection, meta, name=_CHECK, value=_sealed_check(keys))
            return bytes(connection.execute(select(meta.c.value).where(meta.c.name == _CHECK)).scalar_one())

        stored = await self._database.write(work)
        name, _, sealed = stored.partition(b" ")
        key_id = name.decode(errors="replace")
        try:
            keys.open(key_id, sealed, _CHECK_PLACE)
        except Corrupt as error:
            raise BadRequest(
                f"this cluster's secrets and tokens are under master key {key_id}, not {keys!r}",
                object="master key",
                next_step="Give this master the key of the others (--master-key, or their master.key file).",
            ) from error

    async def reseal(self) -> int:
        """Seal everything with the newest key, in one transaction; how many were sealed with an older one."""
        keys = self.keys

        def work(connection: Connection) -> int:
            due = connection.execute(select(secrets).where(secrets.c.key_id != keys.newest)).all()
            for row in due:
                place = _place(row.workspace, row.name)
                sealed = keys.seal(keys.open(row.key_id, bytes(row.sealed), place), place)
                here = is_row(secrets, workspace=row.workspace, name=row.name)
                connection.execute(update(secrets).where(here).values(key_id=keys.newest, sealed=sealed))
            connection.execute(update(meta).where(meta.c.name == _CHECK).values(value=_sealed_check(keys)))
            return len(due)

        return await self._database.write(work)


def _sealed_check(keys: MasterKeys) -> bytes:
    return keys.newest.encode() + b" " + keys.seal(b"clutch", _CHECK_PLACE)
