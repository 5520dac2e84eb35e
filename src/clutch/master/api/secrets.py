"""Secrets of a workspace over HTTP: put, named, deleted. Nothing answers with a value."""

from __future__ import annotations

from typing import Any

from litestar import delete, get, post, put

from clutch.master.access.caller import Caller
from clutch.master.access.rules import check_name, check_text
from clutch.master.access.secret_store import VALUE_MAX_BYTES
from clutch.master.api.paging import After, Limit, check_cursor, paged
from clutch.master.services import Services
from clutch.wire.access import Needs, NewSecret, Resealed, SecretView
from clutch.wire.api import API, Page

SECRETS = f"{API}/workspaces/{{workspace:str}}/secrets"


@get(SECRETS, operation_id="list_secrets", tags=["secrets"], opt={"needs": Needs.VIEWER})
async def list_secrets(
    services: Services, caller: Caller, workspace: str, after: After = "", limit: Limit = 100
) -> Page[SecretView]:
    """The names of a workspace's secrets."""
    caller.require(check_name(workspace, "workspace"), f"workspace {workspace}")
    found = await services.access.store.secrets.page(workspace, check_cursor(after), limit + 1)
    return paged(found, limit, lambda view: view.name)


@put(SECRETS, operation_id="put_secret", tags=["secrets"], opt={"needs": Needs.EDITOR})
async def put_secret(services: Services, caller: Caller, workspace: str, data: NewSecret) -> SecretView:
    """Keep a secret under this name, instead of the one it has. Programs of the workspace find it by name."""
    caller.require(check_name(workspace, "workspace"), f"workspace {workspace}")
    check_name(data.name, "secret")
    check_text(data.value, "value", VALUE_MAX_BYTES)
    return await services.access.store.secrets.put(workspace, data, caller.name, services.clock.now())


@delete(f"{SECRETS}/{{name:str}}", operation_id="delete_secret", tags=["secrets"], opt={"needs": Needs.EDITOR})
async def delete_secret(services: Services, caller: Caller, workspace: str, name: str) -> None:
    """Delete a secret. A program that names it will not start any more."""
    caller.require(check_name(workspace, "workspace"), f"workspace {workspace}")
    await services.access.store.secrets.delete(workspace, check_name(name, "secret"))


@post(f"{API}/master-key", operation_id="rotate_master_key", tags=["secrets"], opt={"needs": Needs.CLUSTER_ADMIN})
async def rotate_master_key(services: Services) -> Resealed:
    """Make a new master key and seal every secret with it. What runs is not disturbed."""
    return Resealed(secrets=await services.access.rotate_key(), key=services.access.keys.newest)


ROUTES: list[Any] = [list_secrets, put_secret, delete_secret, rotate_master_key]
