"""From what a person typed to a task: its id, a unique beginning of it, or its name. Only among what they may see."""

from __future__ import annotations

from typing import cast

from clutch.backends.journal.base import FullJournal, Where
from clutch.core.checks import NAME
from clutch.master.access.caller import Caller
from clutch.master.services import Services
from clutch.wire.errors import Conflict, NotFound
from clutch.wire.views import TaskView

SHOWN = 5
"""So many candidates are named when several fit."""


async def find_task(services: Services, caller: Caller, wanted: str) -> TaskView:
    """The task that ``wanted`` means, with the route's role checked in its workspace.

    ``NotFound`` when none does or the caller may not see it, ``Conflict`` naming the candidates when several do. An id
    outranks a beginning of one, which outranks a name; of equal names a task that lives outranks those that ended.
    """
    found = await look_up(services.journal, caller.filters(), wanted)
    caller.require(found.workspace, f"task {found.key}")
    return found


async def look_up(journal: FullJournal, visible: tuple[str, ...] | None, wanted: str) -> TaskView:
    """The one task in the visible workspaces (None: all) that is meant."""
    if not NAME.fullmatch(wanted):
        raise _no_such(wanted)
    exact = cast(TaskView | None, await journal.view(TaskView.table, wanted))
    if exact is not None and (visible is None or exact.workspace in visible):
        return exact
    where: Where = {} if visible is None else {"workspace": visible}
    page = await journal.page(TaskView.table, where, "key", wanted, SHOWN)
    begun = [cast(TaskView, view) for view in page if view.key.startswith(wanted)]
    if len(begun) == 1:
        return begun[0]
    if not begun:
        named = await journal.page(TaskView.table, {**where, "name": wanted}, "-submitted_at", "", SHOWN)
        begun = [cast(TaskView, view) for view in named]
        live = [view for view in begun if not view.ended_at]
        if len(live or begun) == 1:
            return (live or begun)[0]
        begun = live or begun
    if not begun:
        raise _no_such(wanted)
    raise Conflict(
        f"several tasks fit: {', '.join(f'{v.key} ({v.name}, {v.state})' for v in begun)}",
        object=f"task {wanted}",
        next_step="Say more of the id.",
    )


def _no_such(wanted: str) -> NotFound:
    return NotFound(
        "there is no such task, or you may not see it",
        object=f"task {wanted[:128]}",
        next_step="List tasks with 'clutch ps --all'.",
    )
