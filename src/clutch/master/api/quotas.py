"""Quotas over HTTP: the most slots a user or a workspace may hold at once."""

from __future__ import annotations

from typing import Any

from litestar import delete, get, put

from clutch.core.checks import NAME, SLOTS_MAX
from clutch.master.access.caller import Caller
from clutch.master.services import Services
from clutch.wire import events as e
from clutch.wire.access import Needs
from clutch.wire.api import API, Quotas
from clutch.wire.errors import BadRequest, NotFound
from clutch.wire.specs import Quota

QUOTAS = f"{API}/quotas"


def _check_scope(scope: str) -> str:
    kind, _, name = scope.partition(":")
    if kind not in ("user", "workspace") or not NAME.fullmatch(name):
        raise BadRequest(
            "a quota is for 'user:NAME' or 'workspace:NAME'", object="quota", path="scope",
            next_step="Name one of these.",
        )  # fmt: skip
    return scope


@get(QUOTAS, operation_id="list_quotas", tags=["quotas"], opt={"needs": Needs.USER})
async def list_quotas(services: Services, caller: Caller) -> Quotas:
    """The quotas one is under: one's own and those of one's workspaces; all for those who may see the cluster."""
    state = await services.loop.settled()
    seen = caller.workspaces()
    if seen is None:
        return Quotas(tuple(state.quotas.values()))
    scopes = {f"user:{caller.name}", *(f"workspace:{name}" for name in seen)}
    return Quotas(tuple(quota for scope, quota in state.quotas.items() if scope in scopes))


@put(QUOTAS, operation_id="set_quota", tags=["quotas"], opt={"needs": Needs.CLUSTER_ADMIN})
async def set_quota(services: Services, caller: Caller, data: Quota) -> Quota:
    """Bound a user or a workspace to so many slots. What is held already stays held."""
    _check_scope(data.scope)
    if not 0 <= data.slots <= SLOTS_MAX:
        raise BadRequest(
            f"{data.slots} is not a number of slots from 0 to {SLOTS_MAX}",
            object=f"quota of {data.scope}",
            path="slots",
        )
    await services.loop.ask(e.SetQuota(cause=f"api:{caller.name}", quota=data))
    return data


@delete(f"{QUOTAS}/{{whose:str}}", operation_id="remove_quota", tags=["quotas"], opt={"needs": Needs.CLUSTER_ADMIN})
async def remove_quota(services: Services, caller: Caller, whose: str) -> None:
    """Bound a user or a workspace no more."""
    state = await services.loop.settled()
    if _check_scope(whose) not in state.quotas:
        raise NotFound("it has no quota", object=whose, next_step=f"List them with GET {QUOTAS}.")
    await services.loop.ask(e.RemoveQuota(cause=f"api:{caller.name}", scope=whose))


ROUTES: list[Any] = [list_quotas, set_quota, remove_quota]
