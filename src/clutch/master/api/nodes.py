"""Nodes over HTTP: looked at by everybody with a role over the cluster, emptied, opened and removed by its editors."""

from __future__ import annotations

from typing import Annotated, Any, cast

import msgspec
from litestar import delete, get, post, put
from litestar.params import Parameter

from clutch.core.checks import NAME
from clutch.core.projection import node_view
from clutch.master.access.caller import Caller
from clutch.master.api.paging import After, Limit, StateWord, Word, check_cursor, paged, words
from clutch.master.details import members_on
from clutch.master.services import Services
from clutch.wire import events as e
from clutch.wire.access import Needs
from clutch.wire.api import API, NodeDetail, Page, SetSlots
from clutch.wire.errors import BadRequest, NotFound
from clutch.wire.ids import NodeId
from clutch.wire.views import NodeView

NODES = f"{API}/nodes"
NODE = f"{NODES}/{{node:str}}"
SLOTS_MAX = 10_000

Name = Annotated[str, Parameter(max_length=128, description="The node's name, or a unique beginning of it.")]


@get(NODES, operation_id="list_nodes", tags=["nodes"], opt={"needs": Needs.USER})
async def list_nodes(
    services: Services, caller: Caller, pool: Word = "", states: StateWord = "", limit: Limit = 100, after: After = ""
) -> Page[NodeView]:
    """Nodes by name."""
    given = {"pool": words(pool, "pool"), "state": words(states, "state")}
    where = {column: value for column, value in given.items() if value}
    found = await services.journal.page(NodeView.table, where, "key", check_cursor(after), limit + 1)
    views = cast(list[NodeView], found)
    if caller.cluster_role() is None:  # a reason may name members of workspaces they do not see
        views = [msgspec.structs.replace(view, reason="") for view in views]
    return paged(views, limit, lambda view: view.key)


@get(NODE, operation_id="get_node", tags=["nodes"], opt={"needs": Needs.CLUSTER_VIEWER})
async def get_node(services: Services, node: Name) -> NodeDetail:
    """A node with its slots, what its agent measures, and who is on it."""
    name = await _find(services, node)
    state = await services.loop.settled()
    found = state.node(name)
    return NodeDetail(
        node=node_view(state, found),
        slots=found.capacity.slots,
        disabled=found.disabled,
        use=services.monitor.node(name),
        members=members_on(state, name, services.monitor),
    )


async def _find(services: Services, wanted: str) -> NodeId:
    state = await services.loop.settled()
    if NodeId(wanted) in state.nodes:
        return NodeId(wanted)
    begun = [name for name in state.nodes if NAME.fullmatch(wanted) and name.startswith(wanted)]
    if len(begun) == 1:
        return begun[0]
    raise NotFound(
        f"several nodes fit: {', '.join(begun[:5])}" if begun else "no node has this name",
        object=f"node {wanted[:128]}",
        next_step="List nodes with 'clutch agent list'.",
    )


@post(f"{NODE}/drain", operation_id="drain_node", tags=["nodes"], opt={"needs": Needs.CLUSTER_EDITOR}, status_code=204)
async def drain_node(services: Services, caller: Caller, node: Name) -> None:
    """Empty a node: what can leave is asked to, and nothing new is placed there."""
    name = await _find(services, node)
    await services.loop.ask(e.DrainNode(cause=f"api:{caller.name}", node=name))


@post(f"{NODE}/open", operation_id="open_node", tags=["nodes"], opt={"needs": Needs.CLUSTER_EDITOR}, status_code=204)
async def open_node(services: Services, caller: Caller, node: Name) -> None:
    """Take a drained node back into service."""
    name = await _find(services, node)
    await services.loop.ask(e.OpenNode(cause=f"api:{caller.name}", node=name))


@delete(NODE, operation_id="remove_node", tags=["nodes"], opt={"needs": Needs.CLUSTER_ADMIN}, status_code=204)
async def remove_node(services: Services, caller: Caller, node: Name) -> None:
    """Forget a node that is lost or drained empty."""
    name = await _find(services, node)
    await services.loop.ask(e.RemoveNode(cause=f"api:{caller.name}", node=name))
    services.monitor.forget(name)


@put(
    f"{NODE}/slots", operation_id="set_node_slots", tags=["nodes"], opt={"needs": Needs.CLUSTER_EDITOR}, status_code=204
)
async def set_node_slots(services: Services, caller: Caller, node: Name, data: SetSlots) -> None:
    """Say which slots of a node get nothing new; an empty list enables all."""
    name = await _find(services, node)
    if len(data.disabled) > SLOTS_MAX:
        raise BadRequest(f"at most {SLOTS_MAX}", object=f"node {name}", path="disabled")
    await services.loop.ask(e.DisableSlots(cause=f"api:{caller.name}", node=name, slots=data.disabled))


ROUTES: list[Any] = [list_nodes, get_node, drain_node, open_node, remove_node, set_node_slots]
