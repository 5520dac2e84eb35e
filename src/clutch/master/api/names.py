"""Routes of names: where is X. A member reaches the names of its own task, and those of its workspace."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from litestar import get, post
from litestar.params import Parameter, QueryParameter

from clutch.master.access.caller import Caller
from clutch.master.push.names import task_scope, workspace_scope
from clutch.master.push.service import poll_s
from clutch.master.push.standing import require_member
from clutch.master.services import Services
from clutch.wire.access import Needs
from clutch.wire.push import (
    POLL_MAX_S,
    RUN,
    Acknowledged,
    AddName,
    NameChanges,
    NameEntry,
    RemoveName,
    RenewName,
)

TASK: dict[str, Any] = {"needs": Needs.TASK}
LONG = Annotated[str, Parameter(max_length=2_000)]


class Scope(StrEnum):
    TASK = "task"  # members of one task among themselves, gone with it
    WORKSPACE = "workspace"  # tasks of one workspace among themselves


Whose = Annotated[Scope, QueryParameter(name="scope")]
"""Litestar keeps the word ``scope`` for itself inside a handler."""


def _scope(services: Services, caller: Caller, scope: Scope) -> str:
    """The caller's own board of that scope; ``Stale`` for an incarnation that is over."""
    standing = services.push.stand(require_member(caller.member, caller.fence))
    if scope is Scope.TASK:
        return task_scope(standing.task.task)
    return workspace_scope(standing.task.spec.workspace)


@post(f"{RUN}/names", operation_id="add_name", tags=["run"], opt=TASK, status_code=200)
async def add_name(services: Services, caller: Caller, data: AddName, whose: Whose = Scope.TASK) -> NameEntry:
    """Hold a name until its time to live is over without a renewal."""
    return await services.push.names.add(_scope(services, caller, whose), data)


@post(f"{RUN}/names/renew", operation_id="renew_name", tags=["run"], opt=TASK, status_code=200)
async def renew_name(services: Services, caller: Caller, data: RenewName, whose: Whose = Scope.TASK) -> NameEntry:
    """Hold a name for another time to live, and perhaps change its value."""
    return await services.push.names.renew(_scope(services, caller, whose), data)


@post(f"{RUN}/names/remove", operation_id="remove_name", tags=["run"], opt=TASK, status_code=200)
async def remove_name(services: Services, caller: Caller, data: RemoveName, whose: Whose = Scope.TASK) -> Acknowledged:
    """Give a name up."""
    await services.push.names.remove(_scope(services, caller, whose), data)
    return Acknowledged()


@get(f"{RUN}/names", operation_id="list_names", tags=["run"], opt=TASK)
async def list_names(
    services: Services, caller: Caller, prefix: LONG = "", whose: Whose = Scope.TASK
) -> tuple[NameEntry, ...]:
    """List the names at or under a prefix."""
    return await services.push.names.under(_scope(services, caller, whose), prefix)


@get(f"{RUN}/names/entry", operation_id="get_name", tags=["run"], opt=TASK)
async def get_name(services: Services, caller: Caller, name: LONG, whose: Whose = Scope.TASK) -> NameEntry:
    """Get one name."""
    return await services.push.names.get(_scope(services, caller, whose), name)


@get(f"{RUN}/names/watch", operation_id="watch_names", tags=["run"], opt=TASK)
async def watch_names(
    services: Services,
    caller: Caller,
    prefix: LONG = "",
    after: Annotated[str, Parameter(max_length=100)] = "",
    timeout_s: Annotated[float, Parameter(ge=0, le=3600)] = POLL_MAX_S,
    whose: Whose = Scope.TASK,
) -> NameChanges:
    """Wait for what changes at or under a prefix behind a version; without one, everything at once."""
    board = _scope(services, caller, whose)
    return await services.push.names.watch(board, prefix, after, poll_s(timeout_s))


ROUTES: list[Any] = [add_name, renew_name, remove_name, list_names, get_name, watch_names]
