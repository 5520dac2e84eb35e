"""How a machine becomes a node: it shows an enrolment token and gets one of its own, for its name alone."""

from __future__ import annotations

from typing import Any

from litestar import delete, get, post

from clutch.master.access.caller import Caller
from clutch.master.access.rules import check_name
from clutch.master.api.paging import After, Limit, check_cursor, paged
from clutch.master.services import Services
from clutch.wire.access import Enrol, MadeToken, Needs, TokenKind, TokenView
from clutch.wire.api import API, Page
from clutch.wire.errors import NotAllowed, NotFound
from clutch.wire.link import ENROL_PATH

ENROLMENTS = f"{API}/enrolments"


@post(ENROL_PATH, operation_id="enrol_agent", tags=["enrolment"], opt={"needs": Needs.ENROLMENT})
async def enrol_agent(services: Services, caller: Caller, data: Enrol) -> MadeToken:
    """Exchange an enrolment token for one of this node's own. If the name had one already, that one ends now: the
    machine that had it must enrol again."""
    check_name(data.node, "node")
    permit = await services.access.store.tokens.get(caller.token)
    if data.pool:
        check_name(data.pool, "pool")
    if permit.pool and data.pool and data.pool != permit.pool:
        raise NotAllowed(
            f"this enrolment is for pool {permit.pool}",
            object=f"node {data.node}",
            next_step=f"Join pool {permit.pool}, or ask for another enrolment token.",
        )
    pool = permit.pool or data.pool
    return await services.access.enrol(data.node, pool, permit.user, f"enrolled with {permit.id}")


@get(ENROLMENTS, operation_id="list_enrolments", tags=["enrolment"], opt={"needs": Needs.CLUSTER_ADMIN})
async def list_enrolments(services: Services, after: After = "", limit: Limit = 100) -> Page[TokenView]:
    """The tokens that agents have or had, newest first."""
    found = await services.access.store.tokens.page("", TokenKind.AGENT, check_cursor(after), limit + 1)
    return paged(found, limit, lambda view: view.id)


@delete(f"{ENROLMENTS}/{{node:str}}", operation_id="revoke_enrolment", tags=["enrolment"],
        opt={"needs": Needs.CLUSTER_ADMIN})  # fmt: skip
async def revoke_enrolment(services: Services, node: str) -> None:
    """End the token of a node's agent. What runs there goes on; its agent must enrol again to be heard."""
    if not await services.access.store.tokens.revoke_node(check_name(node, "node")):
        raise NotFound("its agent has no token", object=f"node {node}")
    services.access.forget()


ROUTES: list[Any] = [enrol_agent, list_enrolments, revoke_enrolment]
