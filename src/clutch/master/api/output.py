"""What a task printed, over HTTP: pages of lines, lines as they come, and the exact bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from litestar import MediaType, get
from litestar.di import Provide
from litestar.params import Parameter

from clutch.core.checks import NAME
from clutch.master.access.caller import Caller
from clutch.master.api.streaming import Flow, until_stopped
from clutch.master.api.tasks import TASK, Name
from clutch.master.finding import find_task
from clutch.master.output.reading import Family
from clutch.master.services import Services
from clutch.wire.access import Needs
from clutch.wire.errors import BadRequest, NotFound
from clutch.wire.ids import Epoch, Fence, MemberId, TaskId
from clutch.wire.output import PAGE_MAX_LINES, PATTERN_MAX, Level, OutputPage, OutputQuery, Stream

JSON_LINES = "application/jsonl"
MANY = 1_000
"""So many ranks or epochs can be named."""
NUMBER_MAX = 2**31 - 1
OFFSET_MAX = 2**62
CURSOR_MAX = 100_000

Number = Annotated[int, Parameter(ge=0, le=NUMBER_MAX)]
Count = Annotated[int, Parameter(ge=0, le=PAGE_MAX_LINES)]
Offset = Annotated[int, Parameter(ge=0, le=OFFSET_MAX)]
Numbers = Annotated[list[int] | None, Parameter(max_items=MANY, description="Any of these; repeat it.")]
Pattern = Annotated[str, Parameter(max_length=PATTERN_MAX)]
Moment = Annotated[float | None, Parameter(ge=0, le=2.0**40, description="Seconds since 1970.")]
Cursor = Annotated[str, Parameter(max_length=CURSOR_MAX)]
Role = Annotated[str, Parameter(max_length=128)]


async def give_streams(
    role: Role = "", ranks: Numbers = None, epochs: Numbers = None, streams: list[Stream] | None = None
) -> dict[str, Any]:
    """Whose lines."""
    for path, numbers in (("ranks", ranks), ("epochs", epochs)):
        if any(not 0 <= number <= NUMBER_MAX for number in numbers or ()):
            raise BadRequest("there is no such number", object="output", path=path)
    if role and not NAME.fullmatch(role):
        raise BadRequest("it is not a role's name", object="output", path="role")
    return {
        "role": role,
        "ranks": tuple(ranks or ()),
        "epochs": tuple(epochs or ()),
        "streams": tuple(streams or ()),
    }


async def give_match(
    since: Moment = None,
    until: Moment = None,
    text: Pattern = "",
    regex: Pattern = "",
    ignore_case: bool = False,
    level: Level | None = None,
) -> dict[str, Any]:
    """Which of their lines."""
    return {
        "since": since, "until": until, "text": text, "regex": regex, "ignore_case": ignore_case, "level": level,
    }  # fmt: skip


async def give_extent(
    head: Count = 0,
    tail: Count = 0,
    limit: Annotated[int, Parameter(ge=1, le=PAGE_MAX_LINES)] = 1_000,
    after: Cursor = "",
    before: Cursor = "",
    partial: bool = False,
) -> dict[str, Any]:
    """How many of those, from where on."""
    if head and tail:
        raise BadRequest("either the first or the last lines", object="output", path="tail")
    return {"head": head, "tail": tail, "limit": limit, "after": after, "before": before, "partial": partial}


ASKED = {
    "streams_asked": Provide(give_streams),
    "match_asked": Provide(give_match),
    "extent_asked": Provide(give_extent),
}


async def give_asked(
    streams_asked: dict[str, Any], match_asked: dict[str, Any], extent_asked: dict[str, Any]
) -> dict[str, Any]:
    """A query without its task."""
    return {**streams_asked, **match_asked, **extent_asked}


@get(
    f"{TASK}/output",
    operation_id="read_output",
    tags=["output"],
    opt={"needs": Needs.VIEWER},
    dependencies={**ASKED, "asked": Provide(give_asked)},
)
async def read_output(
    services: Services, caller: Caller, task: Name, asked: dict[str, Any], follow: bool = False
) -> OutputPage:
    """A page of lines; with `follow`, pages as they come, one JSON object a line, until the task has ended."""
    view = await find_task(services, caller, task)
    return await answer_output(services, OutputQuery(task=TaskId(view.key), **asked), follow)


async def answer_output(
    services: Services, query: OutputQuery, follow: bool, family: Family | None = None
) -> OutputPage:
    """A page; with ``follow`` a stream of them instead, whatever the type says."""
    if not follow:
        return await services.output.page(query, family)
    pages = services.output.follow_pages(query, family)
    # The answer is a stream; its type above is what one line of it holds, for the API's description.
    stream: Any = Flow(_json_lines(services, pages), media_type=JSON_LINES)
    return stream  # type: ignore[no-any-return]


async def _json_lines(services: Services, pages: AsyncIterator[OutputPage]) -> AsyncIterator[bytes]:
    async for page in until_stopped(pages, services.stopping):
        yield b"\n" if page is None else msgspec.json.encode(page) + b"\n"


# -- exact bytes --------------------------------------------------------------------------------------------------


async def give_incarnation(
    role: Role = "main", rank: Number = 0, epoch: Number = 0, incarnation: Number = 0, stream: Stream = "stdout"
) -> tuple[str, int, Epoch, int, str]:
    """One stream of one start of one member; 0 stands for the latest epoch and its latest incarnation."""
    return role, rank, epoch, incarnation, stream


@get(
    f"{TASK}/output/raw",
    operation_id="read_raw_output",
    tags=["output"],
    opt={"needs": Needs.VIEWER},
    dependencies={"which": Provide(give_incarnation)},
    media_type=MediaType.TEXT,
)
async def read_raw_output(
    services: Services,
    caller: Caller,
    task: Name,
    which: tuple[str, int, Epoch, int, str],
    start: Offset = 0,
    stop: Annotated[int | None, Parameter(ge=0, le=OFFSET_MAX)] = None,
) -> Flow:
    """The exact bytes of one stream of one member, from an offset on."""
    view = await find_task(services, caller, task)
    role, rank, epoch, incarnation, stream = which
    member = MemberId(TaskId(view.key), role, rank)
    fence = await _latest(services, member, epoch, incarnation)
    pieces = services.output.raw(member, fence, stream, start, stop)
    first = await anext(pieces, b"")  # what is wrong with the question is answered before anything is sent
    headers = {"Clutch-Fence": str(fence)}
    return Flow(_bytes(services, first, pieces), media_type="application/octet-stream", headers=headers)


async def _latest(services: Services, member: MemberId, epoch: Epoch, incarnation: int) -> Fence:
    known = {state.fence for state in await services.output.store.streams(member.task) if state.member == member}
    fits = [f for f in known if epoch in (0, f.epoch) and incarnation in (0, f.incarnation)]
    if not fits:
        raise NotFound("it has printed nothing so far, or there is no such member", object=f"output of {member}")
    return max(fits)


async def _bytes(services: Services, first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in until_stopped(rest, services.stopping):
        if piece is not None:
            yield piece


ROUTES: list[Any] = [read_output, read_raw_output]
