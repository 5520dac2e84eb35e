"""``clutch logs``: what a task printed, all of it, a part of it, or as it comes."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from clutch.cli.where import connect
from clutch.wire.errors import BadRequest

if TYPE_CHECKING:
    from clutch.sdk.client import Client
    from clutch.sdk.output import Filters
    from clutch.sdk.task import Task
    from clutch.wire.output import OutputQuery

app = typer.Typer(rich_markup_mode=None)


@app.command("logs")
def logs(
    context: typer.Context,
    task: Annotated[str, typer.Argument(help="Its id, a unique beginning of it, or its name.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it has ended.")] = False,
    search: Annotated[str, typer.Option("--search", help="Only lines with this text.")] = "",
    regex: Annotated[str, typer.Option("--regex", help="Only lines that match this expression.")] = "",
    ignore_case: Annotated[bool, typer.Option("--ignore-case", "-i", help="Large letters are small ones.")] = False,
    rank: Annotated[
        list[int] | None, typer.Option("--rank", min=0, help="Only of these ranks; may be repeated.")
    ] = None,
    role: Annotated[str, typer.Option("--role", help="Only of this role.")] = "",
    stream: Annotated[str, typer.Option("--stream", help="Only stdout, or only stderr.")] = "",
    level: Annotated[str, typer.Option("--level", help="debug, info, warning, error or critical, and worse.")] = "",
    since: Annotated[str, typer.Option("--since", help="From here on: 10m, 2h (ago), or 2026-03-01T12:00.")] = "",
    until: Annotated[str, typer.Option("--until", help="Before this moment.")] = "",
    tail: Annotated[int, typer.Option("--tail", "-n", min=0, help="Only the last so many.")] = 0,
    head: Annotated[int, typer.Option("--head", min=0, help="Only the first so many.")] = 0,
    epoch: Annotated[list[int] | None, typer.Option("--epoch", min=1, help="Only of these runs of the task.")] = None,
    times: Annotated[bool, typer.Option("--times", "-t", help="Say when each line was written.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="The exact bytes of one stream of one member.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Show what a task printed."""
    if stream not in ("", "stdout", "stderr"):
        raise BadRequest(f"there is no stream {stream!r}", object="--stream", next_step="Write stdout or stderr.")
    if head and tail:
        raise BadRequest("the first and the last lines cannot both be meant", object="--head", next_step="Say one.")
    from clutch.sdk.wish import parse_moment

    now = time.time()
    filters: Filters = {
        "role": role, "ranks": tuple(rank or ()), "epochs": tuple(epoch or ()), "streams": (stream,) if stream else (),
        "since": parse_moment(since, now) if since else None, "until": parse_moment(until, now) if until else None,
        "text": search, "regex": regex, "ignore_case": ignore_case, "level": level or None, "head": head, "tail": tail,
    }  # fmt: skip
    with connect(context) as client:
        found = client.task(task)
        try:
            if raw:
                _raw(client, found.id, {**_one(filters), "stream": stream or "stdout"})
            else:
                _lines(found, filters, follow=follow, times=times, as_json=as_json)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def _lines(task: Task, filters: Filters, *, follow: bool, times: bool, as_json: bool) -> None:
    """Lines to where they belong. Tasks with several members get each line's member before it."""
    from clutch.cli.printing import line_text

    first: str | None = None
    several = False
    for line in task.output(follow=follow, **filters):
        if as_json:
            import msgspec

            typer.echo(msgspec.json.encode(line).decode())
            continue
        several = several or _has_several(task) if first is None else several
        first = first or line.stream
        out = sys.stderr if line.stream == "stderr" or line.kind != "line" else sys.stdout
        out.write(line_text(line, label=several, times=times))
        out.flush()


def _has_several(task: Task) -> bool:
    """Whether it has, or had, more than one member."""
    from clutch.sdk import calls

    detail = task.detail()
    if detail.members:
        return len(detail.members) > 1
    return any("," in run.nodes for run in detail.allocations) or bool(
        task.client.perform(calls.read_output(_second(task.id))).lines
    )


def _second(task: str) -> OutputQuery:
    from clutch.sdk.output import output_query

    return output_query(task, ranks=(1,), limit=1)


def _one(filters: Filters) -> dict[str, object]:
    """The one member whose bytes are meant."""
    chosen = {"rank": filters["ranks"], "epoch": filters["epochs"]}
    for name, numbers in chosen.items():
        if len(numbers) > 1:
            raise BadRequest("the bytes of one stream are meant", object=f"--{name}", next_step="Name one.")
    return {"role": filters["role"]} | {name: numbers[0] for name, numbers in chosen.items() if numbers}


def _raw(client: Client, task: str, fields: dict[str, object]) -> None:
    from clutch.sdk import calls

    for piece in client.pieces(calls.raw_stream(task, fields)):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
