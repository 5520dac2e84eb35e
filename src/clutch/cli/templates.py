"""``clutch template``: stored configurations, and what everything of a workspace or the cluster is laid over."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clutch.cli.lists import Column, Json, facts, moment, show_list
from clutch.cli.where import connect
from clutch.wire.errors import BadRequest

if TYPE_CHECKING:
    from clutch.wire.library import ConfigDetail

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)

Template = Annotated[str, typer.Argument(help="Its name, or a unique beginning of it.")]
Workspace = Annotated[str, typer.Option("--workspace", "-w", help="Whose.")]
Description = Annotated[str, typer.Option("--description", help="What it is for.")]

TEMPLATES = (
    Column("template", lambda view: view.name),
    Column("workspace", lambda view: view.workspace, 1),
    Column("description", lambda view: view.description, 2),
    Column("changed", lambda view: moment(view.changed_at), 3),
    Column("by", lambda view: view.changed_by, 4),
)


def detail_text(detail: ConfigDetail) -> str:
    """Its text as its author wrote it; what was written by a program, as YAML."""
    whose = f"workspace {detail.workspace}" if detail.workspace else "the cluster"
    what = f"template {detail.workspace}/{detail.name}" if detail.name else f"what {whose} lays beneath"
    head = facts(
        [
            ("#", what),
            ("#", detail.description),
            ("#", f"changed {moment(detail.changed_at)} by {detail.changed_by}"),
        ]
    )
    if detail.source:
        return f"{head}\n{detail.source.rstrip()}"
    import yaml

    return f"{head}\n{yaml.safe_dump(detail.config, sort_keys=False, allow_unicode=True).rstrip()}"


def say_notices(detail: ConfigDetail) -> None:
    for notice in detail.notices:
        hint = f" {notice.hint}" if notice.hint else ""
        typer.echo(f"{notice.path}: {notice.problem}.{hint}", err=True)


@app.command("list")
def list_templates(
    context: typer.Context,
    workspace: Annotated[str, typer.Option("--workspace", "-w", help="Only of this one.")] = "",
    as_json: Json = False,
) -> None:
    """List templates."""
    from clutch.sdk import library_calls

    with connect(context) as client:
        call = library_calls.list_templates(workspace=workspace)
        show_list(lambda: list(client.items(call)), TEMPLATES, as_json=as_json, watch=False, empty="No template.")


@app.command("show")
def show_template(
    context: typer.Context, template: Template, workspace: Workspace = "default", as_json: Json = False
) -> None:
    """Show a template as it was written."""
    import msgspec

    from clutch.sdk import library_calls

    with connect(context) as client:
        found = client.perform(library_calls.get_template(workspace, template))
    typer.echo(msgspec.json.encode(found).decode() if as_json else detail_text(found))


@app.command("set")
def set_template(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Its whole name.")],
    file: Annotated[Path, typer.Argument(help="A configuration or a part of one: YAML, JSON or Python; - is input.")],
    workspace: Workspace = "default",
    description: Description = "",
) -> None:
    """Keep a configuration under a name, instead of the one it has. 'experiment create --template' uses it."""
    from clutch.cli.configs import read_config
    from clutch.sdk import library_calls
    from clutch.wire.library import PutConfig

    config, source = read_config(file)
    asked = PutConfig(config=config, source="" if file.suffix == ".py" else source, description=description)
    with connect(context) as client:
        say_notices(client.perform(library_calls.put_template(workspace, name, asked)))
    typer.echo(f"template {workspace}/{name}: kept")


@app.command("delete")
def delete_template(
    context: typer.Context,
    template: Template,
    workspace: Workspace = "default",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a template. Experiments made with it keep what it said."""
    from clutch.sdk import library_calls

    with connect(context) as client:
        found = client.perform(library_calls.get_template(workspace, template))
        if not yes:
            typer.confirm(f"Delete template {workspace}/{found.name}?", abort=True)
        client.perform(library_calls.delete_template(workspace, found.name))
    typer.echo(f"template {workspace}/{found.name}: deleted")


@app.command("defaults")
def defaults(
    context: typer.Context,
    workspace: Workspace = "default",
    cluster: Annotated[bool, typer.Option("--cluster", help="Of the whole cluster, not of a workspace.")] = False,
    file: Annotated[Path | None, typer.Option("--set", help="Lay everything over this file from now on.")] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Lay everything over nothing.")] = False,
    description: Description = "",
    as_json: Json = False,
) -> None:
    """Show what every configuration of a workspace or the cluster is laid over, or change it."""
    import msgspec

    from clutch.sdk import library_calls
    from clutch.wire.library import PutConfig

    if file is not None and delete:
        raise BadRequest("both --set and --delete are given", object="defaults", next_step="Give one of them.")
    place = "" if cluster else workspace
    whose = f"workspace {place}" if place else "the cluster"
    with connect(context) as client:
        if delete:
            client.perform(library_calls.delete_defaults(place))
            typer.echo(f"{whose}: lays nothing beneath")
            return
        if file is None:
            found = client.perform(library_calls.get_defaults(place))
            typer.echo(msgspec.json.encode(found).decode() if as_json else detail_text(found))
            return
        from clutch.cli.configs import read_config

        config, source = read_config(file)
        asked = PutConfig(config=config, source="" if file.suffix == ".py" else source, description=description)
        say_notices(client.perform(library_calls.put_defaults(place, asked)))
    typer.echo(f"{whose}: lays {file} beneath everything new")
