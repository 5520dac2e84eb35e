"""Role grants as they are stored: one role for a subject over a scope."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Select, delete, or_, select

from clutch.master.access.database import Database
from clutch.master.access.rules import subject_of, workspace_of
from clutch.master.access.sql import is_row, put
from clutch.master.access.tables import groups, memberships, role_grants, users, workspaces
from clutch.wire.access import CLUSTER, Role, RoleGrant
from clutch.wire.errors import Conflict, NotFound


class Grants:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, scopes: tuple[str, ...] | None, subject: str, after: str, limit: int) -> list[RoleGrant]:
        """Grants by subject and scope, behind the cursor ``SUBJECT SCOPE``; of these scopes only, or of all."""
        key = role_grants.c.subject + " " + role_grants.c.scope
        question = select(role_grants.c.subject, role_grants.c.role, role_grants.c.scope).where(key > after)
        if scopes is not None:
            question = question.where(role_grants.c.scope.in_(scopes))
        if subject:
            question = question.where(role_grants.c.subject == subject)
        question = question.order_by(key).limit(limit)
        found = await self._database.read(lambda connection: connection.execute(question).all())
        return [RoleGrant(subject=row.subject, role=Role(row.role), scope=row.scope) for row in found]

    async def put(self, grant: RoleGrant) -> None:
        def work(connection: Connection) -> None:
            _check_exists(connection, grant)
            put(connection, role_grants, subject=grant.subject, scope=grant.scope, role=grant.role)
            check_an_admin_is_left(connection)

        await self._database.write(work)

    async def administrators(self) -> list[str]:
        """The active users who may administer the cluster."""
        return await self._database.read(lambda connection: list(connection.execute(_administrators()).scalars()))

    async def delete(self, subject: str, scope: str) -> None:
        def work(connection: Connection) -> None:
            done = connection.execute(delete(role_grants).where(is_row(role_grants, subject=subject, scope=scope)))
            if not done.rowcount:
                raise NotFound("it holds no role there", object=f"{subject} over {scope}")
            check_an_admin_is_left(connection)

        await self._database.write(work)


def _check_exists(connection: Connection, grant: RoleGrant) -> None:
    kind, name = subject_of(grant.subject)
    table = users if kind == "user" else groups
    if connection.execute(select(table.c.name).where(table.c.name == name)).first() is None:
        raise NotFound(f"there is no such {kind}", object=grant.subject, next_step="Create it first.")
    workspace = workspace_of(grant.scope)
    if workspace is not None:
        known = select(workspaces.c.name).where(workspaces.c.name == workspace)
        if connection.execute(known).first() is None:
            raise NotFound("there is no such workspace", object=grant.scope, next_step="Create it first.")


def _administrators() -> Select[Any]:
    """The active users who may administer the cluster, by themselves or through a group."""
    theirs = or_(
        role_grants.c.subject == "user:" + users.c.name,
        role_grants.c.subject.in_(
            select("group:" + memberships.c.group).where(memberships.c.user == users.c.name).correlate(users)
        ),
    )
    return (
        select(users.c.name)
        .distinct()
        .select_from(users)
        .join(role_grants, theirs)
        .where(users.c.active, role_grants.c.scope == CLUSTER, role_grants.c.role == Role.ADMIN)
        .order_by(users.c.name)
    )


def check_an_admin_is_left(connection: Connection) -> None:
    """``Conflict`` when, after what this transaction did, nobody could administer the cluster any more."""
    if connection.execute(_administrators().limit(1)).first() is None:
        raise Conflict(
            "no active administrator of the cluster would be left",
            object="cluster",
            next_step="Make somebody else an administrator first.",
        )


def grants_of(connection: Connection, user: str) -> list[RoleGrant]:
    """Everything granted to a user and to their groups."""
    of_groups = select("group:" + memberships.c.group).where(memberships.c.user == user)
    question = select(role_grants).where(
        or_(role_grants.c.subject == f"user:{user}", role_grants.c.subject.in_(of_groups))
    )
    return [
        RoleGrant(subject=row.subject, role=Role(row.role), scope=row.scope) for row in connection.execute(question)
    ]
