"""``clutch experiment``: from a configuration to the best model."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clutch.cli.experiment_logs import Shown, print_lines, with_line_options
from clutch.cli.lists import Json, Watch, screen_width, show, show_list
from clutch.cli.where import connect
from clutch.wire.errors import BadRequest, ClutchError

if TYPE_CHECKING:
    from clutch.sdk.client import Client
    from clutch.wire.experiment_api import ExperimentSubmitted, SubmitExperiment

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)

One = Annotated[str, typer.Argument(help="Its id, a unique beginning of it, or its name.")]
Many = Annotated[list[str], typer.Argument(help="Ids, unique beginnings of ids, or names.")]
Config = Annotated[Path, typer.Argument(help="YAML, JSON, or Python that sets 'config'; - for standard input.")]
Setting = Annotated[list[str] | None, typer.Option("--set", help="path.to.field=VALUE over the file; repeatable.")]
Template = Annotated[str, typer.Option("--template", "-t", help="A stored configuration below this one.")]
Workspace = Annotated[str, typer.Option("--workspace", "-w", help="Whose it is.")]
Project = Annotated[str, typer.Option("--project", help="What it belongs to.")]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Only submit it and print its id.")]
LIVE = "active,paused,stopping,deleting"


@app.command("create")
def create(
    context: typer.Context,
    config: Config,
    code: Annotated[Path | None, typer.Argument(help="The folder its trials run in copies of.")] = None,
    setting: Setting = None,
    template: Template = "",
    workspace: Workspace = "",
    project: Project = "",
    paused: Annotated[bool, typer.Option("--paused", help="Make it, and wait for 'resume'.")] = False,
    key: Annotated[str, typer.Option(help="The same key gives the same experiment.")] = "",
    detach: Detach = False,
) -> None:
    """Submit an experiment and follow it. Without a folder its trials have no code but their image's."""
    from clutch.cli.configs import left_behind

    with connect(context) as client:
        wanted = _wanted(config, setting, template=template, workspace=workspace, project=project)
        if code is None and (said := left_behind(config, wanted.config)):
            typer.echo(f"clutch: {said}", err=True)
        wanted = _with(wanted, paused=paused, key=key, code=_upload(client, code))
        raise typer.Exit(submit_and_follow(client, wanted, detach=detach or paused))


def submit_and_follow(client: Client, wanted: SubmitExperiment, *, detach: bool) -> int:
    """0 when it has completed, 1 when it has not; 0 once it is submitted, when nobody stays."""
    from clutch.cli.experiment_live import follow
    from clutch.sdk import experiment_calls as calls

    if not wanted.key:
        wanted = _with(wanted, key=os.urandom(16).hex())
    submitted = client.perform(calls.submit_experiment(wanted))
    _notices(submitted)
    if detach:
        typer.echo(submitted.experiment)
        return 0
    return follow(client, submitted.experiment)


def _notices(submitted: ExperimentSubmitted) -> None:
    for notice in submitted.notices:
        hint = f" ({notice.hint})" if notice.hint else ""
        typer.echo(f"clutch: {notice.path}: {notice.problem}{hint}", err=True)


def _wanted(config: Path, setting: list[str] | None, **about: Any) -> SubmitExperiment:
    from clutch.cli.configs import overlaid, read_config
    from clutch.wire.experiment_api import SubmitExperiment

    said, text = read_config(config)
    return SubmitExperiment(config=overlaid(said, setting or ()), source=text, **about)


def _with(wanted: SubmitExperiment, **fields: Any) -> SubmitExperiment:
    import msgspec

    return msgspec.structs.replace(wanted, **fields)


def _upload(client: Client, code: Path | None) -> str:
    from clutch.cli.run import upload

    return upload(client, code) if code is not None else ""


@app.command("preview")
def preview(
    context: typer.Context, config: Config, setting: Setting = None, template: Template = "", as_json: Json = False
) -> None:
    """Check a configuration and say what its search would do, before anything is paid for."""
    from clutch.cli.experiment_render import preview_text
    from clutch.sdk import experiment_calls as calls

    with connect(context) as client:
        found = client.perform(calls.preview_experiment(_wanted(config, setting, template=template)))
    typer.echo(_json(found) if as_json else preview_text(found))


@app.command("schema")
def schema(context: typer.Context) -> None:
    """Print the JSON schema of configurations, for editors."""
    from clutch.sdk import experiment_calls as calls

    with connect(context) as client:
        typer.echo(_json(client.perform(calls.config_schema())))


@app.command("list")
def list_experiments(
    context: typer.Context,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also those in the archive.")] = False,
    live: Annotated[bool, typer.Option("--live", "-l", help="Only those that have not ended.")] = False,
    state: Annotated[str, typer.Option(help="Only in these states, joined by commas.")] = "",
    owner: Annotated[str, typer.Option(help="Only of this user.")] = "",
    workspace: Annotated[str, typer.Option(help="Only in this workspace.")] = "",
    project: Annotated[str, typer.Option(help="Only of this project.")] = "",
    label: Annotated[str, typer.Option(help="Only with this label.")] = "",
    name: Annotated[str, typer.Option(help="Only with this name.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many, the newest first.")] = 100,
    as_json: Json = False,
    watch: Watch = False,
) -> None:
    """List experiments, the newest first."""
    from clutch.cli.experiment_render import EXPERIMENTS

    filters: dict[str, Any] = {"owner": owner, "workspace": workspace, "project": project, "label": label, "name": name}
    filters |= {"state": state or (LIVE if live else ""), "archived": "" if everything else "false"}
    with connect(context) as client:
        show_list(
            lambda: list(islice(client.experiments(limit=min(limit, 1000), **filters), limit)),
            EXPERIMENTS,
            as_json=as_json,
            watch=watch,
            empty="No experiment. 'clutch experiment create CONFIG FOLDER' makes one.",
        )


@app.command("show")
def show_experiment(
    context: typer.Context,
    experiment: One,
    config: Annotated[bool, typer.Option("--config", help="Only its effective configuration, as JSON.")] = False,
    source: Annotated[bool, typer.Option("--source", help="Only what its user wrote.")] = False,
    trials: Annotated[int, typer.Option("--trials", min=0, help="So many of its best trials.")] = 20,
    as_json: Json = False,
    watch: Watch = False,
) -> None:
    """Show an experiment, its best trials first."""
    from clutch.cli.experiment_render import experiment_text

    with connect(context) as client:
        found = client.experiment(experiment)
        if config or source:
            detail = found.detail()
            typer.echo(detail.source if source else _json(detail.config, indent=2))
            return

        def draw() -> str:
            detail = found.detail()
            if as_json:
                return _json(detail)
            rows = list(islice(found.trials(order="best", limit=max(1, trials)), trials))
            return experiment_text(detail, rows, screen_width())

        show(draw, watch=watch, as_json=as_json)


@app.command("watch")
def watch_experiment(context: typer.Context, experiment: One) -> None:
    """Follow an experiment: its progress, its curves, its trials. Ctrl-C leaves it running."""
    from clutch.cli.experiment_live import follow

    with connect(context) as client:
        raise typer.Exit(follow(client, client.experiment(experiment).id))


@app.command("wait")
def wait(
    context: typer.Context,
    experiment: One,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Seconds; 0: for ever.")] = 0.0,
) -> None:
    """Wait until an experiment has ended. The exit code is 0 if it has completed."""
    with connect(context) as client:
        view = client.experiment(experiment).wait(timeout or None)
        typer.echo(f"{view.key}: {view.state}{': ' + view.detail if view.detail else ''}")
        raise typer.Exit(0 if view.state == "completed" else 1)


@app.command("why")
def why(context: typer.Context, experiment: One, as_json: Json = False) -> None:
    """Say where an experiment stands and what it waits for."""
    with connect(context) as client:
        found = client.experiment(experiment).why()
    if as_json:
        typer.echo(_json(found))
        return
    typer.echo(f"{found.task}: {found.sentence}")
    for line in found.story:
        typer.echo(f"  {line}")


@app.command("logs")
@with_line_options
def logs(
    context: typer.Context,
    experiment: One,
    shown: Shown,
    trial: Annotated[list[int] | None, typer.Option("--trial", min=1, help="Only of this trial; repeatable.")] = None,
) -> None:
    """Show what its trials printed, by time, each line marked with its trial."""
    with connect(context) as client:
        lines = client.experiment(experiment).output(follow=shown.follow, trials=tuple(trial or ()), **shown.filters)
        print_lines(lines, shown, mark=len(trial or ()) != 1)


# -- moving ------------------------------------------------------------------------------------------------------


def _moving(move: str, done: str, doc: str) -> None:
    def command(
        context: typer.Context,
        experiments: Annotated[list[str] | None, typer.Argument(help="Ids, unique beginnings, names.")] = None,
        state: Annotated[str, typer.Option(help="Instead of names: all in these states.")] = "",
        label: Annotated[str, typer.Option(help="Instead of names: all with this label.")] = "",
        project: Annotated[str, typer.Option(help="Instead of names: all of this project.")] = "",
        workspace: Annotated[str, typer.Option(help="Instead of names: all in this workspace.")] = "",
    ) -> None:
        where = {"state": state, "label": label, "project": project, "workspace": workspace}
        _move(context, move, done, tuple(experiments or ()), where)

    command.__doc__ = doc
    app.command(move)(command)


def _move(context: typer.Context, move: str, done: str, names: tuple[str, ...], where: dict[str, str]) -> None:
    """All of them, whatever happens to one; a failure sets the exit code."""
    from clutch.sdk import experiment_calls as calls
    from clutch.wire.experiment_api import ExperimentIds

    if not names and not any(where.values()):
        raise BadRequest(
            "none is named", object=move, next_step="Name experiments, or say --label, --project, --state."
        )
    with connect(context) as client:
        found = client.perform(calls.move_experiments(move, ExperimentIds(experiments=names, **where)))
    for one in found.items:
        typer.echo(f"{one.experiment}: {one.error or done}", err=bool(one.error))
    if not found.items:
        typer.echo("None matches.")
    if any(one.error for one in found.items):
        raise typer.Exit(2)


_moving("pause", "its trials save themselves and leave", "Give the slots back and wait for 'resume'.")
_moving("resume", "goes on", "Let paused experiments go on.")
_moving("cancel", "its trials save themselves and leave", "End experiments after their trials saved themselves.")
_moving("kill", "ended", "End experiments at once.")
_moving("archive", "in the archive", "Put ended experiments where lists do not show them.")
_moving("unarchive", "in the lists again", "Show archived experiments in lists again.")


@app.command("delete")
def delete(
    context: typer.Context,
    experiments: Many,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete ended experiments with their checkpoints, metrics and output."""
    if not yes:
        typer.confirm(f"Delete {', '.join(experiments)} with all checkpoints, metrics and output?", abort=True)
    _move(context, "delete", "is being deleted", tuple(experiments), {})


@app.command("continue")
def go_on(
    context: typer.Context,
    experiment: One,
    trial: Annotated[list[int] | None, typer.Option("--trial", min=1, help="These trials; repeatable.")] = None,
    max_time: Annotated[int, typer.Option("--max-time", min=0, help="Train up to this length.")] = 0,
    max_trials: Annotated[int, typer.Option("--max-trials", min=0, help="Go on to so many trials.")] = 0,
    hparam: Annotated[list[str] | None, typer.Option("--hparam", help="name=VALUE laid over; repeatable.")] = None,
    detach: Detach = False,
) -> None:
    """Give an ended experiment more work: its trials go on from their last checkpoints, under the same numbers."""
    from clutch.cli.configs import overlaid
    from clutch.cli.experiment_live import follow

    with connect(context) as client:
        found = client.experiment(experiment)
        found.go_on(
            trials=tuple(trial or ()),
            max_time=max_time,
            max_trials=max_trials,
            hparams=overlaid({}, hparam or (), "--hparam"),
        )
        raise typer.Exit(0 if detach else follow(client, found.id))


@app.command("fork")
def fork(
    context: typer.Context,
    experiment: One,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Laid over what it was made from.")] = None,
    code: Annotated[Path | None, typer.Option("--code", help="Other code than its own.")] = None,
    setting: Setting = None,
    detach: Detach = False,
) -> None:
    """Make a new experiment from another one's configuration and code, with changes."""
    from clutch.cli.configs import overlaid, read_config
    from clutch.wire.experiment_api import SubmitExperiment

    said, text = read_config(config) if config is not None else ({}, "")
    with connect(context) as client:
        parent = client.experiment(experiment).id
        wanted = SubmitExperiment(config=overlaid(said, setting or ()), source=text, parent=parent)
        raise typer.Exit(submit_and_follow(client, _with(wanted, code=_upload(client, code)), detach=detach))


@app.command("edit")
def edit(
    context: typer.Context,
    experiment: One,
    name: Annotated[str | None, typer.Option(help="What to call it.")] = None,
    description: Annotated[str | None, typer.Option(help="What it is about.")] = None,
    notes: Annotated[str | None, typer.Option(help="What was found.")] = None,
    label: Annotated[list[str] | None, typer.Option("--label", help="Add this label; repeatable.")] = None,
    unlabel: Annotated[list[str] | None, typer.Option("--unlabel", help="Remove this label; repeatable.")] = None,
    project: Annotated[str | None, typer.Option(help="Move it to this project of its workspace.")] = None,
    priority: Annotated[int | None, typer.Option(min=1, max=99, help="1 is the most important.")] = None,
    max_slots: Annotated[int | None, typer.Option(min=0, help="The most slots of all its trials; 0: any.")] = None,
    save_experiment_best: Annotated[int | None, typer.Option(min=0, help="Keep the best so many checkpoints.")] = None,
    save_trial_best: Annotated[int | None, typer.Option(min=0, help="Keep so many of each trial.")] = None,
    save_trial_latest: Annotated[int | None, typer.Option(min=0, help="Keep so many latest of each trial.")] = None,
) -> None:
    """Change what an experiment is called, what is said about it, and its bounds."""
    changes: dict[str, Any] = {
        "name": name, "description": description, "notes": notes, "project": project, "priority": priority,
        "max_slots": max_slots, "save_experiment_best": save_experiment_best, "save_trial_best": save_trial_best,
        "save_trial_latest": save_trial_latest,
    }  # fmt: skip
    changes = {field: value for field, value in changes.items() if value is not None}
    with connect(context) as client:
        found = client.experiment(experiment)
        if label or unlabel:
            kept = [word for word in found.view.labels.split(",") if word and word not in (unlabel or ())]
            changes["labels"] = tuple(dict.fromkeys([*kept, *(label or ())]))
        if not changes:
            raise BadRequest("nothing is to be changed", object="edit", next_step="Say --name, --label, --notes...")
        found.edit(**changes)
        typer.echo(f"{found.id}: changed {', '.join(changes)}")


@app.command("compare")
def compare(
    context: typer.Context,
    experiments: Many,
    metric: Annotated[str, typer.Option("--metric", "-m", help="Which metric; each one's own if not given.")] = "",
    group: Annotated[str, typer.Option("--group", "-g", help="validation, training, or another.")] = "",
    as_json: Json = False,
) -> None:
    """Compare experiments (by their best trials) or the trials of one: values, hyperparameters, curves."""
    from clutch.cli.experiment_compare import compared, compared_text

    with connect(context) as client:
        found = compared(client, experiments, metric, group)
    typer.echo(_json(found) if as_json else compared_text(found))


def _json(value: Any, indent: int = -1) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=indent).decode()


__all__ = ["ClutchError", "app", "submit_and_follow"]
