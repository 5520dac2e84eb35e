"""``clutch open``: the address at which a task's port opens in a browser."""

from __future__ import annotations

from typing import Annotated

import typer

from clutch.cli.lists import Json
from clutch.cli.where import connect

app = typer.Typer(rich_markup_mode=None)
WAIT_S = 600.0


@app.command("open")
def open_port(
    context: typer.Context,
    task: Annotated[str, typer.Argument(help="Its id, a unique beginning of it, or its name.")],
    port: Annotated[int, typer.Argument(help="Which of its ports; the first one if not given.")] = 0,
    browser: Annotated[bool, typer.Option("--browser", help="Open it in this machine's browser.")] = False,
    as_json: Json = False,
) -> None:
    """Print the address at which a task's port opens in a browser, for some hours and only for you."""
    from clutch.cli.proxied import wait_port
    from clutch.sdk import calls

    with connect(context) as client:
        found = client.task(task)
        number = port or wait_port(found, WAIT_S)
        url = f"{client.address}{client.perform(calls.make_ticket(found.id, number)).path}"
    if as_json:
        import json

        typer.echo(json.dumps({"task": found.id, "port": number, "url": url}))
    else:
        typer.echo(url)
    if browser:
        typer.launch(url)
