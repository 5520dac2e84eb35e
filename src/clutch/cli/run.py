"""``clutch run``: a command on the cluster, as if it ran here."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clutch.cli.where import connect
from clutch.wire.errors import BadRequest

if TYPE_CHECKING:
    from clutch.sdk.client import Client
    from clutch.sdk.task import Task
    from clutch.sdk.wish import Wish

app = typer.Typer(rich_markup_mode=None)
STREAM_PATIENCE_S = 30.0
SAID_AFTER_S = 1.0
"""An upload that takes longer than this says how far it is."""
ONLY_IN_SEARCH = ("trials", "metric", "maximize", "method", "max_time", "concurrent")
NOT_IN_SEARCH = ("count", "on_node_lost", "exclude")
OF_TRIALS = {
    "slots": "slots", "kind": "kind", "cpus": "cpus", "memory": "memory", "env": "environment", "secret": "secrets",
    "image": "image", "mount": "mounts", "expose": "ports", "leave_within": "leave_within_s", "launch": "launch",
    "preemptible": "preemptible",
}  # fmt: skip
"""Options that each trial of a search has too, and their words in a wish."""


@app.command("run", context_settings={"allow_interspersed_args": False})
def run(
    context: typer.Context,
    command: Annotated[list[str], typer.Argument(help="The command and its arguments, behind '--'.")],
    slots: Annotated[
        int | None, typer.Option("--slots", "-s", min=0, help="Devices for each member; 0, or 1 for a trial.")
    ] = None,
    kind: Annotated[str, typer.Option("--kind", help="cuda, rocm, cpu or artificial; else what the pool has.")] = "",
    cpus: Annotated[float, typer.Option("--cpus", min=0, help="CPUs for each member.")] = 0.0,
    memory: Annotated[str, typer.Option("--memory", "-m", help="Memory for each member: 512M, 16GiB.")] = "0",
    count: Annotated[int, typer.Option("--count", "-c", min=1, help="So many members, started together.")] = 1,
    pool: Annotated[str, typer.Option("--pool", help="Where it runs.")] = "default",
    name: Annotated[str, typer.Option("--name", "-n", help="What to call it.")] = "",
    workspace: Annotated[str, typer.Option("--workspace", "-w", help="Whose it is.")] = "default",
    project: Annotated[str, typer.Option("--project", help="What it belongs to.")] = "",
    priority: Annotated[int, typer.Option("--priority", min=1, max=99, help="1 is the most important.")] = 42,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", help="NAME=VALUE; may be repeated.")] = None,
    secret: Annotated[list[str] | None, typer.Option("--secret", help="NAME, or NAME=VARIABLE.")] = None,
    image: Annotated[str, typer.Option("--image", help="Container image to run in.")] = "",
    mount: Annotated[list[str] | None, typer.Option("--mount", help="/of/node:/inside, with :rw to write.")] = None,
    expose: Annotated[list[int] | None, typer.Option("--expose", min=0, max=65535, help="Port for the proxy.")] = None,
    max_restarts: Annotated[int, typer.Option("--max-restarts", min=0, help="Failures that are forgiven.")] = 0,
    on_node_lost: Annotated[str, typer.Option("--on-node-lost", help="wait for the node, or restart.")] = "wait",
    leave_within: Annotated[float, typer.Option("--leave-within", min=0, help="Seconds to save itself.")] = 30.0,
    preemptible: Annotated[bool, typer.Option("--preemptible/--keep", help="May it be asked to leave?")] = True,
    exclude: Annotated[list[str] | None, typer.Option("--exclude", help="Not on this node.")] = None,
    launch: Annotated[
        str, typer.Option("--launch", help="Start it once a slot: ranks, torchrun, accelerate, MODULE:CLASS.")
    ] = "",
    code: Annotated[Path, typer.Option("--code", help="The folder it runs in a copy of.")] = Path(),
    no_code: Annotated[bool, typer.Option("--no-code", help="Run it in an empty folder.")] = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Only submit it and print its id.")] = False,
    search: Annotated[
        list[str] | None, typer.Option("--search", help="lr=log(1e-5,1e-1): try many values; repeatable.")
    ] = None,
    trials: Annotated[int, typer.Option("--trials", min=1, help="With --search: so many tries.")] = 16,
    metric: Annotated[str, typer.Option("--metric", help="With --search: the validation to judge by.")] = "loss",
    maximize: Annotated[bool, typer.Option("--maximize", help="With --search: more is better.")] = False,
    method: Annotated[str, typer.Option("--method", help="With --search: random, grid, asha, tpe...")] = "",
    max_time: Annotated[int, typer.Option("--max-time", min=0, help="With --search: stop weak tries early.")] = 0,
    concurrent: Annotated[int, typer.Option("--concurrent", min=0, help="With --search: so many at once.")] = 0,
) -> None:
    """Run a command on the cluster and show what it prints, as if it ran here.

    The working directory goes along, but for what .clutchignore names; a Python file of it is run by Python. The exit
    code is the command's own. With --search it is an experiment: many trials, each with other hyperparameters.
    """
    from clutch.sdk.wish import parse_variable

    wish: Wish = {
        "slots": slots or 0, "kind": kind, "cpus": cpus, "memory": memory, "count": count, "pool": pool, "name": name,
        "workspace": workspace, "project": project, "priority": priority, "secrets": secret or (), "image": image,
        "environment": dict(parse_variable(text) for text in env or ()), "mounts": mount or (), "ports": expose or (),
        "max_restarts": max_restarts, "on_node_lost": on_node_lost, "leave_within_s": leave_within,
        "preemptible": preemptible, "excluded_nodes": exclude or (), "launch": launch,
    }  # fmt: skip
    folder = None if no_code else code
    if search:
        wanted = {
            "hyperparameters": search, "trials": trials, "method": method, "metric": metric, "maximize": maximize,
            "max_time": max_time, "concurrent": concurrent,
        }  # fmt: skip
        _refuse(context, NOT_IN_SEARCH, "a trial has none of its own", "Leave it out.")
        raise typer.Exit(run_search(context, command, folder, wanted, _of_trials(context, wish), detach))
    step = "Say what to search: --search 'lr=log(1e-5,1e-1)'."
    _refuse(context, ONLY_IN_SEARCH, "it belongs to a search, and there is none", step)
    from clutch.cli.searching import as_program

    with connect(context) as client:
        digest = upload(client, folder) if folder is not None else ""
        raise typer.Exit(submit_and_stay(client, as_program(command, folder), digest, wish, detach=detach))


def _said(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _refuse(context: typer.Context, names: tuple[str, ...], cause: str, step: str) -> None:
    """What means nothing here is not ignored."""
    for name in names:
        if _said(context, name):
            raise BadRequest(cause, object=f"--{name.replace('_', '-')}", next_step=step)


def _of_trials(context: typer.Context, wish: Wish) -> dict[str, Any]:
    """What was said about trials: a default of a command is none of theirs."""
    said = {option: word for option, word in OF_TRIALS.items() if _said(context, option)}
    always = ("name", "pool", "priority", "workspace", "project", "max_restarts")
    return {word: wish[word] for word in (*said.values(), *always)}  # type: ignore[literal-required]  # words of Wish


def run_search(
    context: typer.Context,
    command: list[str],
    code: Path | None,
    search: dict[str, Any],
    wish: dict[str, Any],
    detach: bool,
) -> int:
    """An experiment that runs the command many times."""
    from clutch.cli.experiments import submit_and_follow
    from clutch.cli.searching import Search, config_of
    from clutch.wire.experiment_api import SubmitExperiment

    config = config_of(command, Search(**search), wish, code)
    with connect(context) as client:
        digest = upload(client, code) if code is not None else ""
        about = {"workspace": wish["workspace"], "project": wish["project"], "code": digest}
        return submit_and_follow(client, SubmitExperiment(config=config, **about), detach=detach)


def upload(client: Client, folder: Path) -> str:
    """The digest of a folder that the cluster has; says on the terminal what takes long or is left out."""
    from clutch.sdk.code import human_size, pack

    began = time.monotonic()
    loud = sys.stderr.isatty()

    def tell(done: int, total: int) -> None:
        if loud and time.monotonic() - began > SAID_AFTER_S:
            end = "\n" if done == total else ""
            sys.stderr.write(f"\rclutch: uploading {human_size(done)} of {human_size(total)}   {end}")
            sys.stderr.flush()

    with pack(folder) as packed:
        for left_out in packed.contents.left_out:
            typer.echo(f"clutch: not uploaded: {left_out}", err=True)
        return client.upload_packed(packed, progress=tell)


def submit_and_stay(client: Client, command: Sequence[str], digest: str, wish: Wish, *, detach: bool) -> int:
    """Its exit code; 0 once it is submitted, when nobody stays. An interrupt while it is submitted waits until it is
    known what was: no task is left behind unseen."""
    from clutch.cli.attach import Attached, Interrupts, ask_terminal
    from clutch.sdk.wish import submission

    interrupts = Interrupts()
    with interrupts.handled():
        task = client.submit(submission(command, digest, os.urandom(16).hex(), wish))
        if detach:
            typer.echo(task.id)
            return 0
        if sys.stderr.isatty():
            typer.echo(f"clutch: task {task.id}", err=True)
        client.patience_s = STREAM_PATIENCE_S
        ask = ask_terminal if sys.stdin.isatty() and sys.stderr.isatty() else None
        code = Attached(task, ask, interrupts, labels=wish.get("count", 1) > 1).stay()
    if code is None:
        typer.echo(f"clutch: {task.id} goes on; 'clutch logs -f {task.id}' shows it again", err=True)
    elif code == 0 and ask is not None and "python" in command[0]:
        _tell_search(task, command)
    return code or 0


def _tell_search(task: Task, command: Sequence[str]) -> None:
    """To people whose program said how good it is: that it could be searched."""
    from clutch.cli.curves import number
    from clutch.wire.errors import ClutchError
    from clutch.wire.metrics import VALIDATION

    try:
        series = task.metrics(group=VALIDATION, points=2)
    except ClutchError:
        return  # it has done what was wanted; this is only a hint
    if not series or not series[0].points:
        return
    last = series[0].points[-1].value
    said = last if isinstance(last, str) else number(last)
    words = shlex.join(command[1:] if command[0] == "python" else command)
    typer.echo(f"clutch: its {series[0].name} is {said}. To try many values of a hyperparameter:", err=True)
    typer.echo(f"  clutch run --search 'NAME=log(1e-5,1e-1)' --metric {series[0].name} {words}", err=True)
