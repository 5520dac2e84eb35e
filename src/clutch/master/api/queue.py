"""What waits, and why."""

from __future__ import annotations

from typing import Any

from litestar import get

from clutch.master.access.caller import Caller
from clutch.master.api.paging import After, Limit, Word, check_cursor, words
from clutch.master.details import line, queue_entry
from clutch.master.services import Services
from clutch.wire.access import Needs
from clutch.wire.api import API, Page, QueueEntry
from clutch.wire.errors import NotFound


@get(f"{API}/queue", operation_id="list_queue", tags=["queue"], opt={"needs": Needs.VIEWER})
async def list_queue(
    services: Services, caller: Caller, pool: Word = "", limit: Limit = 100, after: After = ""
) -> Page[QueueEntry]:
    """What waits in each pool, in the order of its queue, with the reason. The order of an instant: it may move."""
    wanted = words(pool, "pool")
    visible = caller.filters()
    state = await services.loop.settled()
    plans = {name: plan for name, plan in services.loop.plans.items() if not wanted or name in wanted}
    waiting = line(state, plans, visible)
    if after and not any(f"{name}/{request}" == check_cursor(after) for name, request in waiting):
        raise NotFound(
            "what stood there waits no longer", object=f"queue {after}", next_step="Start again from the first page."
        )
    found: list[QueueEntry] = []
    for name, request in waiting:
        entry = queue_entry(state, plans, name, request)
        if entry is None:
            continue
        found.append(entry)
        if len(found) == limit:
            more = next(waiting, None) is not None
            return Page(tuple(found), f"{name}/{request}" if more else "")
    return Page(tuple(found))


ROUTES: list[Any] = [list_queue]
