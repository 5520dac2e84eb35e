"""The proxy's routes: the way in for every method and WebSocket, and tickets for browsers."""

from __future__ import annotations

from typing import Any

from litestar import asgi, post

from clutch.master.access.caller import Caller
from clutch.master.finding import find_task
from clutch.master.proxy.door import PREFIX
from clutch.master.services import Services
from clutch.wire.access import Needs
from clutch.wire.api import API, ProxyAddress
from clutch.wire.ids import TaskId


@asgi(PREFIX, is_mount=True, copy_scope=False, opt={"needs": Needs.TICKET})
async def enter_proxy(scope: Any, receive: Any, send: Any) -> None:
    """HTTP and WebSocket into a task's port."""
    services: Services = scope["litestar_app"].state.services
    path = scope["raw_path"].decode("latin-1").removeprefix(PREFIX)  # as it was written, escapes and all
    await services.proxy.handle(scope, receive, send, path)


@post(
    f"{API}/tasks/{{task:str}}/ports/{{port:int}}/ticket",
    operation_id="make_ticket",
    tags=["tasks"],
    opt={"needs": Needs.EDITOR},
)
async def make_ticket(services: Services, caller: Caller, task: str, port: int) -> ProxyAddress:
    """An address that opens a port of a task in a browser."""
    found = await find_task(services, caller, task)
    caller.require(found.workspace, f"task {found.key}")
    return ProxyAddress(services.proxy.address(caller, TaskId(found.key), port))


ROUTES: list[Any] = [enter_proxy, make_ticket]
