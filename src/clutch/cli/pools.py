"""``clutch pool``: sets of machines with one scheduling policy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from clutch.cli.lists import Column, Json, Watch, facts, show_list
from clutch.cli.where import connect
from clutch.wire.errors import BadRequest

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)

POOLS = (
    Column("pool", lambda found: found.pool.name),
    Column("policy", lambda found: type(found.pool.policy).__name__.removesuffix("Policy").lower(), 3),
    Column("nodes", lambda found: found.nodes, right=True),
    Column("slots", lambda found: f"{found.slots_held}/{found.slots}", right=True),
    Column("running", lambda found: found.running, 1, True),
    Column("waiting", lambda found: found.waiting, 1, True),
    Column("headroom", lambda found: found.pool.interactive_headroom or "", 4, True),
)


@app.command("list")
def list_pools(context: typer.Context, as_json: Json = False, watch: Watch = False) -> None:
    """List pools and how full they are."""
    from clutch.sdk import calls

    with connect(context) as client:
        show_list(lambda: list(client.items(calls.list_pools())), POOLS, as_json=as_json, watch=watch, empty="No pool.")


@app.command("show")
def show_pool(
    context: typer.Context, pool: Annotated[str, typer.Argument(help="Its name.")], as_json: Json = False
) -> None:
    """Show a pool and its settings."""
    import msgspec

    from clutch.sdk import calls

    with connect(context) as client:
        found = client.perform(calls.get_pool(pool))
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
        return
    settings = msgspec.to_builtins(found.pool)
    counts = [("nodes", found.nodes), ("slots", f"{found.slots_held} of {found.slots} held")]
    counts += [("running", found.running), ("waiting", found.waiting)]
    typer.echo(facts([*counts, *((name, "none" if value is None else value) for name, value in settings.items())]))


@app.command("put")
def put_pool(
    context: typer.Context,
    pool: Annotated[str, typer.Argument(help="Its name.")],
    setting: Annotated[list[str] | None, typer.Argument(help="NAME=VALUE: min_run_s=30, policy=fair_share.")] = None,
    file: Annotated[Path | None, typer.Option("--file", help="The whole pool as JSON; '-' for input.")] = None,
) -> None:
    """Make a pool, or change some of its settings."""
    import msgspec

    from clutch.sdk import calls
    from clutch.wire.errors import NotFound
    from clutch.wire.specs import PoolSpec

    with connect(context) as client:
        if file is not None:
            fields = _read(file)
        else:
            try:
                fields = msgspec.to_builtins(client.perform(calls.get_pool(pool)).pool)
            except NotFound:
                fields = {}
        fields |= dict(parse_setting(text) for text in setting or ())
        try:
            spec = msgspec.convert(fields | {"name": pool}, PoolSpec)
        except msgspec.ValidationError as error:
            step = "See 'clutch pool show' for the settings."
            raise BadRequest(str(error), object=f"pool {pool}", next_step=step) from None
        client.perform(calls.put_pool(spec))
    typer.echo(f"{pool}: put")


def _read(file: Path) -> dict[str, object]:
    import msgspec

    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return msgspec.json.decode(data, type=dict[str, object])
    except OSError as error:
        raise BadRequest(f"it cannot be read: {error.strerror}", object=str(file)) from None
    except msgspec.DecodeError as error:
        raise BadRequest(f"it is not JSON: {error}", object=str(file)) from None


def parse_setting(text: str) -> tuple[str, object]:
    """``NAME=VALUE``; the value is JSON where it can be, else a word. A policy may be named by its word."""
    import msgspec

    name, given, said = text.partition("=")
    if not given or not name:
        raise BadRequest(f"{text!r} sets nothing", object="setting", next_step="Write NAME=VALUE.")
    try:
        value = msgspec.json.decode(said)
    except msgspec.DecodeError:
        value = said
    return name, {"type": value} if name == "policy" and isinstance(value, str) else value
