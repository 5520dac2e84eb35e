"""Workspaces and their projects as they are stored. Neither is deleted, only archived: what was done in them stays."""

from __future__ import annotations

from sqlalchemy import Connection, Row, select, update

from clutch.master.access.database import Database
from clutch.master.access.sql import is_row, put, put_new
from clutch.master.access.tables import projects, role_grants, workspaces
from clutch.wire.access import NewProject, NewWorkspace, PlaceChange, ProjectView, Role, WorkspaceView
from clutch.wire.errors import Conflict, NotFound


def no_workspace(name: str) -> NotFound:
    return NotFound("there is no such thing, or you may not see it", object=f"workspace {name}")


class Workspaces:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, new: NewWorkspace, creator: str, now: float) -> None:
        """A new workspace, of which its creator is the administrator."""

        def work(connection: Connection) -> None:
            made = put_new(
                connection, workspaces, name=new.name, description=new.description, archived=False, created_at=now
            )
            if not made:
                raise Conflict(
                    "there is a workspace of this name", object=f"workspace {new.name}",
                    next_step="Choose another name.",
                )  # fmt: skip
            scope = f"workspace:{new.name}"
            put(connection, role_grants, subject=f"user:{creator}", scope=scope, role=Role.ADMIN)

        await self._database.write(work)

    async def get(self, name: str) -> WorkspaceView:
        question = select(workspaces).where(workspaces.c.name == name)
        found = await self._database.read(lambda connection: connection.execute(question).first())
        if found is None:
            raise no_workspace(name)
        return _workspace(found)

    async def page(self, names: tuple[str, ...] | None, after: str, limit: int) -> list[WorkspaceView]:
        """Of these only, or of all for None."""
        question = select(workspaces).where(workspaces.c.name > after).order_by(workspaces.c.name).limit(limit)
        if names is not None:
            question = question.where(workspaces.c.name.in_(names))
        found = await self._database.read(lambda connection: connection.execute(question).all())
        return [_workspace(row) for row in found]

    async def change(self, name: str, change: PlaceChange) -> WorkspaceView:
        statement = update(workspaces).where(workspaces.c.name == name).values(**_changed(change))

        def work(connection: Connection) -> None:
            if not connection.execute(statement).rowcount:
                raise no_workspace(name)

        if _changed(change):
            await self._database.write(work)
        return await self.get(name)


def _changed(change: PlaceChange) -> dict[str, object]:
    fields: dict[str, object] = {"description": change.description, "archived": change.archived}
    return {name: value for name, value in fields.items() if value is not None}


def _workspace(row: Row[tuple[object, ...]]) -> WorkspaceView:
    return WorkspaceView(name=row.name, description=row.description, archived=bool(row.archived))


class Projects:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, workspace: str, new: NewProject) -> ProjectView:
        def work(connection: Connection) -> None:
            known = select(workspaces.c.name).where(workspaces.c.name == workspace)
            if connection.execute(known).first() is None:
                raise no_workspace(workspace)
            made = put_new(
                connection, projects, workspace=workspace, name=new.name, description=new.description, archived=False
            )
            if not made:
                raise Conflict(
                    "the workspace has a project of this name", object=f"project {workspace}/{new.name}",
                    next_step="Choose another name.",
                )  # fmt: skip

        await self._database.write(work)
        return await self.get(workspace, new.name)

    async def get(self, workspace: str, name: str) -> ProjectView:
        question = select(projects).where(is_row(projects, workspace=workspace, name=name))
        found = await self._database.read(lambda connection: connection.execute(question).first())
        if found is None:
            step = "'clutch project list' shows those there are, 'clutch project create' makes one."
            raise NotFound("its workspace has no such project", object=f"project {workspace}/{name}", next_step=step)
        return _project(found)

    async def page(self, workspace: str, after: str, limit: int) -> list[ProjectView]:
        question = select(projects).where(projects.c.workspace == workspace, projects.c.name > after)
        question = question.order_by(projects.c.name).limit(limit)
        found = await self._database.read(lambda connection: connection.execute(question).all())
        return [_project(row) for row in found]

    async def change(self, workspace: str, name: str, change: PlaceChange) -> ProjectView:
        statement = update(projects).where(is_row(projects, workspace=workspace, name=name)).values(**_changed(change))
        if _changed(change):
            await self._database.write(lambda connection: connection.execute(statement).rowcount)
        return await self.get(workspace, name)


def _project(row: Row[tuple[object, ...]]) -> ProjectView:
    return ProjectView(workspace=row.workspace, name=row.name, description=row.description, archived=bool(row.archived))
