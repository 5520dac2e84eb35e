"""``clutch login|logout|whoami``: who this is for the cluster."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from clutch.cli.lists import Json
from clutch.cli.where import connect, place
from clutch.wire.errors import BadRequest, ClutchError, NotFound

app = typer.Typer(rich_markup_mode=None)


@app.command("login")
def login(
    context: typer.Context,
    url: Annotated[str, typer.Argument(help="Address of the cluster, or several with commas.")] = "",
    user: Annotated[str, typer.Option("--user", "-u", help="Log in as this user, with a password.")] = "",
    one_time_token: Annotated[str, typer.Option(help="The token that 'clutch up' printed.")] = "",
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read password or token from input.")
    ] = False,
    ca_file: Annotated[str, typer.Option(help="Certificates to trust, for https.")] = "",
) -> None:
    """Log in to a cluster and keep that for the next commands."""
    from clutch.sdk import access_calls
    from clutch.sdk.client import Client
    from clutch.sdk.where import Where, split_masters, write_profile
    from clutch.wire.access import Login

    said = context.find_root().obj
    masters, ca_file = _masters(context, url), ca_file or said.ca_file
    token = said.token
    if not token:
        secret = one_time_token or _secret(user, password_stdin)
        asked = Login(user=user, password=secret) if user else Login(one_time_token=secret)
        with Client(masters, ca_file=ca_file, patience_s=3.0) as client:
            token = client.perform(access_calls.log_in(asked)).token
    with Client(masters, token, ca_file=ca_file, patience_s=3.0) as client:
        me = client.perform(access_calls.who_am_i())
    ca_file = os.path.abspath(ca_file) if ca_file else ""  # noqa: PTH100 -- a text stays a text
    path = write_profile(os.environ, Where(masters=masters, token=token, ca_file=ca_file, user=me.name))
    typer.echo(f"Logged in to {', '.join(split_masters(','.join(masters)))} as {me.name}; kept in {path}.")


def _masters(context: typer.Context, url: str) -> tuple[str, ...]:
    from clutch.sdk.where import split_masters

    masters = split_masters(url or context.find_root().obj.master)
    if masters:
        return masters
    try:
        return place(context).masters
    except NotFound:
        raise BadRequest("no cluster is named", object="login", next_step="clutch login http://HOST:8620") from None


def _secret(user: str, from_input: bool) -> str:
    if from_input:
        return sys.stdin.readline().rstrip("\n")
    if not sys.stdin.isatty():
        step = "Say --password-stdin, or --one-time-token, or run it in a terminal."
        raise BadRequest("nobody can be asked here for a password", object="login", next_step=step)
    import getpass

    return getpass.getpass(f"Password of {user}: " if user else "One-time token: ")


@app.command("logout")
def logout(context: typer.Context) -> None:
    """End the login and forget it."""
    from clutch.sdk import access_calls
    from clutch.sdk.client import Client
    from clutch.sdk.where import forget_profile, read_profile

    kept = read_profile(os.environ)
    if kept is not None:
        try:
            with Client(kept.masters, kept.token, ca_file=kept.ca_file, patience_s=1.0) as client:
                client.perform(access_calls.log_out())
        except ClutchError as error:
            typer.echo(f"clutch: the cluster could not be told: {error}", err=True)
    typer.echo("Logged out." if forget_profile(os.environ) else "There was no login.")


@app.command("whoami")
def whoami(context: typer.Context, as_json: Json = False) -> None:
    """Say who this is for the cluster, and what they may do."""
    import msgspec

    from clutch.sdk import access_calls

    where = place(context)
    with connect(context) as client:
        me = client.perform(access_calls.who_am_i())
    if as_json:
        typer.echo(msgspec.json.encode(me).decode())
        return
    typer.echo(f"{me.kind} {me.name} at {', '.join(where.masters)} (from {where.source})")
    for scope, role in sorted(me.roles.items()):
        typer.echo(f"  {role} of {scope}")
