"""Webhooks over HTTP. One belongs to a scope: a workspace (its editors change it) or the cluster (its administrators).

Nothing answers with a secret, but for the moment in which it is made. The address is whole only for those who may
change it: that of a chat's webhook lets whoever knows it write there.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import delete, get, patch, post
from litestar.params import Parameter

from clutch.master.access.caller import Caller
from clutch.master.access.rules import check_name, workspace_of
from clutch.master.api.paging import After, Limit, check_cursor, paged
from clutch.master.services import Services
from clutch.wire.access import RANKS, Needs, Role
from clutch.wire.api import API, Page
from clutch.wire.errors import ClutchError
from clutch.wire.library import Delivery, MadeWebhook, NewWebhook, WebhookChange, WebhookView
from clutch.workloads.experiment.library.hooks import Hook
from clutch.workloads.experiment.library.models import Who
from clutch.workloads.experiment.library.opening import Library
from clutch.workloads.experiment.library.waiting import Queued
from clutch.workloads.experiment.routes.models import before_of

WEBHOOKS = f"{API}/webhooks"
ONE = f"{WEBHOOKS}/{{over:str}}/{{name:str}}"
Scope = Annotated[str, Parameter(max_length=140, description="`cluster` or `workspace:NAME`.")]


def _may(caller: Caller, scope: str, name: str, *, change: bool) -> None:
    """Viewers look and editors change, in a workspace; over the cluster administrators change."""
    check_name(name, "webhook")
    workspace = workspace_of(scope)
    if workspace is None:
        caller.require_cluster(f"webhook {scope}/{name}", Role.ADMIN if change else Role.VIEWER)
    else:
        caller.require(workspace, f"webhook {scope}/{name}", Role.EDITOR if change else Role.VIEWER)


async def _seen(library: Library, caller: Caller, *hooks: Hook) -> list[WebhookView]:
    """These webhooks as the caller may see them, with what waits for each."""
    queues = await library.messages.queues()
    found: list[WebhookView] = []
    for hook in hooks:
        queued = queues.get(hook.id, Queued())
        waits = {"waiting": queued.count, "next_at": queued.next_at, "tries": queued.tries}
        found.append(msgspec.structs.replace(hook.view, url=_url(library, caller, hook), **waits))
    return found


def _url(library: Library, caller: Caller, hook: Hook) -> str:
    workspace = workspace_of(hook.view.scope)
    held = caller.cluster_role() if workspace is None else caller.role_in(workspace)
    if held is None or RANKS[held] < RANKS[Role.ADMIN if workspace is None else Role.EDITOR]:
        return hook.view.url
    try:
        return hook.opened(library.webhooks.keys).url
    except ClutchError:  # sealed with a key we do not have: it can still be seen, changed and deleted
        return hook.view.url


@get(WEBHOOKS, operation_id="list_webhooks", tags=["webhooks"], opt={"needs": Needs.VIEWER})
async def list_webhooks(
    library: Library, caller: Caller, over: Scope = "", after: After = "", limit: Limit = 100
) -> Page[WebhookView]:
    """The webhooks of the workspaces you may see; those of the cluster for those who may see all of it."""
    visible = caller.filters()
    scopes = tuple(f"workspace:{name}" for name in visible) if visible is not None else None
    if over:
        _may(caller, over, "any", change=False)
        scopes = (over,)
    found = await library.webhooks.page(scopes, check_cursor(after), limit + 1)
    return paged(await _seen(library, caller, *found), limit, lambda view: f"{view.scope}/{view.name}")


@post(WEBHOOKS, operation_id="create_webhook", tags=["webhooks"], opt={"needs": Needs.EDITOR})
async def create_webhook(services: Services, library: Library, caller: Caller, data: NewWebhook) -> MadeWebhook:
    """Create a webhook. Its secret is answered this once."""
    _may(caller, data.scope, data.name, change=True)
    workspace = workspace_of(data.scope)
    if workspace is not None:
        await services.access.store.check_place(workspace)
    hook, secret = await library.webhooks.create(data, Who(caller.name, services.clock.now()))
    (view,) = await _seen(library, caller, hook)
    return MadeWebhook(secret=secret, view=view)


@get(ONE, operation_id="get_webhook", tags=["webhooks"], opt={"needs": Needs.VIEWER})
async def get_webhook(library: Library, caller: Caller, over: str, name: str) -> WebhookView:
    """A webhook, by its name or a beginning that only it has."""
    _may(caller, over, name, change=False)
    (view,) = await _seen(library, caller, await library.webhooks.find(over, name))
    return view


@patch(ONE, operation_id="change_webhook", tags=["webhooks"], opt={"needs": Needs.EDITOR})
async def change_webhook(library: Library, caller: Caller, over: str, name: str, data: WebhookChange) -> WebhookView:
    """Enable or disable a webhook, or change where, when and how it is called."""
    _may(caller, over, name, change=True)
    (view,) = await _seen(library, caller, await library.webhooks.change(over, name, data))
    library.deliverer.nudge()
    return view


@delete(ONE, operation_id="delete_webhook", tags=["webhooks"], opt={"needs": Needs.EDITOR})
async def delete_webhook(library: Library, caller: Caller, over: str, name: str) -> None:
    """Delete a webhook with its log. Messages that wait for it are dropped."""
    _may(caller, over, name, change=True)
    await library.webhooks.delete(over, name)


@post(f"{ONE}/test", operation_id="test_webhook", tags=["webhooks"], opt={"needs": Needs.EDITOR})
async def test_webhook(library: Library, caller: Caller, over: str, name: str) -> Delivery:
    """Send a sample now, whether the webhook is enabled or not, and say how that went."""
    _may(caller, over, name, change=True)
    return await library.deliverer.test(await library.webhooks.find(over, name), caller.name)


@get(f"{ONE}/deliveries", operation_id="list_deliveries", tags=["webhooks"], opt={"needs": Needs.VIEWER})
async def list_deliveries(
    library: Library, caller: Caller, over: str, name: str, after: After = "", limit: Limit = 100
) -> Page[Delivery]:
    """What was sent to a webhook lately and how that went, the newest first."""
    _may(caller, over, name, change=False)
    hook = await library.webhooks.find(over, name)
    found = await library.webhooks.deliveries(hook.id, before_of(after), limit + 1)
    return paged(found, limit, lambda delivery: delivery.number)


ROUTES: list[Any] = [
    list_webhooks,
    create_webhook,
    get_webhook,
    change_webhook,
    delete_webhook,
    test_webhook,
    list_deliveries,
]
