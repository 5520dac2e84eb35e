"""``clutch metrics``: what a task reported, on the screen or in a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from clutch.cli.lists import Json
from clutch.cli.metric_files import Asked, drawn, write_metrics
from clutch.cli.where import connect
from clutch.wire.errors import BadRequest

if TYPE_CHECKING:
    from clutch.sdk.client import Client
    from clutch.wire.metrics import Series

app = typer.Typer(rich_markup_mode=None)
Output = Annotated[Path | None, typer.Option("--output", "-o", help="FILE.csv, FILE.parquet, or a folder.")]
Group = Annotated[str, typer.Option("--group", "-g", help="training, validation, or another.")]
Names = Annotated[list[str] | None, typer.Option("--name", help="Only this metric; repeatable.")]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Event files for TensorBoard.")]
Points = Annotated[int, typer.Option("--points", min=1, help="So many of each, on the screen.")]


class Reported(NamedTuple):
    """Something that reports: its metrics as a chart has them, and the tasks that have all of them."""

    metrics: Callable[..., Sequence[Series]]
    tasks: Callable[[], Sequence[str]]


@app.command("metrics")
def metrics(
    context: typer.Context,
    task: Annotated[str, typer.Argument(help="Its id, a unique beginning of it, or its name.")],
    output: Output = None,
    group: Group = "",
    name: Names = None,
    tensorboard: TensorBoard = False,
    points: Points = 200,
    as_json: Json = False,
) -> None:
    """Draw what a task reported, or write all of it to a file: CSV, Parquet, or TensorBoard's own."""
    with connect(context) as client:
        found = client.task(task)
        asked = Asked(group, tuple(name or ()), points, tensorboard, as_json)
        tell(client, Reported(found.metrics, lambda: (found.id,)), asked, output)


def tell(client: Client, reported: Reported, asked: Asked, output: Path | None) -> None:
    """To a file if one is named, else to the screen."""
    if output is not None:
        count = write_metrics(client, reported.tasks(), asked, output)
        typer.echo(f"{output}: {count:,} points")
        return
    if asked.tensorboard:
        raise BadRequest("no folder is named", object="--tensorboard", next_step="Say --output FOLDER.")
    series = reported.metrics(group=asked.group, name=asked.names, points=asked.points)
    if asked.as_json:
        import msgspec

        typer.echo(msgspec.json.encode(series).decode())
        return
    typer.echo(drawn(series) or "It has reported nothing of this kind.")
