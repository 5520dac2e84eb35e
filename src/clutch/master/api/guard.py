"""The guard in front of every route: who calls, whether this route is for them, and whether its handler has looked.

Each route declares one ``Needs`` in its ``opt``; an app with a route that does not is not made. Only the paths in
``PUBLIC`` may need nothing. What a route needs of a *workspace* only its handler can ask, because only it knows the
thing and its workspace: the guard lends it the ``Caller``, and ``forgotten`` says afterwards if it never asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from litestar.connection import ASGIConnection
from litestar.handlers.base import BaseRouteHandler

from clutch.master.access.caller import IN_WORKSPACE, ROLE_NEEDED, Caller
from clutch.wire.access import RANKS, CallerKind, Needs
from clutch.wire.api import API
from clutch.wire.errors import BrokenInvariant, NotAllowed, NotAuthenticated
from clutch.wire.link import AUTHORITY_PATH

if TYPE_CHECKING:
    from clutch.master.access.door import Access

TOKEN_PARAMETER = "token"
READING = ("GET", "HEAD", "OPTIONS")
PUBLIC: frozenset[tuple[str, str]] = frozenset(
    {
        ("GET", "/"),
        ("GET", "/health"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
        ("GET", AUTHORITY_PATH),
        ("POST", f"{API}/login"),
    }
)
"""The only routes that nobody needs a token for."""
CLUSTER_WIDE = (Needs.CLUSTER_VIEWER, Needs.CLUSTER_EDITOR, Needs.CLUSTER_ADMIN)
KINDS: dict[Needs, tuple[CallerKind, ...]] = {
    Needs.TASK: (CallerKind.TASK,),
    Needs.AGENT: (CallerKind.AGENT,),
    Needs.ENROLMENT: (CallerKind.ENROLMENT,),
    Needs.MEMBER_OR_USER: (CallerKind.USER, CallerKind.TASK),
}
"""Who a route is for; users, where nothing is said."""

Connection = ASGIConnection[Any, Any, Any, Any]


class Carrier(StrEnum):
    """How a token came. Addresses are seen by many, so one that holds a token only lets one read."""

    HEADER = "header"
    QUERY = "query"


def needs_of(handler: BaseRouteHandler) -> Needs:
    """What a route declares. The OPTIONS handlers that litestar adds by itself are for any user."""
    needs = handler.opt.get("needs")
    if isinstance(needs, Needs):
        return needs
    if getattr(handler, "http_methods", None) == {"OPTIONS"}:
        return Needs.USER
    raise BrokenInvariant(
        "it does not say what it needs of its caller",
        object=f"route {sorted(handler.paths)} ({handler})",
        next_step="Give it opt={'needs': Needs.X}.",
    )


def check_routes(routes: Iterable[Any]) -> None:
    """Raises ``BrokenInvariant`` when a route says not what it needs, or lets everybody in and is not in ``PUBLIC``."""
    for route in routes:
        handlers = getattr(route, "route_handlers", None) or [route.route_handler]
        for handler in handlers:
            if needs_of(handler) is not Needs.PUBLIC:
                continue
            methods = getattr(handler, "http_methods", {"WEBSOCKET"})
            if any((method, route.path) not in PUBLIC for method in methods):
                raise BrokenInvariant("it needs nothing and is not one of the public routes", object=route.path)


def bearer_of(connection: Connection) -> tuple[str, Carrier]:
    """The token of a request and how it came. Never a cookie: a page that some task serves through the proxy has our
    origin, and a browser would send it along whatever that page asks for (decision 1304)."""
    header = connection.headers.get("authorization", "")
    if header:
        scheme, _, token = header.partition(" ")
        return (token.strip() if scheme.lower() == "bearer" else ""), Carrier.HEADER
    token = connection.query_params.get(TOKEN_PARAMETER, "")
    return (token if isinstance(token, str) else ""), Carrier.QUERY


def check_carrier(connection: Connection, carrier: Carrier) -> None:
    """A link that holds a token may not change anything."""
    method = connection.scope.get("method", "WEBSOCKET")
    if carrier is Carrier.QUERY and method not in (*READING, "WEBSOCKET"):
        raise NotAuthenticated(
            "a token in the address only lets one read", object="token", next_step="Send it as 'Authorization: Bearer'."
        )


def check_caller(caller: Caller, needs: Needs) -> None:
    """Raises ``NotAllowed`` unless the route is for such a caller, workspaces apart."""
    kinds = KINDS.get(needs, (CallerKind.USER,))
    if caller.kind not in kinds:
        raise NotAllowed(
            f"this is for a {' or a '.join(kinds)}, and {caller} is a {caller.kind}",
            object=str(caller),
            next_step="Use a token of the right kind.",
        )
    if needs in CLUSTER_WIDE:
        needed, held = ROLE_NEEDED[needs], caller.cluster_role()
        if held is None or RANKS[held] < RANKS[needed]:
            raise NotAllowed(
                f"this needs the role {needed} over the whole cluster; {caller} has {held or 'none there'}",
                object=str(caller),
                next_step="Ask an administrator of the cluster.",
            )


def forgotten(caller: Caller | None) -> bool:
    """Whether a handler that promised to ask about a workspace has not."""
    if caller is None or caller.checked:
        return False
    asked = caller.needs is Needs.MEMBER_OR_USER and caller.kind is CallerKind.USER
    return asked or caller.needs in IN_WORKSPACE


def make_guard(access: Access) -> Callable[[Connection, BaseRouteHandler], Awaitable[None]]:
    """The guard of an app: it leaves the caller in the connection's state, or raises."""

    async def admit(connection: Connection, handler: BaseRouteHandler) -> None:
        needs = needs_of(handler)
        if needs is Needs.TICKET:
            return  # the proxy's own door looks at tickets and tokens
        if needs is Needs.PUBLIC:
            connection.scope["state"]["caller"] = Caller(CallerKind.USER, "anonymous")
            return
        token, carrier = bearer_of(connection)
        if not token:
            raise NotAuthenticated(
                "no token came with it", object="request", next_step="Log in with 'clutch login', or send a token."
            )
        check_carrier(connection, carrier)
        caller = await access.identify(token)
        caller.needs = needs
        connection.scope["state"]["caller"] = caller
        check_caller(caller, needs)

    return admit
