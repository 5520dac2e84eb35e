"""Users over HTTP."""

from __future__ import annotations

from typing import Any

from litestar import get, patch, post

from clutch.master.access.caller import Caller
from clutch.master.access.rules import check_id, check_name, check_text
from clutch.master.api.paging import After, Limit, check_cursor, paged
from clutch.master.services import Services
from clutch.wire.access import Needs, NewUser, UserChange, UserView
from clutch.wire.api import API, Page
from clutch.wire.errors import NotAllowed

USERS = f"{API}/users"


@get(USERS, operation_id="list_users", tags=["users"], opt={"needs": Needs.USER})
async def list_users(services: Services, after: After = "", limit: Limit = 100) -> Page[UserView]:
    """All users, by name."""
    found = await services.access.store.users.page(check_cursor(after), limit + 1)
    return paged(found, limit, lambda user: user.name)


@get(f"{USERS}/{{name:str}}", operation_id="get_user", tags=["users"], opt={"needs": Needs.USER})
async def get_user(services: Services, name: str) -> UserView:
    """One user."""
    return await services.access.store.users.get(check_name(name, "user"))


@post(USERS, operation_id="create_user", tags=["users"], opt={"needs": Needs.CLUSTER_ADMIN})
async def create_user(services: Services, data: NewUser) -> UserView:
    """Create a user, with a password or without. They can do nothing before they are granted a role."""
    check_name(data.name, "user")
    check_text(data.display_name, "display_name")
    _check_mapping(data.uid, data.gid)
    hashed = await services.access.logins.hash(data.password) if data.password else ""
    return await services.access.store.users.create(data, hashed, services.clock.now())


@patch(f"{USERS}/{{name:str}}", operation_id="change_user", tags=["users"], opt={"needs": Needs.USER})
async def change_user(services: Services, caller: Caller, name: str, data: UserChange) -> UserView:
    """Change a user: one's own name and password, or anything as an administrator of the cluster. A new password ends
    all sessions; a deactivated user's tokens end for good."""
    check_name(name, "user")
    await _check_right(services, caller, name, data)
    if data.display_name is not None:
        check_text(data.display_name, "display_name")
    _check_mapping(data.uid, data.gid)
    hashed = await services.access.logins.hash(data.password) if data.password is not None else None
    changed = await services.access.store.users.change(name, data, hashed)
    services.access.forget()
    return changed


async def _check_right(services: Services, caller: Caller, name: str, data: UserChange) -> None:
    plain = data.active is None and data.uid is None and data.gid is None and not data.unmap
    if name != caller.name or not plain:
        caller.require_cluster(f"user {name}")
        return
    if not caller.is_unlimited():
        raise NotAllowed(
            "a token with limits cannot change its user",
            object=f"user {name}",
            next_step="Log in and change it with that session.",
        )
    if data.password is None:
        return
    has_one = (await services.access.store.users.credentials(name))[0]
    if has_one and not await services.access.logins.matches(name, data.current_password):
        raise NotAllowed(
            "the current password is missing or wrong",
            object=f"user {name}",
            next_step="Give it as current_password; an administrator can set a new one without it.",
        )


def _check_mapping(uid: int | None, gid: int | None) -> None:
    check_id(uid, "uid")
    check_id(gid, "gid")


ROUTES: list[Any] = [list_users, get_user, create_user, change_user]
