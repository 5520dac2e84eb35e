"""Slots held and used, by day, user, workspace, project and pool, over HTTP: as JSON and as CSV."""

from __future__ import annotations

import csv
import io
import re
from typing import Annotated, Any

import msgspec
from litestar import Response, get
from litestar.params import Parameter

from clutch.master.access.caller import Caller
from clutch.master.access.usage_store import KEYS, UsageFilter, cursor_of
from clutch.master.api.paging import After, Limit, Word, check_cursor, paged, words
from clutch.master.services import Services
from clutch.wire.access import Needs, UsageRow
from clutch.wire.api import API, PAGE_MAX, Page
from clutch.wire.errors import BadRequest, TooLarge

USAGE = f"{API}/usage"
CSV_ROWS_MAX = 100_000
_DAY = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])", re.ASCII)
Day = Annotated[str, Parameter(max_length=10, description="As 2025-01-31, in UTC; both ends count.")]
By = Annotated[str, Parameter(max_length=80, description="Sum up by these columns, joined by commas; all unless told.")]


async def give_span(since: Day = "", until: Day = "", by: By = "") -> UsageFilter:
    """Which days, and summed up by what."""
    for path, day in (("since", since), ("until", until)):
        if day and not _DAY.fullmatch(day):
            raise BadRequest(f"{day!r} is not a day", object="usage", path=path, next_step="Give it as 2025-01-31.")
    columns = tuple(dict.fromkeys(part.strip() for part in by.split(",") if part.strip()))
    unknown = [column for column in columns if column not in KEYS]
    if unknown:
        raise BadRequest(
            f"usage cannot be summed up by {unknown[0]!r}", object="usage", path="by",
            next_step=f"Use some of: {', '.join(KEYS)}.",
        )  # fmt: skip
    return UsageFilter(since=since, until=until, by=columns or KEYS)


async def give_asked(
    span: UsageFilter, caller: Caller, user: Word = "", workspace: Word = "", project: Word = "", pool: Word = ""
) -> UsageFilter:
    """What rows must match: at most what the caller may see."""
    chosen = {"user": user, "project": project, "pool": pool}
    for path, value in chosen.items():
        if len(words(value, path)) > 1:
            raise BadRequest("only one can be chosen", object="usage", path=path)
    workspaces = words(workspace, "workspace")
    for name in workspaces:
        caller.require(name, f"workspace {name}")
    return msgspec.structs.replace(span, workspaces=workspaces or caller.filters(), **chosen)


_ASKED: dict[str, Any] = {"span": give_span, "asked": give_asked}


@get(USAGE, operation_id="list_usage", tags=["usage"], dependencies=_ASKED, opt={"needs": Needs.VIEWER})
async def list_usage(services: Services, asked: UsageFilter, after: After = "", limit: Limit = 100) -> Page[UsageRow]:
    """Slot-seconds held and used, and tasks that ran. Added up a few seconds behind what happens."""
    found = await services.access.store.usage.page(asked, check_cursor(after), limit + 1)
    return paged(found, limit, lambda row: cursor_of(row, asked.by))


@get(
    f"{USAGE}.csv",
    operation_id="export_usage",
    tags=["usage"],
    dependencies=_ASKED,
    media_type="text/csv",
    opt={"needs": Needs.VIEWER},
)
async def export_usage(services: Services, asked: UsageFilter) -> Response[str]:
    """The same as a file for spreadsheets, all rows at once."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(UsageRow.__struct_fields__)
    after, count = "", 0
    while rows := await services.access.store.usage.page(asked, after, PAGE_MAX):
        count += len(rows)
        if count > CSV_ROWS_MAX:
            raise TooLarge(f"it has more than {CSV_ROWS_MAX} rows", object="usage", next_step="Ask for fewer days.")
        table.writerows(msgspec.structs.astuple(row) for row in rows)
        after = cursor_of(rows[-1], asked.by)
        if len(rows) < PAGE_MAX:
            break
    return Response(text.getvalue(), media_type="text/csv")


ROUTES: list[Any] = [list_usage, export_usage]
