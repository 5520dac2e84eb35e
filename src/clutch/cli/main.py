"""The ``clutch`` command: its groups and what they share.

Imports are lazy: a command pays only for what it uses, so ``clutch --help`` stays quick. A new command is a row in
``TABLE``.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from clutch.cli.lazy import Lazy, LazyGroup, Said

TABLE = {
    "up": Lazy("clutch.cli.up", "Start a cluster on this machine.", attribute="up", cluster=False),
    "down": Lazy("clutch.cli.up", "Stop this machine's cluster.", attribute="down", cluster=False),
    "run": Lazy("clutch.cli.run", "Run a command on the cluster and show what it prints, as if it ran here."),
    "ps": Lazy("clutch.cli.ps", "List tasks: those that live, or all."),
    "logs": Lazy("clutch.cli.logs", "Show what a task printed."),
    "show": Lazy("clutch.cli.tasks", "Show everything about a task."),
    "metrics": Lazy("clutch.cli.metrics", "Draw what a task reported, or write it to a file."),
    "why": Lazy("clutch.cli.tasks", "Say where a task stands and how it came to that."),
    "queue": Lazy("clutch.cli.tasks", "List what waits, in order, and what it waits for."),
    "stop": Lazy("clutch.cli.tasks", "Ask tasks to leave; after their window they are ended."),
    "kill": Lazy("clutch.cli.tasks", "End tasks at once."),
    "pause": Lazy("clutch.cli.tasks", "Ask tasks to leave and to wait for 'resume'."),
    "resume": Lazy("clutch.cli.tasks", "Queue paused tasks again."),
    "set": Lazy("clutch.cli.tasks", "Change the priority or the size of a task that lives."),
    "experiment": Lazy("clutch.cli.experiments", "From a configuration to the best model.", group=True),
    "trial": Lazy("clutch.cli.trials", "The runs of an experiment.", group=True),
    "checkpoint": Lazy("clutch.cli.checkpoints", "What trials saved.", group=True),
    "model": Lazy("clutch.cli.models", "Models, their versions and aliases.", group=True),
    "template": Lazy("clutch.cli.templates", "Configurations that others are laid over.", group=True),
    "webhook": Lazy("clutch.cli.webhooks", "Who is told when an experiment changes its state.", group=True),
    "shell": Lazy("clutch.cli.shell", "Open a terminal on a machine of the cluster."),
    "tensorboard": Lazy("clutch.cli.tensorboard", "Show event files in TensorBoard."),
    "events": Lazy("clutch.cli.events", "Show what happened, and what happens."),
    "doctor": Lazy(
        "clutch.cli.doctor", "Check a live cluster and what it promises; say what to do where it falls short."
    ),
    "login": Lazy("clutch.cli.login", "Log in to a cluster and keep that for the next commands."),
    "logout": Lazy("clutch.cli.login", "End the login and forget it."),
    "whoami": Lazy("clutch.cli.login", "Say who this is for the cluster, and what they may do."),
    "open": Lazy("clutch.cli.open", "Print the address at which a task's port opens in a browser."),
    "agent": Lazy("clutch.cli.agents", "The machines of the cluster.", group=True),
    "pool": Lazy("clutch.cli.pools", "Pools of machines and how they are shared.", group=True),
    "user": Lazy("clutch.cli.admin", "Users.", group=True, attribute="user"),
    "group": Lazy("clutch.cli.admin", "Groups of users.", group=True, attribute="group"),
    "workspace": Lazy("clutch.cli.admin", "Workspaces.", group=True, attribute="workspace"),
    "project": Lazy("clutch.cli.admin", "Projects of a workspace.", group=True, attribute="project"),
    "role": Lazy("clutch.cli.admin", "Who holds which role where.", group=True, attribute="role"),
    "token": Lazy("clutch.cli.tokens", "Tokens for programs and agents.", group=True, attribute="token"),
    "secret": Lazy("clutch.cli.tokens", "Secrets that tasks may use.", group=True, attribute="secret"),
    "quota": Lazy("clutch.cli.admin", "The most slots somebody may hold.", group=True, attribute="quota"),
    "audit": Lazy("clutch.cli.accounts", "List who changed what."),
    "usage": Lazy("clutch.cli.accounts", "List slot-hours by day, user, workspace and project."),
    "master": Lazy("clutch.cli.master", "Run a master of a cluster.", attribute="master", cluster=False),
    "backup": Lazy("clutch.cli.backup", "Copy a journal into a new file.", attribute="backup", cluster=False),
    "restore": Lazy("clutch.cli.backup", "Fill an empty journal from a backup.", attribute="restore", cluster=False),
    "demo": Lazy("clutch.cli.demo", "A search on a cluster of its own; a simulated day.", group=True, cluster=False),
    "sim": Lazy("clutch.cli.sim", "Whole clusters from a seed: run them, replay them.", group=True, cluster=False),
    "completion": Lazy("clutch.cli.completion", "Print the completion script of a shell.", cluster=False),
}


class _Root(LazyGroup):
    table = TABLE


app = typer.Typer(
    name="clutch",
    cls=_Root,
    help="Experiments, notebooks and reinforcement learning on one cluster, under one scheduler.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
    master: Annotated[
        str, typer.Option(help="Address of the cluster, or several with commas.", show_default=False)
    ] = "",
    token: Annotated[str, typer.Option(help="Token for it; better in CLUTCH_TOKEN or by 'clutch login'.")] = "",
    ca_file: Annotated[str, typer.Option(help="Certificates to trust, for https.", show_default=False)] = "",
) -> None:
    if version:
        from clutch import __version__

        typer.echo(f"clutch {__version__}")
        raise typer.Exit
    context.obj = Said(master, token, ca_file)


def main() -> None:
    """Run the command line. An error says cause, object and next step, and sets the exit code."""
    try:
        app()
    except Exception as error:
        from clutch.wire.errors import ClutchError

        if not isinstance(error, ClutchError):
            raise
        typer.echo(f"clutch: {error}", err=True)
        sys.exit(2 if error.blame == "user" else 1)


if __name__ == "__main__":
    main()
