"""Coming in and leaving, and who one is."""

from __future__ import annotations

from typing import Any

from litestar import Request, get, post

from clutch.master.access.caller import Caller
from clutch.master.services import Services
from clutch.wire.access import Login, MadeToken, Needs, TokenKind, WhoAmI
from clutch.wire.api import API
from clutch.wire.errors import Conflict


@post(f"{API}/login", operation_id="log_in", tags=["login"], status_code=200, opt={"needs": Needs.PUBLIC})
async def log_in(request: Request[Any, Any, Any], services: Services, caller: Caller, data: Login) -> MadeToken:
    """Exchange a password or a one-time token for a session."""
    address = request.client.host if request.client is not None else ""
    made = await services.access.logins.log_in(data, address)
    caller.name = made.view.user
    return made


@post(f"{API}/logout", operation_id="log_out", tags=["login"], status_code=204, opt={"needs": Needs.USER})
async def log_out(services: Services, caller: Caller) -> None:
    """End the session this was asked with."""
    found = await services.access.store.tokens.get(caller.token)
    if found.kind is not TokenKind.SESSION:
        raise Conflict(
            "this is no session but a token made for programs",
            object=f"token {caller.token}",
            next_step=f"Revoke it, if it is to end: DELETE {API}/tokens/{caller.token}.",
        )
    await services.access.revoke(caller.token)


@get(f"{API}/me", operation_id="get_me", tags=["login"], opt={"needs": Needs.USER})
async def get_me(caller: Caller) -> WhoAmI:
    """Who the token belongs to, and what it can do."""
    return WhoAmI(kind=caller.kind, name=caller.name, roles=caller.effective_roles())


ROUTES: list[Any] = [log_in, log_out, get_me]
