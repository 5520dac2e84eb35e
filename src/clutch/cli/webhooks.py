"""``clutch webhook``: who is told when an experiment comes to another state, or prints what a rule looks for."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from clutch.cli.admin import read_secret
from clutch.cli.lists import Column, Json, facts, moment, screen_width, show_list, table
from clutch.cli.where import connect
from clutch.wire.errors import BadRequest, Unavailable

if TYPE_CHECKING:
    from clutch.wire.library import WebhookView

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Its name, or a unique beginning of it.")]
Workspace = Annotated[str, typer.Option("--workspace", "-w", help="Whose.")]
Cluster = Annotated[bool, typer.Option("--cluster", help="Of the whole cluster, not of a workspace.")]
DELIVERIES_SHOWN = 10

WEBHOOKS = (
    Column("webhook", lambda view: view.name),
    Column("over", lambda view: view.scope.removeprefix("workspace:")),
    Column("state", lambda view: "enabled" if view.enabled else "disabled", 1),
    Column("tells of", lambda view: ",".join(view.triggers), 3),
    Column("experiments", lambda view: experiments_text(view.experiments, view.on_request), 4),
    Column("format", lambda view: view.format, 5),
    Column("waiting", lambda view: waiting_text(view), 2),
    Column("url", lambda view: view.url, 2),
)
DELIVERIES = (
    Column("when", lambda each: moment(each.at)),
    Column("experiment", lambda each: each.experiment),
    Column("told", lambda each: each.state, 1),
    Column("status", lambda each: each.status or "", right=True),
    Column("took", lambda each: f"{each.took_s:.2f}s", 4, True),
    Column("error", lambda each: each.error + (" (tried again)" if each.again else ""), 2),
    Column("id", lambda each: each.id, 3),
)


def experiments_text(patterns: tuple[str, ...], on_request: bool) -> str:
    return "on request" if on_request else ",".join(patterns) or "all"


def waiting_text(view: WebhookView) -> str:
    """What was not taken yet; empty: nothing."""
    if not view.waiting:
        return ""
    tried = f", tried {view.tries} times" if view.tries else ""
    return f"{view.waiting}{tried}, next {moment(view.next_at)}"


def scope_of(workspace: str, cluster: bool) -> str:
    return "cluster" if cluster else f"workspace:{workspace}"


@app.command("list")
def list_webhooks(
    context: typer.Context,
    workspace: Annotated[str, typer.Option("--workspace", "-w", help="Only of this one.")] = "",
    cluster: Annotated[bool, typer.Option("--cluster", help="Only of the whole cluster.")] = False,
    as_json: Json = False,
) -> None:
    """List webhooks."""
    from clutch.sdk import library_calls

    over = scope_of(workspace, cluster) if workspace or cluster else ""
    with connect(context) as client:
        call = library_calls.list_webhooks(over=over)
        show_list(lambda: list(client.items(call)), WEBHOOKS, as_json=as_json, watch=False, empty="No webhook.")


@app.command("create")
def create_webhook(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Its name.")],
    url: Annotated[str, typer.Argument(help="Where messages go: https://HOST/PATH.")],
    workspace: Workspace = "default",
    cluster: Cluster = False,
    trigger: Annotated[
        list[str] | None,
        typer.Option("--trigger", "-t", help="A state, matched, or matched:RULE; repeatable. Else its endings."),
    ] = None,
    experiment: Annotated[
        list[str] | None, typer.Option("--experiment", help="Only experiments of such a name (a-*); repeatable.")
    ] = None,
    on_request: Annotated[bool, typer.Option("--on-request", help="Only experiments that name this webhook.")] = False,
    format: Annotated[str, typer.Option("--format", help="plain or slack.")] = "plain",
    own_secret: Annotated[
        bool, typer.Option("--own-secret", help="Ask for the secret, or read it from input.")
    ] = False,
    disabled: Annotated[bool, typer.Option("--disabled", help="It waits to be enabled.")] = False,
    as_json: Json = False,
) -> None:
    """Create a webhook and print the secret that its messages are signed with, this once."""
    import msgspec

    from clutch.sdk import library_calls
    from clutch.wire.library import NewWebhook

    fields = {
        "name": name, "scope": scope_of(workspace, cluster), "url": url, "format": format, "on_request": on_request,
        "experiments": experiment or [], "enabled": not disabled, **({"triggers": trigger} if trigger else {}),
    }  # fmt: skip
    try:
        asked = msgspec.convert(fields, NewWebhook)
    except msgspec.ValidationError as error:
        raise BadRequest(
            str(error), object=f"webhook {name}", next_step="See 'clutch webhook create --help'."
        ) from None
    if own_secret:
        asked = msgspec.structs.replace(asked, secret=read_secret(f"Secret of {name}: "))
    with connect(context) as client:
        made = client.perform(library_calls.create_webhook(asked))
    if as_json:
        typer.echo(msgspec.json.encode(made).decode())
        return
    typer.echo(f"webhook {made.view.scope}/{name}: created")
    if not own_secret:
        typer.echo(f"secret  {made.secret}")


@app.command("show")
def show_webhook(
    context: typer.Context,
    name: Name,
    workspace: Workspace = "default",
    cluster: Cluster = False,
    as_json: Json = False,
) -> None:
    """Show a webhook, what waits for it and what was lately sent to it."""
    import msgspec

    from clutch.sdk import library_calls

    with connect(context) as client:
        view = client.perform(library_calls.get_webhook(scope_of(workspace, cluster), name))
        sent = client.perform(library_calls.list_deliveries(view.scope, view.name, limit=DELIVERIES_SHOWN)).items
    if as_json:
        typer.echo(msgspec.json.encode({"webhook": view, "deliveries": sent}).decode())
        return
    head = [
        ("webhook", f"{view.scope}/{view.name}"),
        ("state", "enabled" if view.enabled else "disabled"),
        ("url", view.url),
        ("format", view.format),
        ("tells of", ", ".join(view.triggers)),
        ("experiments", experiments_text(view.experiments, view.on_request)),
        ("waiting", waiting_text(view) or "nothing"),
        ("created", f"{moment(view.created_at)} by {view.created_by}"),
    ]
    typer.echo(facts(head))
    if sent:
        typer.echo("\n" + "\n".join(table(sent, DELIVERIES, screen_width())))


@app.command("deliveries")
def list_deliveries(
    context: typer.Context,
    name: Name,
    workspace: Workspace = "default",
    cluster: Cluster = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many, the newest first.")] = 100,
    as_json: Json = False,
) -> None:
    """List what was sent to a webhook and how each try went: taken, tried again, refused or given up."""
    from clutch.sdk import library_calls

    with connect(context) as client:
        view = client.perform(library_calls.get_webhook(scope_of(workspace, cluster), name))
        call = library_calls.list_deliveries(view.scope, view.name, limit=min(limit, 1000))
        show_list(
            lambda: list(islice(client.items(call), limit)),
            DELIVERIES,
            as_json=as_json,
            watch=False,
            empty=f"Nothing was sent to it yet. 'clutch webhook test {view.name}' sends a sample.",
        )


@app.command("delete")
def delete_webhook(
    context: typer.Context,
    name: Name,
    workspace: Workspace = "default",
    cluster: Cluster = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a webhook. Messages that wait for it are dropped."""
    from clutch.sdk import library_calls

    with connect(context) as client:
        view = client.perform(library_calls.get_webhook(scope_of(workspace, cluster), name))
        if not yes:
            typer.confirm(f"Delete webhook {view.scope}/{view.name}?", abort=True)
        client.perform(library_calls.delete_webhook(view.scope, view.name))
    typer.echo(f"webhook {view.scope}/{view.name}: deleted")


@app.command("test")
def send_sample(context: typer.Context, name: Name, workspace: Workspace = "default", cluster: Cluster = False) -> None:
    """Send a sample now and say how that went."""
    from clutch.sdk import library_calls

    with connect(context) as client:
        view = client.perform(library_calls.get_webhook(scope_of(workspace, cluster), name))
        sent = client.perform(library_calls.test_webhook(view.scope, view.name))
    if sent.error:
        raise Unavailable(
            sent.error, object=f"webhook {view.scope}/{view.name}", next_step="Look at its receiver and its address."
        )
    typer.echo(f"webhook {view.scope}/{view.name}: answered {sent.status} after {sent.took_s:.2f} s")


@app.command("enable")
def enable(context: typer.Context, name: Name, workspace: Workspace = "default", cluster: Cluster = False) -> None:
    """Enable a webhook."""
    _switch(context, scope_of(workspace, cluster), name, enabled=True)


@app.command("disable")
def disable(context: typer.Context, name: Name, workspace: Workspace = "default", cluster: Cluster = False) -> None:
    """Disable a webhook: it is told nothing until it is enabled again."""
    _switch(context, scope_of(workspace, cluster), name, enabled=False)


def _switch(context: typer.Context, scope: str, name: str, *, enabled: bool) -> None:
    from clutch.sdk import library_calls
    from clutch.wire.library import WebhookChange

    with connect(context) as client:
        view = client.perform(library_calls.get_webhook(scope, name))
        client.perform(library_calls.change_webhook(scope, view.name, WebhookChange(enabled=enabled)))
    typer.echo(f"webhook {scope}/{view.name}: {'enabled' if enabled else 'disabled'}")
