"""Tokens over HTTP: made, listed, revoked. The token itself is seen once, when it is made."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import delete, get, post
from litestar.params import Parameter

from clutch.master.access.caller import Caller
from clutch.master.access.rules import check_lifetime, check_name, check_text, narrowed
from clutch.master.api.paging import After, Limit, check_cursor, paged
from clutch.master.services import Services
from clutch.wire.access import MadeToken, Needs, NewToken, TokenKind, TokenView
from clutch.wire.api import API, Page
from clutch.wire.errors import BadRequest, NotAllowed, NotFound

TOKENS = f"{API}/tokens"
ONE_TIME_MAX_S = 86400.0
Name = Annotated[str, Parameter(max_length=128)]


@get(TOKENS, operation_id="list_tokens", tags=["tokens"], opt={"needs": Needs.USER})
async def list_tokens(
    services: Services,
    caller: Caller,
    user: Name = "",
    kind: TokenKind | None = None,
    after: After = "",
    limit: Limit = 100,
) -> Page[TokenView]:
    """One's own tokens, newest first; those of another `user`, or of all (`*`), for administrators of the cluster."""
    wanted = caller.name if not user else "" if user == "*" else check_name(user, "user")
    if wanted != caller.name:
        caller.require_cluster("tokens")
    found = await services.access.store.tokens.page(wanted, kind or "", check_cursor(after), limit + 1)
    return paged(found, limit, lambda view: view.id)


@post(TOKENS, operation_id="make_token", tags=["tokens"], opt={"needs": Needs.USER})
async def make_token(services: Services, caller: Caller, data: NewToken) -> MadeToken:
    """Make a token. It can never do more than its user, nor more than the token it was made with."""
    check_text(data.description, "description")
    check_lifetime(data.expires_in_s)
    user = check_name(data.user, "user") if data.user else caller.name
    if data.kind not in (TokenKind.PERSONAL, TokenKind.ONE_TIME, TokenKind.ENROL):
        raise BadRequest(
            f"a token of kind {data.kind} is not made by hand",
            object="token",
            path="kind",
            next_step="Sessions come from a login, agents' tokens from enrolling.",
        )
    if user != caller.name or data.kind is TokenKind.ENROL:
        caller.require_cluster("token")
        await services.access.store.users.get(user)
    if data.kind is TokenKind.ONE_TIME and not caller.is_unlimited():
        raise NotAllowed("a token with limits cannot open a session", object=f"token {caller.token}")
    ceiling, workspace = narrowed((data.role, data.workspace), (caller.ceiling, caller.only))
    if workspace:
        await _check_workspace(services, check_name(workspace, "workspace"))
    if data.pool:
        check_name(data.pool, "pool")
    view = TokenView(
        id="",
        kind=data.kind,
        user=user,
        description=data.description,
        role=ceiling,
        workspace=workspace,
        pool=data.pool if data.kind is TokenKind.ENROL else "",
    )
    return await services.access.make_token(view, await _lifetime(services, caller, data))


async def _check_workspace(services: Services, workspace: str) -> None:
    try:
        await services.access.store.workspaces.get(workspace)
    except NotFound as error:
        raise BadRequest("there is no such workspace", object=f"workspace {workspace}", path="workspace") from error


async def _lifetime(services: Services, caller: Caller, data: NewToken) -> float:
    """A token that was made for programs cannot outlive itself by making another."""
    lifetime = min(data.expires_in_s, ONE_TIME_MAX_S) if data.kind is TokenKind.ONE_TIME else data.expires_in_s
    maker = await services.access.store.tokens.get(caller.token)
    if maker.kind is TokenKind.PERSONAL and maker.expires_at:
        lifetime = min(lifetime, max(1.0, maker.expires_at - services.clock.now()))
    return lifetime


@delete(f"{TOKENS}/{{token:str}}", operation_id="revoke_token", tags=["tokens"], opt={"needs": Needs.USER})
async def revoke_token(services: Services, caller: Caller, token: str) -> None:
    """Revoke a token, at once: one's own, or any as an administrator of the cluster."""
    found = await services.access.store.tokens.get(check_name(token, "token"))
    own = found.user == caller.name and (caller.is_unlimited() or found.id == caller.token)
    if not own:
        try:
            caller.require_cluster(f"token {token}")
        except NotAllowed as error:
            if found.user == caller.name:
                raise
            raise NotFound("there is no such token, or you may not see it", object=f"token {token}") from error
    await services.access.revoke(found.id)


ROUTES: list[Any] = [list_tokens, make_token, revoke_token]
