"""Groups of users over HTTP. What is granted to a group, all its members hold."""

from __future__ import annotations

from typing import Any

from litestar import delete, get, post, put

from clutch.master.access.rules import check_name
from clutch.master.api.paging import After, Limit, check_cursor, paged
from clutch.master.services import Services
from clutch.wire.access import GroupMembers, GroupView, Needs, NewGroup
from clutch.wire.api import API, Page
from clutch.wire.errors import BadRequest

GROUPS = f"{API}/groups"
ONE = f"{GROUPS}/{{name:str}}"
MEMBERS_MAX = 10_000


def _check_members(members: tuple[str, ...]) -> None:
    if len(members) > MEMBERS_MAX:
        raise BadRequest(f"a group has at most {MEMBERS_MAX} members", object="group", path="members")
    for member in members:
        check_name(member, "user")


@get(GROUPS, operation_id="list_groups", tags=["groups"], opt={"needs": Needs.USER})
async def list_groups(services: Services, after: After = "", limit: Limit = 100) -> Page[GroupView]:
    """All groups with their members, by name."""
    found = await services.access.store.groups.page(check_cursor(after), limit + 1)
    return paged(found, limit, lambda group: group.name)


@get(ONE, operation_id="get_group", tags=["groups"], opt={"needs": Needs.USER})
async def get_group(services: Services, name: str) -> GroupView:
    """One group."""
    return await services.access.store.groups.get(check_name(name, "group"))


@post(GROUPS, operation_id="create_group", tags=["groups"], opt={"needs": Needs.CLUSTER_ADMIN})
async def create_group(services: Services, data: NewGroup) -> GroupView:
    """Create a group."""
    check_name(data.name, "group")
    _check_members(data.members)
    made = await services.access.store.groups.create(data, services.clock.now())
    services.access.forget()
    return made


@put(f"{ONE}/members", operation_id="set_group_members", tags=["groups"], opt={"needs": Needs.CLUSTER_ADMIN})
async def set_group_members(services: Services, name: str, data: GroupMembers) -> GroupView:
    """Replace all members of a group."""
    _check_members(data.members)
    changed = await services.access.store.groups.set_members(check_name(name, "group"), data.members)
    services.access.forget()
    return changed


@put(f"{ONE}/members/{{user:str}}", operation_id="add_to_group", tags=["groups"], opt={"needs": Needs.CLUSTER_ADMIN})
async def add_to_group(services: Services, name: str, user: str) -> GroupView:
    """Add a user to a group; nothing when they are in it."""
    changed = await services.access.store.groups.add(check_name(name, "group"), check_name(user, "user"))
    services.access.forget()
    return changed


@delete(
    f"{ONE}/members/{{user:str}}",
    operation_id="remove_from_group",
    tags=["groups"],
    status_code=200,
    opt={"needs": Needs.CLUSTER_ADMIN},
)
async def remove_from_group(services: Services, name: str, user: str) -> GroupView:
    """Take a user out of a group; nothing when they are not in it."""
    changed = await services.access.store.groups.remove(check_name(name, "group"), check_name(user, "user"))
    services.access.forget()
    return changed


@delete(ONE, operation_id="delete_group", tags=["groups"], opt={"needs": Needs.CLUSTER_ADMIN})
async def delete_group(services: Services, name: str) -> None:
    """Delete a group, and with it what was granted to it."""
    await services.access.store.groups.delete(check_name(name, "group"))
    services.access.forget()


ROUTES: list[Any] = [
    list_groups,
    get_group,
    create_group,
    set_group_members,
    add_to_group,
    remove_from_group,
    delete_group,
]
