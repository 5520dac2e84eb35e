"""``clutch show|why|queue|stop|kill|pause|resume|set``: one task, or what waits."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from clutch.cli.lists import Column, Json, Watch, ago, facts, moment, screen_width, show, show_list, table, told_here
from clutch.cli.ps import state_of
from clutch.cli.where import connect
from clutch.wire.errors import BadRequest, ClutchError

if TYPE_CHECKING:
    from clutch.wire.api import TaskDetail

app = typer.Typer(rich_markup_mode=None)
Task = Annotated[str, typer.Argument(help="Its id, a unique beginning of it, or its name.")]
Tasks = Annotated[list[str], typer.Argument(help="Ids, unique beginnings of ids, or names.")]

MEMBERS = (
    Column("member", lambda member: f"{member.role}.{member.rank}"),
    Column("state", lambda member: member.doing or member.state),
    Column("node", lambda member: member.node),
    Column("slots", lambda member: ",".join(map(str, member.slots)), 2),
    Column("cpu", lambda member: f"{member.cpu_percent:.0f}%" if member.cpu_percent else "", 4, True),
    Column("memory", lambda member: f"{member.memory_bytes / 2**20:.0f}M" if member.memory_bytes else "", 5, True),
    Column("device", lambda member: f"{member.slot_percent}%" if member.slot_percent >= 0 else "", 6, True),
    Column("exit", lambda member: _exit(member.exit_code, member.exit_reason or member.exit_cause), 1),
    Column("ports", lambda member: ",".join(map(str, member.ports)), 3),
    Column("fence", lambda member: member.fence, 7),
)
RUNS = (
    Column("run", lambda run: run.epoch, right=True),
    Column("state", lambda run: run.state),
    Column("began", lambda run: moment(run.began_at), 1),
    Column("ended", lambda run: moment(run.ended_at), 2),
    Column("nodes", lambda run: run.nodes, 4),
    Column("exit", lambda run: run.exit, 3),
)
QUEUE = (
    Column("#", lambda entry: entry.waiting.position, right=True),
    Column("id", lambda entry: entry.task),
    Column("name", lambda entry: entry.name if entry.name != entry.task else "", 5),
    Column("owner", lambda entry: entry.owner, 4),
    Column("workspace", lambda entry: entry.workspace, 7),
    Column("pool", lambda entry: entry.pool, 6),
    Column("priority", lambda entry: entry.priority, 3, True),
    Column("slots", lambda entry: entry.slots, 2, True),
    Column("age", lambda entry: ago(entry.submitted_at, time.time()), 1, True),
    Column("waits for", lambda entry: f"{entry.waiting.code}: {entry.waiting.detail}"),
)


@app.command("show")
def show_task(context: typer.Context, task: Task, as_json: Json = False, watch: Watch = False) -> None:
    """Show everything about a task."""
    import msgspec

    from clutch.sdk import calls

    with connect(context) as client:

        def draw() -> str:
            detail = client.perform(calls.get_task(task))
            return msgspec.json.encode(detail).decode() if as_json else detail_text(detail)

        show(draw, watch=watch, as_json=as_json)


def detail_text(detail: TaskDetail) -> str:
    task, program = detail.task, detail.program
    head = [
        ("task", task.key),
        ("name", task.name if task.name != task.key else ""),
        ("state", state_of(task)),
        ("why", task.detail),
        ("waits for", f"{detail.waiting.code}: {detail.waiting.detail}" if detail.waiting else ""),
        ("exit code", "" if detail.exit_code is None else detail.exit_code),
        ("command", _quoted(program.argv) if program else ""),
        ("code", program.code if program else ""),
        ("image", program.image.name if program and program.image else ""),
        ("environment", ", ".join(program.environment) if program else ""),
        ("secrets", ", ".join(f"{use.name} as {use.variable}" for use in program.secrets) if program else ""),
        ("owner", f"{task.owner} in {task.workspace}{'/' + detail.project if detail.project else ''}"),
        ("pool", f"{task.pool}, priority {task.priority}, {task.slots} slots"),
        ("submitted", moment(task.submitted_at)),
        ("ended", moment(task.ended_at)),
        ("restarts", task.restarts or ""),
    ]
    parts = [facts(head)]
    notices = [f"{member.role}.{member.rank}: {text}" for member in detail.members for text in member.notices]
    for rows, columns in ((detail.members, MEMBERS), (detail.allocations, RUNS)):
        if rows:
            parts.append("\n".join(table(rows, columns, screen_width())))
    return "\n\n".join((*parts, *(["\n".join(notices)] if notices else [])))


def _quoted(argv: tuple[str, ...]) -> str:
    import shlex

    return shlex.join(argv)


def _exit(code: int | None, words: str) -> str:
    return "" if code is None else f"{code}{' (' + words + ')' if words else ''}"


@app.command("why")
def why(context: typer.Context, task: Task, as_json: Json = False) -> None:
    """Say where a task stands and how it came to that."""
    import msgspec

    from clutch.sdk import calls

    with connect(context) as client:
        found = client.perform(calls.why_task(task))
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
        return
    typer.echo(f"{found.task}: {found.sentence}")
    if found.waiting is not None and found.waiting.blockers:
        typer.echo(f"in its way: {', '.join(found.waiting.blockers)}")
    for line in found.story:
        typer.echo(f"  {told_here(line)}")


@app.command("queue")
def queue(
    context: typer.Context,
    pool: Annotated[str, typer.Option(help="Only of this pool.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 100,
    as_json: Json = False,
    watch: Watch = False,
) -> None:
    """List what waits, in order, and what it waits for."""
    from clutch.sdk import calls

    with connect(context) as client:
        show_list(
            lambda: list(islice(client.items(calls.list_queue(pool=pool, limit=min(limit, 1000))), limit)),
            QUEUE,
            as_json=as_json,
            watch=watch,
            empty="Nothing waits.",
        )


@app.command("stop")
def stop(context: typer.Context, tasks: Tasks) -> None:
    """Ask tasks to leave; after their window they are ended."""
    _move(context, tasks, "stop", "asked to leave")


@app.command("kill")
def kill(context: typer.Context, tasks: Tasks) -> None:
    """End tasks at once."""
    _move(context, tasks, "kill", "being ended")


@app.command("pause")
def pause(context: typer.Context, tasks: Tasks) -> None:
    """Ask tasks to leave and to wait for 'resume'."""
    _move(context, tasks, "pause", "asked to leave; 'clutch resume' queues it again")


@app.command("resume")
def resume(context: typer.Context, tasks: Tasks) -> None:
    """Queue paused tasks again."""
    _move(context, tasks, "resume", "queued again")


def _move(context: typer.Context, tasks: list[str], move: str, done: str) -> None:
    """All of them, whatever happens to one; the first failure sets the exit code."""
    from clutch.sdk import calls

    failed: ClutchError | None = None
    with connect(context) as client:
        for task in tasks:
            try:
                client.perform(calls.move_task(task, move))
            except ClutchError as error:
                if len(tasks) == 1:
                    raise
                typer.echo(f"clutch: {error}", err=True)
                failed = failed or error
            else:
                typer.echo(f"{task}: {done}")
    if failed is not None:
        raise typer.Exit(2 if failed.blame == "user" else 1)


@app.command("set")
def change(
    context: typer.Context,
    task: Task,
    priority: Annotated[int | None, typer.Option(min=1, max=99, help="1 is the most important.")] = None,
    count: Annotated[int | None, typer.Option(min=0, help="So many members of the role.")] = None,
    role: Annotated[str, typer.Option(help="The role whose size is meant.")] = "main",
) -> None:
    """Change the priority or the size of a task that lives."""
    from clutch.sdk import calls

    if priority is None and count is None:
        raise BadRequest("nothing is to be changed", object="set", next_step="Say --priority or --count.")
    with connect(context) as client:
        if priority is not None:
            client.perform(calls.set_priority(task, priority))
            typer.echo(f"{task}: priority {priority}")
        if count is not None:
            client.perform(calls.set_count(task, role, count))
            typer.echo(f"{task}: {count} x {role}")
