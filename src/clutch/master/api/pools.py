"""Pools over HTTP: seen by every user, made and changed by the cluster's administrators."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import get, put
from litestar.params import Parameter

from clutch.master.access.caller import Caller
from clutch.master.api.paging import After, Limit, check_cursor
from clutch.master.details import pool_detail
from clutch.master.services import Services
from clutch.wire import events as e
from clutch.wire.access import Needs
from clutch.wire.api import API, Page, PoolDetail
from clutch.wire.errors import BadRequest
from clutch.wire.ids import PoolName
from clutch.wire.specs import PoolSpec

POOLS = f"{API}/pools"
Name = Annotated[str, Parameter(max_length=128, description="The pool's name.")]


@get(POOLS, operation_id="list_pools", tags=["pools"], opt={"needs": Needs.USER})
async def list_pools(services: Services, limit: Limit = 100, after: After = "") -> Page[PoolDetail]:
    """Pools by name."""
    check_cursor(after)
    state = await services.loop.settled()
    names = sorted(name for name in state.pools if name > after)
    found = tuple(pool_detail(state, state.pools[name]) for name in names[:limit])
    return Page(found, names[limit - 1] if len(names) > limit else "")


@get(f"{POOLS}/{{pool:str}}", operation_id="get_pool", tags=["pools"], opt={"needs": Needs.USER})
async def get_pool(services: Services, pool: Name) -> PoolDetail:
    """A pool with what it has and what happens in it."""
    state = await services.loop.settled()
    return pool_detail(state, state.pool(PoolName(pool)))


@put(f"{POOLS}/{{pool:str}}", operation_id="put_pool", tags=["pools"], opt={"needs": Needs.CLUSTER_ADMIN})
async def put_pool(services: Services, caller: Caller, pool: Name, data: PoolSpec) -> PoolDetail:
    """Make or change a pool."""
    if data.name != pool:
        raise BadRequest(f"the path names {pool!r}", object=f"pool {data.name[:128]!r}", path="name")
    await services.loop.ask(e.PutPool(cause=f"api:{caller.name}", pool=data))
    state = await services.loop.settled()
    return pool_detail(state, state.pool(data.name))


ROUTES: list[Any] = [list_pools, get_pool, put_pool]
