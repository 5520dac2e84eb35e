"""What happens, over HTTP: a page of facts, or server-sent events as they become so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from litestar import Request, get
from litestar.di import Provide
from litestar.params import Parameter

from clutch.master.access.caller import Caller
from clutch.master.api.paging import Limit, Word, words
from clutch.master.api.streaming import Flow, until_stopped
from clutch.master.events import EventFilter, EventPage
from clutch.master.finding import find_task
from clutch.master.services import Services
from clutch.wire.access import Needs
from clutch.wire.api import API, EventView, Page
from clutch.wire.errors import BadRequest

SSE = "text/event-stream"
INDEX_MAX = 2**62

Row = Annotated[str, Parameter(max_length=20, description="Only what came behind this row.")]


class Wanted(msgspec.Struct, frozen=True):
    """Which events, and how they are wished for."""

    kinds: tuple[str, ...]
    task: str
    after: int | None
    follow: bool


async def give_wanted(
    request: Request[Any, Any, Any], kind: Word = "", task: Word = "", after: Row = "", follow: bool = False
) -> Wanted:
    resumed = request.headers.get("last-event-id", "")
    follows = follow or SSE in request.headers.get("accept", "")
    return Wanted(words(kind, "kind"), task, _row(resumed or after), follows)


def _row(after: str) -> int | None:
    if not after:
        return None
    if not (after.isascii() and after.isdigit()) or int(after) > INDEX_MAX:
        raise BadRequest("it is not a row of the journal", object="events", path="after")
    return int(after)


@get(
    f"{API}/events",
    operation_id="list_events",
    tags=["events"],
    opt={"needs": Needs.VIEWER},
    dependencies={"wanted": Provide(give_wanted)},
)
async def list_events(services: Services, caller: Caller, wanted: Wanted, limit: Limit = 100) -> Page[EventView]:
    """Facts of the workspaces you may read, oldest first. With `follow` (or when `text/event-stream` is accepted) they
    are sent as server-sent events, from now on unless `after` says from where."""
    visible = caller.filters()
    task = (await find_task(services, caller, wanted.task)).key if wanted.task else ""
    chosen = EventFilter(visible=visible, kinds=wanted.kinds, task=task)
    if wanted.follow:
        start = services.feed.last if wanted.after is None else wanted.after
        pages = services.feed.follow(chosen, start)
        stream: Any = Flow(_events(services, pages, start), media_type=SSE, headers={"Cache-Control": "no-store"})
        return stream  # type: ignore[no-any-return]  # the type above describes a page, for the API's document
    page = await services.feed.page(chosen, wanted.after or 0, limit)
    return Page(page.items, str(page.seen) if page.more else "")


async def _events(services: Services, pages: AsyncIterator[EventPage], start: int) -> AsyncIterator[bytes]:
    """Events with their row as id, so that a browser which comes again says where it was."""
    seen = start
    yield f": from row {start}\n\n".encode()
    async for page in until_stopped(pages, services.stopping):
        if page is None:
            yield f": at row {seen}\n\n".encode()
            continue
        seen = page.seen
        yield b"".join(_event(view) for view in page.items) or f": at row {seen}\n\n".encode()


def _event(view: EventView) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (view.index, view.kind.encode(), msgspec.json.encode(view))


ROUTES: list[Any] = [list_events]
