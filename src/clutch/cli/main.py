"""The ``clutch`` command: its groups and what they share.

Imports are lazy: a command pays only for what it uses, so ``clutch --help`` stays quick.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from clutch.cli import backup, demo, sim
from clutch.wire.errors import ClutchError

app = typer.Typer(
    name="clutch",
    help="Experiments, notebooks and reinforcement learning on one cluster, under one scheduler.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(sim.app, name="sim")
app.command("demo")(demo.demo)
backup.add_commands(app)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        from clutch import __version__

        typer.echo(f"clutch {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line. An error says cause, object and next step, and sets the exit code."""
    try:
        app()
    except ClutchError as error:
        typer.echo(f"clutch: {error}", err=True)
        sys.exit(2 if error.blame == "user" else 1)


if __name__ == "__main__":
    main()
