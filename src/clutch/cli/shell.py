"""``clutch shell``: a terminal on a machine of the cluster, through the master's proxy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clutch.cli.where import connect, place

if TYPE_CHECKING:
    from clutch.sdk.client import Client
    from clutch.sdk.task import Task
    from clutch.sdk.wish import Wish

app = typer.Typer(rich_markup_mode=None)
SERVER = ("python3", "-m", "clutch.runtime.terminal", "--")
SHELL = ("sh", "-c", "exec $(command -v bash || echo sh) -l")
KIND = "shell"
WAIT_S = 600.0


@app.command("shell", context_settings={"allow_interspersed_args": False})
def shell(
    context: typer.Context,
    command: Annotated[list[str] | None, typer.Argument(help="What runs in it, behind '--'; a login shell.")] = None,
    task: Annotated[str, typer.Option("--task", "-t", help="Go back into this one.")] = "",
    session: Annotated[str, typer.Option("--session", help="Which terminal of it.")] = "main",
    slots: Annotated[int, typer.Option("--slots", "-s", min=0, help="Devices.")] = 0,
    kind: Annotated[str, typer.Option("--kind", help="cuda, rocm, cpu or artificial; else what the pool has.")] = "",
    cpus: Annotated[float, typer.Option("--cpus", min=0, help="CPUs.")] = 0.0,
    memory: Annotated[str, typer.Option("--memory", "-m", help="Memory: 512M, 16GiB.")] = "0",
    pool: Annotated[str, typer.Option("--pool", help="Where it runs.")] = "default",
    name: Annotated[str, typer.Option("--name", "-n", help="What to call it.")] = "",
    workspace: Annotated[str, typer.Option("--workspace", "-w", help="Whose it is.")] = "default",
    image: Annotated[str, typer.Option("--image", help="Container image with Clutch in it.")] = "",
    code: Annotated[Path | None, typer.Option("--code", help="A folder to take along.")] = None,
    idle: Annotated[float, typer.Option("--idle", min=0, help="Minutes without a user until it ends; 0: never.")] = 60,
    stay: Annotated[bool, typer.Option("--stay", help="Let it run when the shell has ended.")] = False,
) -> None:
    """Open a terminal on a machine of the cluster. Ctrl-] leaves it running; --task goes back in."""
    wish: Wish = {
        "slots": slots, "kind": kind, "cpus": cpus, "memory": memory, "pool": pool, "name": name, "image": image,
        "workspace": workspace, "ports": (0,), "idle_timeout_s": idle * 60, "task_kind": KIND,
    }  # fmt: skip
    token = place(context).token
    with connect(context) as client:
        found = client.task(task) if task else _start(client, command or list(SHELL), code, wish)
        raise typer.Exit(_use(found, token, place(context).ca_file, session, end=not task and not stay))


def _start(client: Client, command: list[str], code: Path | None, wish: Wish) -> Task:
    from clutch.cli.run import upload
    from clutch.sdk.wish import submission

    digest = upload(client, code) if code is not None else ""
    return client.submit(submission([*SERVER, *command], digest, os.urandom(16).hex(), wish))


def _use(task: Task, token: str, ca_file: str, session: str, *, end: bool) -> int:
    """The shell's exit code; 0 when its user left it running."""
    from clutch.cli.console import Console, Left
    from clutch.cli.proxied import wait_port
    from clutch.wire.errors import IllegalMove

    try:
        port = wait_port(task, WAIT_S)
    except KeyboardInterrupt:
        task.kill()
        raise typer.Exit(130) from None
    console = Console(task.client.address, token, ca_file, f"/proxy/{task.id}/{port}/")
    try:
        code = console.run(session)
    except Left:
        typer.echo(f"\r\nclutch: {task.id} goes on; 'clutch shell --task {task.id}' goes back in", err=True)
        return 0
    if end:
        try:
            task.stop()
        except IllegalMove:
            return code  # it has ended by itself
    return code
