"""``clutch ps``: the tasks of the cluster."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from clutch.cli.lists import Column, Json, Watch, ago, show_list
from clutch.cli.where import connect

if TYPE_CHECKING:
    from clutch.wire.views import TaskView

app = typer.Typer(rich_markup_mode=None)
LIVE = "queued,running,resting,paused"


def state_of(task: TaskView) -> str:
    """Its state, and how it ended."""
    return task.reason if task.state == "ended" and task.reason else task.state


COLUMNS = (
    Column("id", lambda task: task.key),
    Column("name", lambda task: task.name if task.name != task.key else "", 3),
    Column("state", state_of),
    Column("kind", lambda task: task.kind, 8),
    Column("owner", lambda task: task.owner, 4),
    Column("workspace", lambda task: task.workspace, 7),
    Column("pool", lambda task: task.pool, 6),
    Column("slots", lambda task: task.slots, 2, True),
    Column("priority", lambda task: task.priority, 9, True),
    Column("restarts", lambda task: task.restarts or "", 10, True),
    Column("age", lambda task: ago(task.submitted_at, time.time()), 1, True),
    Column("detail", lambda task: task.detail, 5),
)


@app.command("ps")
def ps(
    context: typer.Context,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also what has ended.")] = False,
    state: Annotated[str, typer.Option(help="Only in these states, joined by commas.")] = "",
    owner: Annotated[str, typer.Option(help="Only of this user.")] = "",
    workspace: Annotated[str, typer.Option(help="Only in this workspace.")] = "",
    project: Annotated[str, typer.Option(help="Only of this project.")] = "",
    pool: Annotated[str, typer.Option(help="Only in this pool.")] = "",
    kind: Annotated[str, typer.Option(help="Only of this kind.")] = "",
    name: Annotated[str, typer.Option(help="Only with this name.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many, the newest first.")] = 100,
    as_json: Json = False,
    watch: Watch = False,
) -> None:
    """List tasks: those that live, or all."""
    filters = {"owner": owner, "workspace": workspace, "project": project, "pool": pool, "kind": kind, "name": name}
    state = state or ("" if everything else LIVE)
    with connect(context) as client:
        show_list(
            lambda: list(islice(client.tasks(state=state, limit=min(limit, 1000), **filters), limit)),
            COLUMNS,
            as_json=as_json,
            watch=watch,
            empty="No task." if everything else "No task lives. 'clutch ps --all' shows those that ended.",
        )
