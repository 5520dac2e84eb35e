"""``clutch audit|usage``: who changed what, and who held how much."""

from __future__ import annotations

import time
from itertools import islice
from typing import Annotated

import typer

from clutch.cli.lists import Column, Json, Watch, moment, show_list
from clutch.cli.where import connect

app = typer.Typer(rich_markup_mode=None)

AUDIT = (
    Column("when", lambda entry: moment(entry.at)),
    Column("who", lambda entry: entry.who),
    Column("what", lambda entry: entry.action),
    Column("object", lambda entry: entry.object, 1),
    Column("status", lambda entry: entry.status, 2, True),
    Column("detail", lambda entry: entry.detail, 3),
)
USAGE = (
    Column("day", lambda row: row.day),
    Column("user", lambda row: row.user),
    Column("workspace", lambda row: row.workspace, 1),
    Column("project", lambda row: row.project, 2),
    Column("pool", lambda row: row.pool, 3),
    Column("held h", lambda row: f"{row.slot_seconds_held / 3600:.2f}", right=True),
    Column("used h", lambda row: f"{row.slot_seconds_used / 3600:.2f}", right=True),
    Column("tasks", lambda row: row.tasks, 4, True),
)
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")]


@app.command("audit")
def audit(
    context: typer.Context,
    who: Annotated[str, typer.Option("--who", help="Only by them: user:NAME.")] = "",
    action: Annotated[str, typer.Option("--action", help="Only this: submit_task.")] = "",
    subject: Annotated[str, typer.Option("--object", help="Only on this path.")] = "",
    since: Annotated[str, typer.Option("--since", help="From here on: 2h (ago), or 2026-03-01.")] = "",
    until: Annotated[str, typer.Option("--until", help="Before this moment.")] = "",
    limit: Limit = 100,
    as_json: Json = False,
    watch: Watch = False,
) -> None:
    """List who changed what."""
    from clutch.sdk import access_calls
    from clutch.sdk.wish import parse_moment

    now = time.time()
    filters = {"who": who, "action": action, "object": subject, "limit": min(limit, 1000)}
    filters |= {name: parse_moment(text, now) for name, text in (("since", since), ("until", until)) if text}
    with connect(context) as client:
        show_list(
            lambda: list(islice(client.items(access_calls.list_audit(**filters)), limit)),
            AUDIT,
            as_json=as_json,
            watch=watch,
        )


@app.command("usage")
def usage(
    context: typer.Context,
    since: Annotated[str, typer.Option("--since", help="From this day on: 2026-03-01.")] = "",
    until: Annotated[str, typer.Option("--until", help="Up to this day.")] = "",
    by: Annotated[str, typer.Option("--by", help="Sum up by: day,user,workspace,project,pool.")] = "",
    user: Annotated[str, typer.Option("--user", help="Only of this user.")] = "",
    workspace: Annotated[str, typer.Option("--workspace", "-w", help="Only in this workspace.")] = "",
    project: Annotated[str, typer.Option("--project", help="Only of this project.")] = "",
    pool: Annotated[str, typer.Option("--pool", help="Only in this pool.")] = "",
    limit: Limit = 1000,
    as_json: Json = False,
    watch: Watch = False,
) -> None:
    """List slot-hours by day, user, workspace and project."""
    from clutch.sdk import access_calls

    filters = {"since": since, "until": until, "by": by, "user": user, "workspace": workspace, "project": project}
    filters |= {"pool": pool}
    shown = [column for column in USAGE if not by or column.title not in _KEYS or column.title in by.split(",")]
    with connect(context) as client:
        show_list(
            lambda: list(islice(client.items(access_calls.list_usage(limit=min(limit, 1000), **filters)), limit)),
            shown,
            as_json=as_json,
            watch=watch,
            empty="Nothing was used.",
        )


_KEYS = ("day", "user", "workspace", "project", "pool")
