"""Every operation on who may do what, as a value: logins, users, groups, workspaces, tokens, secrets, quotas. Pure."""

from __future__ import annotations

from typing import Any

from clutch.sdk.call import Call, delete, get, patch, path, post, put
from clutch.wire.access import (
    AuditEntry,
    GroupMembers,
    GroupView,
    Login,
    MadeToken,
    NewGroup,
    NewProject,
    NewSecret,
    NewToken,
    NewUser,
    NewWorkspace,
    PlaceChange,
    ProjectView,
    RoleGrant,
    SecretView,
    TokenView,
    UsageRow,
    UserChange,
    UserView,
    WhoAmI,
    WorkspaceView,
)
from clutch.wire.api import Page, Quotas
from clutch.wire.specs import Quota

# -- coming in ----------------------------------------------------------------------------------------------------


def log_in(login: Login) -> Call[MadeToken]:
    return post(("login",), MadeToken, login)


def log_out() -> Call[None]:
    return Call(method="POST", path=path("logout"))


def who_am_i() -> Call[WhoAmI]:
    return get(("me",), WhoAmI)


# -- people -------------------------------------------------------------------------------------------------------


def list_users(**filters: Any) -> Call[Page[UserView]]:
    return get(("users",), Page[UserView], filters)


def get_user(name: str) -> Call[UserView]:
    return get(("users", name), UserView)


def create_user(user: NewUser) -> Call[UserView]:
    return post(("users",), UserView, user)


def change_user(name: str, change: UserChange) -> Call[UserView]:
    return patch(("users", name), UserView, change)


def list_groups(**filters: Any) -> Call[Page[GroupView]]:
    return get(("groups",), Page[GroupView], filters)


def create_group(group: NewGroup) -> Call[GroupView]:
    return post(("groups",), GroupView, group)


def set_members(group: str, members: tuple[str, ...]) -> Call[GroupView]:
    return put(("groups", group, "members"), GroupView, GroupMembers(members))


def add_member(group: str, user: str) -> Call[GroupView]:
    return Call(method="PUT", path=path("groups", group, "members", user), answer=GroupView, repeatable=True)


def remove_member(group: str, user: str) -> Call[GroupView]:
    return Call(method="DELETE", path=path("groups", group, "members", user), answer=GroupView, repeatable=True)


def delete_group(group: str) -> Call[None]:
    return delete(("groups", group))


def list_roles(**filters: Any) -> Call[Page[RoleGrant]]:
    """Filters: ``over`` (a scope), ``subject``."""
    return get(("roles",), Page[RoleGrant], filters)


def grant_role(grant: RoleGrant) -> Call[RoleGrant]:
    return put(("roles",), RoleGrant, grant)


def take_role(subject: str, over: str) -> Call[None]:
    return delete(("roles",), {"subject": subject, "over": over})


# -- places -------------------------------------------------------------------------------------------------------


def list_workspaces(**filters: Any) -> Call[Page[WorkspaceView]]:
    return get(("workspaces",), Page[WorkspaceView], filters)


def create_workspace(workspace: NewWorkspace) -> Call[WorkspaceView]:
    return post(("workspaces",), WorkspaceView, workspace)


def change_workspace(workspace: str, change: PlaceChange) -> Call[WorkspaceView]:
    return patch(("workspaces", workspace), WorkspaceView, change)


def list_projects(workspace: str, **filters: Any) -> Call[Page[ProjectView]]:
    return get(("workspaces", workspace, "projects"), Page[ProjectView], filters)


def create_project(workspace: str, project: NewProject) -> Call[ProjectView]:
    return post(("workspaces", workspace, "projects"), ProjectView, project)


def change_project(workspace: str, project: str, change: PlaceChange) -> Call[ProjectView]:
    return patch(("workspaces", workspace, "projects", project), ProjectView, change)


# -- keys and limits ----------------------------------------------------------------------------------------------


def list_tokens(**filters: Any) -> Call[Page[TokenView]]:
    """Filters: ``user``, ``kind``."""
    return get(("tokens",), Page[TokenView], filters)


def make_token(token: NewToken) -> Call[MadeToken]:
    return post(("tokens",), MadeToken, token)


def revoke_token(token: str) -> Call[None]:
    return delete(("tokens", token))


def list_secrets(workspace: str, **filters: Any) -> Call[Page[SecretView]]:
    return get(("workspaces", workspace, "secrets"), Page[SecretView], filters)


def put_secret(workspace: str, secret: NewSecret) -> Call[SecretView]:
    return put(("workspaces", workspace, "secrets"), SecretView, secret)


def delete_secret(workspace: str, name: str) -> Call[None]:
    return delete(("workspaces", workspace, "secrets", name))


def list_quotas() -> Call[Quotas]:
    return get(("quotas",), Quotas)


def set_quota(quota: Quota) -> Call[Quota]:
    return put(("quotas",), Quota, quota)


def remove_quota(scope: str) -> Call[None]:
    return delete(("quotas", scope))


# -- looking back -------------------------------------------------------------------------------------------------


def list_audit(**filters: Any) -> Call[Page[AuditEntry]]:
    """Filters: ``who``, ``action``, ``object``, ``since``, ``until``."""
    return get(("audit",), Page[AuditEntry], filters)


def list_usage(**filters: Any) -> Call[Page[UsageRow]]:
    """Filters: ``since``, ``until`` (days), ``by``, ``user``, ``workspace``, ``project``, ``pool``."""
    return get(("usage",), Page[UsageRow], filters)
