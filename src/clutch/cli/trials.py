"""``clutch trial``: one run of an experiment's program with one choice of hyperparameters."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from clutch.cli.experiment_logs import Shown, print_lines, with_line_options
from clutch.cli.lists import Json, Watch, screen_width, show, show_list
from clutch.cli.metric_files import Asked
from clutch.cli.metrics import Group, Names, Output, Points, Reported, TensorBoard, tell
from clutch.cli.where import connect

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
One = Annotated[str, typer.Argument(help="EXPERIMENT.NUMBER; a unique beginning of the experiment will do.")]


@app.command("list")
def list_trials(
    context: typer.Context,
    experiment: Annotated[str, typer.Argument(help="Its id, a unique beginning of it, or its name.")],
    state: Annotated[str, typer.Option(help="Only in these states, joined by commas.")] = "",
    order: Annotated[str, typer.Option(help="trial (the first first) or best.")] = "trial",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 100,
    as_json: Json = False,
    watch: Watch = False,
) -> None:
    """List the trials of an experiment."""
    from clutch.cli.experiment_render import TRIALS

    with connect(context) as client:
        found = client.experiment(experiment)
        show_list(
            lambda: list(islice(found.trials(state=state, order=order, limit=min(limit, 1000)), limit)),
            TRIALS,
            as_json=as_json,
            watch=watch,
            empty="No trial yet.",
        )


@app.command("show")
def show_trial(
    context: typer.Context,
    trial: One,
    workloads: Annotated[bool, typer.Option("--workloads", help="What was asked of it and what it did.")] = False,
    as_json: Json = False,
    watch: Watch = False,
) -> None:
    """Show a trial: hyperparameters, best values, metrics; or its workloads in order."""
    import msgspec

    from clutch.cli.experiment_render import trial_text, workloads_text

    with connect(context) as client:
        found = client.trial(trial)

        def draw() -> str:
            if workloads:
                rows = list(found.workloads())
                return msgspec.json.encode(rows).decode() if as_json else workloads_text(rows, screen_width())
            detail = found.detail()
            return msgspec.json.encode(detail).decode() if as_json else trial_text(detail, screen_width())

        show(draw, watch=watch, as_json=as_json)


@app.command("logs")
@with_line_options
def logs(context: typer.Context, trial: One, shown: Shown) -> None:
    """Show what a trial printed, over all its starts."""
    with connect(context) as client:
        lines = client.trial(trial).output(follow=shown.follow, **shown.filters)
        print_lines(lines, shown, mark=False)


@app.command("stop")
def stop(context: typer.Context, trials: Annotated[list[str], typer.Argument(help="EXPERIMENT.NUMBER")]) -> None:
    """Let trials save themselves and end them; the search goes on without them."""
    _move(context, trials, "stop", "asked to leave")


@app.command("kill")
def kill(context: typer.Context, trials: Annotated[list[str], typer.Argument(help="EXPERIMENT.NUMBER")]) -> None:
    """End trials at once."""
    _move(context, trials, "kill", "ended")


def _move(context: typer.Context, trials: list[str], move: str, done: str) -> None:
    from clutch.sdk import experiment_calls as calls

    with connect(context) as client:
        for trial in trials:
            client.perform(calls.move_trial(client.trial(trial).id, move))
            typer.echo(f"{trial}: {done}")


@app.command("metrics")
def metrics(
    context: typer.Context,
    trial: One,
    output: Output = None,
    group: Group = "",
    name: Names = None,
    tensorboard: TensorBoard = False,
    points: Points = 200,
    as_json: Json = False,
) -> None:
    """Draw what a trial reported, or write all of it to a file: CSV, Parquet, or TensorBoard's own."""
    with connect(context) as client:
        found = client.trial(trial)
        asked = Asked(group, tuple(name or ()), points, tensorboard, as_json)
        tell(client, Reported(found.metrics, lambda: found.detail().tasks), asked, output)
