"""Who holds which role over what, over HTTP."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import delete, get, put
from litestar.params import Parameter

from clutch.master.access.caller import Caller
from clutch.master.access.rules import subject_of, workspace_of
from clutch.master.api.paging import After, Limit, check_cursor, paged
from clutch.master.services import Services
from clutch.wire.access import Needs, Role, RoleGrant
from clutch.wire.api import API, Page

ROLES = f"{API}/roles"
Scope = Annotated[str, Parameter(max_length=140, description="`cluster` or `workspace:NAME`.")]
Subject = Annotated[str, Parameter(max_length=140, description="`user:NAME` or `group:NAME`.")]


def _require(caller: Caller, scope: str, role: Role) -> None:
    workspace = workspace_of(scope)
    if workspace is None:
        caller.require_cluster(scope, role)
    else:
        caller.require(workspace, scope, role)


@get(ROLES, operation_id="list_roles", tags=["access"], opt={"needs": Needs.VIEWER})
async def list_roles(
    services: Services,
    caller: Caller,
    over: Scope = "",
    subject: Subject = "",
    after: After = "",
    limit: Limit = 100,
) -> Page[RoleGrant]:
    """Who holds which role, over the workspaces one may see; over the cluster for those who may see all of it."""
    workspaces = caller.filters()
    scopes = tuple(f"workspace:{name}" for name in workspaces) if workspaces is not None else None
    if over:
        _require(caller, over, Role.VIEWER)
        scopes = (over,)
    if subject:
        subject_of(subject)
    found = await services.access.store.grants.page(scopes, subject, check_cursor(after), limit + 1)
    return paged(found, limit, lambda grant: f"{grant.subject} {grant.scope}")


@put(ROLES, operation_id="grant_role", tags=["access"], opt={"needs": Needs.ADMIN})
async def grant_role(services: Services, caller: Caller, data: RoleGrant) -> RoleGrant:
    """Give a user or group this role over this scope, instead of the one it has there."""
    subject_of(data.subject)
    _require(caller, data.scope, Role.ADMIN)
    await services.access.store.grants.put(data)
    services.access.forget()
    return data


@delete(ROLES, operation_id="take_role", tags=["access"], opt={"needs": Needs.ADMIN})
async def take_role(services: Services, caller: Caller, subject: Subject, over: Scope) -> None:
    """Take a user's or group's role over this scope."""
    subject_of(subject)
    _require(caller, over, Role.ADMIN)
    await services.access.store.grants.delete(subject, over)
    services.access.forget()


ROUTES: list[Any] = [list_roles, grant_role, take_role]
