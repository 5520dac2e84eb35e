"""``clutch token|secret``: what lets programs, agents and tasks in."""

from __future__ import annotations

from typing import Annotated

import typer

from clutch.cli.admin import Workspace, read_secret
from clutch.cli.lists import Column, Json, Watch, moment, show_list
from clutch.cli.where import connect
from clutch.wire.errors import BadRequest

token = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
secret = typer.Typer(rich_markup_mode=None, no_args_is_help=True)

TOKENS = (
    Column("id", lambda found: found.id),
    Column("kind", lambda found: found.kind),
    Column("user", lambda found: found.user, 1),
    Column("may", lambda found: " in ".join(filter(None, (found.role or "", found.workspace))) or "all of its user", 4),
    Column("expires", lambda found: moment(found.expires_at) or "never", 2),
    Column("last used", lambda found: moment(found.last_used_at), 5),
    Column("description", lambda found: found.description, 3),
)
SECRETS = (
    Column("name", lambda found: found.name),
    Column("workspace", lambda found: found.workspace),
    Column("by", lambda found: found.created_by, 1),
    Column("changed", lambda found: moment(found.changed_at), 2),
)


@token.command("list")
def list_tokens(
    context: typer.Context,
    user: Annotated[str, typer.Option("--user", help="Whose; yours.")] = "",
    kind: Annotated[str, typer.Option("--kind", help="personal, session, one_time, enrol or agent.")] = "",
    as_json: Json = False,
    watch: Watch = False,
) -> None:
    """List tokens; the tokens themselves are never shown again."""
    from clutch.sdk import access_calls

    with connect(context) as client:
        show_list(
            lambda: [
                found for found in client.items(access_calls.list_tokens(user=user, kind=kind)) if not found.revoked
            ],
            TOKENS,
            as_json=as_json,
            watch=watch,
        )


@token.command("create")
def create_token(
    context: typer.Context,
    description: Annotated[str, typer.Argument(help="What it is for.")] = "",
    kind: Annotated[str, typer.Option("--kind", help="personal, one_time, or enrol (for agents).")] = "personal",
    days: Annotated[float, typer.Option("--days", min=0.001, help="So long it is good.")] = 30.0,
    role: Annotated[str, typer.Option("--role", help="At most this role: viewer, editor or admin.")] = "",
    workspace: Annotated[str, typer.Option("--workspace", "-w", help="Only in this workspace.")] = "",
    pool: Annotated[str, typer.Option("--pool", help="For enrolment: the pool its agents join.")] = "",
    user: Annotated[str, typer.Option("--user", help="Whose; yours.")] = "",
    as_json: Json = False,
) -> None:
    """Create a token and print it, this once."""
    import msgspec

    from clutch.sdk import access_calls
    from clutch.wire.access import NewToken

    fields = {"description": description, "kind": kind, "expires_in_s": days * 86400, "role": role or None}
    try:
        asked = msgspec.convert({**fields, "workspace": workspace, "pool": pool, "user": user}, NewToken)
    except msgspec.ValidationError as error:
        raise BadRequest(str(error), object="token", next_step="See 'clutch token create --help'.") from None
    with connect(context) as client:
        made = client.perform(access_calls.make_token(asked))
    typer.echo(msgspec.json.encode(made).decode() if as_json else made.token)


@token.command("revoke")
def revoke_token(context: typer.Context, id: Annotated[str, typer.Argument(help="Its id, from the list.")]) -> None:
    """Revoke a token: it lets nobody in any more."""
    from clutch.sdk import access_calls

    with connect(context) as client:
        client.perform(access_calls.revoke_token(id))
    typer.echo(f"token {id}: revoked")


@secret.command("list")
def list_secrets(
    context: typer.Context, workspace: Workspace = "default", as_json: Json = False, watch: Watch = False
) -> None:
    """List the secrets of a workspace; never their values."""
    from clutch.sdk import access_calls

    with connect(context) as client:
        show_list(
            lambda: list(client.items(access_calls.list_secrets(workspace))), SECRETS, as_json=as_json, watch=watch
        )


@secret.command("put")
def put_secret(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Its name, as 'clutch run --secret' takes it.")],
    workspace: Workspace = "default",
) -> None:
    """Keep a secret for tasks; its value is asked for, or read from input."""
    from clutch.sdk import access_calls
    from clutch.wire.access import NewSecret

    with connect(context) as client:
        client.perform(access_calls.put_secret(workspace, NewSecret(name, read_secret(f"Value of {name}: "))))
    typer.echo(f"secret {workspace}/{name}: kept")


@secret.command("delete")
def delete_secret(
    context: typer.Context, name: Annotated[str, typer.Argument(help="Its name.")], workspace: Workspace = "default"
) -> None:
    """Delete a secret; tasks that name it no longer start."""
    from clutch.sdk import access_calls

    with connect(context) as client:
        client.perform(access_calls.delete_secret(workspace, name))
    typer.echo(f"secret {workspace}/{name}: deleted")
