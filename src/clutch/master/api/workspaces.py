"""Workspaces and their projects over HTTP. One sees those in which one has a role."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import get, patch, post

from clutch.master.access.caller import Caller
from clutch.master.access.rules import check_name, check_text
from clutch.master.api.paging import After, Limit, check_cursor, paged
from clutch.master.services import Services
from clutch.wire.access import (
    Needs,
    NewProject,
    NewWorkspace,
    PlaceChange,
    ProjectView,
    Role,
    WorkspaceView,
)
from clutch.wire.api import API, Page
from clutch.wire.errors import NotAllowed

WORKSPACES = f"{API}/workspaces"
ONE = f"{WORKSPACES}/{{workspace:str}}"


def _seen(view: WorkspaceView, caller: Caller) -> WorkspaceView:
    return msgspec.structs.replace(view, role=caller.role_in(view.name))


@get(WORKSPACES, operation_id="list_workspaces", tags=["workspaces"], opt={"needs": Needs.VIEWER})
async def list_workspaces(
    services: Services, caller: Caller, after: After = "", limit: Limit = 100
) -> Page[WorkspaceView]:
    """The workspaces one may see, by name, with one's own role in each."""
    found = await services.access.store.workspaces.page(caller.filters(), check_cursor(after), limit + 1)
    return paged([_seen(view, caller) for view in found], limit, lambda view: view.name)


@get(ONE, operation_id="get_workspace", tags=["workspaces"], opt={"needs": Needs.VIEWER})
async def get_workspace(services: Services, caller: Caller, workspace: str) -> WorkspaceView:
    """One workspace."""
    caller.require(check_name(workspace, "workspace"), f"workspace {workspace}")
    return _seen(await services.access.store.workspaces.get(workspace), caller)


@post(WORKSPACES, operation_id="create_workspace", tags=["workspaces"], opt={"needs": Needs.USER})
async def create_workspace(services: Services, caller: Caller, data: NewWorkspace) -> WorkspaceView:
    """Create a workspace and be its administrator."""
    if caller.only or caller.ceiling is Role.VIEWER:
        raise NotAllowed(
            "this token is for reading, or for one workspace only",
            object=f"token {caller.token}",
            next_step="Use a token without that limit.",
        )
    check_name(data.name, "workspace")
    check_text(data.description, "description")
    await services.access.store.workspaces.create(data, caller.name, services.clock.now())
    services.access.forget()
    role = Role.ADMIN if caller.ceiling is None else caller.ceiling
    return WorkspaceView(name=data.name, description=data.description, role=role)


@patch(ONE, operation_id="change_workspace", tags=["workspaces"], opt={"needs": Needs.ADMIN})
async def change_workspace(services: Services, caller: Caller, workspace: str, data: PlaceChange) -> WorkspaceView:
    """Describe a workspace, archive it, or take it out of the archive."""
    caller.require(check_name(workspace, "workspace"), f"workspace {workspace}")
    check_text(data.description or "", "description")
    return _seen(await services.access.store.workspaces.change(workspace, data), caller)


# -- projects -----------------------------------------------------------------------------------------------------


@get(f"{ONE}/projects", operation_id="list_projects", tags=["workspaces"], opt={"needs": Needs.VIEWER})
async def list_projects(
    services: Services, caller: Caller, workspace: str, after: After = "", limit: Limit = 100
) -> Page[ProjectView]:
    """The projects of a workspace, by name."""
    caller.require(check_name(workspace, "workspace"), f"workspace {workspace}")
    found = await services.access.store.projects.page(workspace, check_cursor(after), limit + 1)
    return paged(found, limit, lambda view: view.name)


@post(f"{ONE}/projects", operation_id="create_project", tags=["workspaces"], opt={"needs": Needs.EDITOR})
async def create_project(services: Services, caller: Caller, workspace: str, data: NewProject) -> ProjectView:
    """Create a project in a workspace."""
    caller.require(check_name(workspace, "workspace"), f"workspace {workspace}")
    check_name(data.name, "project")
    check_text(data.description, "description")
    await services.access.store.check_place(workspace)
    return await services.access.store.projects.create(workspace, data)


@get(f"{ONE}/projects/{{project:str}}", operation_id="get_project", tags=["workspaces"], opt={"needs": Needs.VIEWER})
async def get_project(services: Services, caller: Caller, workspace: str, project: str) -> ProjectView:
    """One project."""
    caller.require(check_name(workspace, "workspace"), f"workspace {workspace}")
    return await services.access.store.projects.get(workspace, check_name(project, "project"))


@patch(
    f"{ONE}/projects/{{project:str}}", operation_id="change_project", tags=["workspaces"], opt={"needs": Needs.EDITOR}
)
async def change_project(
    services: Services, caller: Caller, workspace: str, project: str, data: PlaceChange
) -> ProjectView:
    """Describe a project, archive it, or take it out of the archive."""
    caller.require(check_name(workspace, "workspace"), f"workspace {workspace}")
    check_text(data.description or "", "description")
    return await services.access.store.projects.change(workspace, check_name(project, "project"), data)


ROUTES: list[Any] = [
    list_workspaces,
    get_workspace,
    create_workspace,
    change_workspace,
    list_projects,
    create_project,
    get_project,
    change_project,
]
