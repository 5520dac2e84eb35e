"""``clutch tensorboard``: TensorBoard as a task, in a browser through the master's proxy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from clutch.cli.lists import Json
from clutch.cli.where import connect

app = typer.Typer(rich_markup_mode=None)
KIND = "tensorboard"
WAIT_S = 600.0
SERVER = ("sh", "-c", 'exec tensorboard --logdir "$0" --host 127.0.0.1 --port "$CLUTCH_PORT_0"')
"""The proxy alone reaches it: it listens on its own machine only."""


@app.command("tensorboard")
def tensorboard(
    context: typer.Context,
    logs: Annotated[Path, typer.Argument(help="A folder of event files: of this machine, or --on-node.")],
    on_node: Annotated[bool, typer.Option("--on-node", help="The folder is one that the machines have.")] = False,
    pool: Annotated[str, typer.Option("--pool", help="Where it runs.")] = "default",
    name: Annotated[str, typer.Option("--name", "-n", help="What to call it.")] = "",
    workspace: Annotated[str, typer.Option("--workspace", "-w", help="Whose it is.")] = "default",
    image: Annotated[str, typer.Option("--image", help="Container image with TensorBoard in it.")] = "",
    env: Annotated[list[str] | None, typer.Option("--env", "-e", help="NAME=VALUE; may be repeated.")] = None,
    idle: Annotated[float, typer.Option("--idle", min=0, help="Minutes without a user until it ends; 0: never.")] = 30,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in this machine's browser.")] = False,
    as_json: Json = False,
) -> None:
    """Show event files in TensorBoard; prints the address to open."""
    from clutch.cli.proxied import wait_port
    from clutch.cli.run import upload
    from clutch.sdk import calls
    from clutch.sdk.wish import Wish, parse_variable, submission

    wish: Wish = {
        "pool": pool, "name": name, "workspace": workspace, "image": image, "ports": (0,), "task_kind": KIND,
        "idle_timeout_s": idle * 60, "environment": dict(parse_variable(text) for text in env or ()),
    }  # fmt: skip
    with connect(context) as client:
        digest = "" if on_node else upload(client, logs)
        command = [*SERVER, str(logs) if on_node else "."]
        task = client.submit(submission(command, digest, os.urandom(16).hex(), wish))
        port = wait_port(task, WAIT_S)
        url = f"{client.address}{client.perform(calls.make_ticket(task.id, port)).path}"
    if as_json:
        import json

        typer.echo(json.dumps({"task": task.id, "url": url}))
    else:
        typer.echo(url)
        typer.echo(
            f"clutch: {task.id} ends after {idle:g} minutes without a user, or by 'clutch kill {task.id}'", err=True
        )
    if open_browser:
        typer.launch(url)
