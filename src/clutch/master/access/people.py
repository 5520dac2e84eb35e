"""Users and groups as they are stored. A user is never deleted, only deactivated: names in audit and usage stay
theirs."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from clutch.master.access.database import Database
from clutch.master.access.grants import check_an_admin_is_left
from clutch.master.access.sql import is_row, put_new
from clutch.master.access.tables import groups, memberships, role_grants, tokens, users
from clutch.wire.access import GroupView, NewGroup, NewUser, TokenKind, UserChange, UserView
from clutch.wire.errors import BadRequest, Conflict, NotFound


def no_user(name: str) -> NotFound:
    return NotFound("no user has this name", object=f"user {name}", next_step="List users with GET /api/v1/users.")


def no_group(name: str) -> NotFound:
    return NotFound("no group has this name", object=f"group {name}", next_step="List groups with GET /api/v1/groups.")


class Users:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, new: NewUser, password_hash: str, now: float) -> UserView:
        def work(connection: Connection) -> None:
            made = put_new(
                connection,
                users,
                name=new.name,
                display_name=new.display_name,
                password_hash=password_hash,
                active=True,
                uid=new.uid,
                gid=new.gid,
                created_at=now,
            )
            if not made:
                raise Conflict(
                    "there is a user of this name", object=f"user {new.name}", next_step="Choose another name."
                )

        await self._database.write(work)
        return await self.get(new.name)

    async def get(self, name: str) -> UserView:
        found = await self._database.read(lambda connection: _views(connection, (users.c.name == name,), 1))
        if not found:
            raise no_user(name)
        return found[0]

    async def page(self, after: str, limit: int) -> list[UserView]:
        return await self._database.read(lambda connection: _views(connection, (users.c.name > after,), limit))

    async def credentials(self, name: str) -> tuple[str, bool]:
        """Password hash and whether the user is active; an empty hash and False for an unknown one."""
        columns = (users.c.password_hash, users.c.active)
        question = select(*columns).where(users.c.name == name)
        found = await self._database.read(lambda connection: connection.execute(question).first())
        return (found[0], bool(found[1])) if found is not None else ("", False)

    async def change(self, name: str, change: UserChange, password_hash: str | None) -> UserView:
        """The user after the change. A new password or a deactivation ends what was logged in before."""
        fields: dict[str, Any] = {
            field: getattr(change, field)
            for field in ("display_name", "active", "uid", "gid")
            if getattr(change, field) is not None
        }
        if change.unmap:
            fields.update(uid=None, gid=None)
        if password_hash is not None:
            fields["password_hash"] = password_hash

        def work(connection: Connection) -> None:
            if connection.execute(select(users.c.name).where(users.c.name == name)).first() is None:
                raise no_user(name)
            if fields:
                connection.execute(update(users).where(users.c.name == name).values(**fields))
            ended = {TokenKind.SESSION, TokenKind.ONE_TIME} if password_hash is not None else set()
            if change.active is False:
                ended |= {TokenKind.SESSION, TokenKind.ONE_TIME, TokenKind.PERSONAL, TokenKind.ENROL}
                check_an_admin_is_left(connection)
            if ended:
                theirs = (tokens.c.user == name) & tokens.c.kind.in_(sorted(ended))
                connection.execute(update(tokens).where(theirs).values(revoked=True))

        await self._database.write(work)
        return await self.get(name)


def _views(connection: Connection, where: tuple[Any, ...], limit: int) -> list[UserView]:
    columns = (users.c.name, users.c.display_name, users.c.active, users.c.uid, users.c.gid, users.c.created_at)
    found = connection.execute(select(*columns).where(*where).order_by(users.c.name).limit(limit)).all()
    names = [row.name for row in found]
    belongs: dict[str, list[str]] = {}
    question = select(memberships).where(memberships.c.user.in_(names)).order_by(memberships.c.group)
    for group, user in connection.execute(question):
        belongs.setdefault(user, []).append(group)
    return [
        UserView(
            name=row.name,
            display_name=row.display_name,
            active=bool(row.active),
            uid=row.uid,
            gid=row.gid,
            groups=tuple(belongs.get(row.name, ())),
            created_at=row.created_at,
        )
        for row in found
    ]


class Groups:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, new: NewGroup, now: float) -> GroupView:
        def work(connection: Connection) -> None:
            if not put_new(connection, groups, name=new.name, created_at=now):
                raise Conflict(
                    "there is a group of this name", object=f"group {new.name}", next_step="Change its members instead."
                )
            _fill(connection, new.name, new.members)

        await self._database.write(work)
        return await self.get(new.name)

    async def get(self, name: str) -> GroupView:
        found = await self._database.read(lambda connection: _group_views(connection, groups.c.name == name, 1))
        if not found:
            raise no_group(name)
        return found[0]

    async def page(self, after: str, limit: int) -> list[GroupView]:
        return await self._database.read(lambda connection: _group_views(connection, groups.c.name > after, limit))

    async def set_members(self, name: str, members: tuple[str, ...]) -> GroupView:
        def work(connection: Connection) -> None:
            _check_group(connection, name)
            connection.execute(delete(memberships).where(memberships.c.group == name))
            _fill(connection, name, members)
            check_an_admin_is_left(connection)

        await self._database.write(work)
        return await self.get(name)

    async def add(self, name: str, user: str) -> GroupView:
        def work(connection: Connection) -> None:
            _check_group(connection, name)
            if connection.execute(select(users.c.name).where(users.c.name == user)).first() is None:
                raise no_user(user)
            put_new(connection, memberships, group=name, user=user)

        await self._database.write(work)
        return await self.get(name)

    async def remove(self, name: str, user: str) -> GroupView:
        def work(connection: Connection) -> None:
            _check_group(connection, name)
            connection.execute(delete(memberships).where(is_row(memberships, group=name, user=user)))
            check_an_admin_is_left(connection)

        await self._database.write(work)
        return await self.get(name)

    async def delete(self, name: str) -> None:
        """The group goes, and with it what was granted to it."""

        def work(connection: Connection) -> None:
            _check_group(connection, name)
            connection.execute(delete(memberships).where(memberships.c.group == name))
            connection.execute(delete(role_grants).where(role_grants.c.subject == f"group:{name}"))
            connection.execute(delete(groups).where(groups.c.name == name))
            check_an_admin_is_left(connection)

        await self._database.write(work)


def _check_group(connection: Connection, name: str) -> None:
    if connection.execute(select(groups.c.name).where(groups.c.name == name)).first() is None:
        raise no_group(name)


def _fill(connection: Connection, group: str, members: tuple[str, ...]) -> None:
    wanted = list(dict.fromkeys(members))
    known = set(connection.execute(select(users.c.name).where(users.c.name.in_(wanted))).scalars())
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise BadRequest(
            f"there is no user {unknown[0]}",
            object=f"group {group}",
            path="members",
            next_step="Create the user first.",
        )
    if wanted:
        connection.execute(insert(memberships), [{"group": group, "user": name} for name in wanted])


def _group_views(connection: Connection, where: Any, limit: int) -> list[GroupView]:
    names = list(connection.execute(select(groups.c.name).where(where).order_by(groups.c.name).limit(limit)).scalars())
    found: dict[str, list[str]] = {name: [] for name in names}
    question = select(memberships).where(memberships.c.group.in_(names)).order_by(memberships.c.user)
    for group, user in connection.execute(question):
        found[group].append(user)
    return [GroupView(name=name, members=tuple(members)) for name, members in found.items()]


def mapping(view: UserView) -> tuple[int, int] | None:
    """The uid and gid a user's members run as, if both are known."""
    return (view.uid, view.gid) if view.uid is not None and view.gid is not None else None
