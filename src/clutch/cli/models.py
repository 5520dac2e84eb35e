"""``clutch model``: models and their versions, each a checkpoint that is kept for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clutch.cli.lists import Column, Json, facts, moment, screen_width, show_list, table
from clutch.cli.where import connect
from clutch.wire.errors import BadRequest, NotFound

if TYPE_CHECKING:
    from clutch.sdk.client import Client
    from clutch.wire.library import ModelView, VersionView

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)

Model = Annotated[str, typer.Argument(help="Its name, or a unique beginning of it.")]
Version = Annotated[str, typer.Argument(help="MODEL, MODEL:3 or MODEL:best; MODEL alone is the newest version.")]
Workspace = Annotated[str, typer.Option("--workspace", "-w", help="Whose.")]
Notes = Annotated[str | None, typer.Option("--notes", help="What is to be known about it; @FILE reads a file.")]
Labels = Annotated[list[str] | None, typer.Option("--label", "-l", help="A label; repeatable.")]
Metrics = Annotated[list[str] | None, typer.Option("--metric", help="NAME=NUMBER; repeatable.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
VERSIONS_SHOWN = 20

MODELS = (
    Column("model", lambda view: view.name),
    Column("workspace", lambda view: view.workspace, 2),
    Column("versions", lambda view: view.versions, 1, True),
    Column("newest", lambda view: view.latest or "", right=True),
    Column("aliases", lambda view: ", ".join(f"{alias}={number}" for alias, number in view.aliases.items()), 3),
    Column("labels", lambda view: ",".join(view.labels), 4),
    Column("state", lambda view: "archived" if view.archived else "", 5),
    Column("description", lambda view: view.description, 6),
)
VERSIONS = (
    Column("version", lambda view: view.number, right=True),
    Column("aliases", lambda view: ",".join(view.aliases), 1),
    Column("name", lambda view: view.name, 4),
    Column("checkpoint", lambda view: view.checkpoint),
    Column("trial", lambda view: view.trial, 5),
    Column("step", lambda view: view.step, 6, True),
    Column("metrics", lambda view: metrics_text(view.metrics), 2),
    Column("by", lambda view: view.created_by, 7),
    Column("when", lambda view: moment(view.created_at), 3),
)


def metrics_text(metrics: dict[str, float]) -> str:
    return " ".join(f"{name}={value:.6g}" for name, value in metrics.items())


def written(text: str | None) -> str | None:
    """A text that was said, or that of the file it names."""
    if text is None or not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"it cannot be read: {error}", object=text[1:]) from None


def metrics_of(said: list[str] | None) -> dict[str, float]:
    found = {}
    for each in said or ():
        name, _, value = each.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise BadRequest(
                f"{each!r} is not NAME=NUMBER", object="metric", next_step="Write --metric accuracy=0.93."
            ) from None
    return found


def found_model(client: Client, workspace: str, text: str) -> tuple[ModelView, str]:
    """The model that is meant, and the version of it that was said; empty: none was."""
    from clutch.sdk import library_calls

    name, _, version = text.partition(":")
    return client.perform(library_calls.get_model(workspace, name)), version


def found_version(client: Client, workspace: str, text: str) -> VersionView:
    from clutch.sdk import library_calls
    from clutch.wire.library import LATEST

    model, version = found_model(client, workspace, text)
    return client.perform(library_calls.get_version(workspace, model.name, version or LATEST))


@app.command("list")
def list_models(
    context: typer.Context,
    workspace: Annotated[str, typer.Option("--workspace", "-w", help="Only of this one.")] = "",
    label: Annotated[str, typer.Option("--label", "-l", help="Only with this label.")] = "",
    archived: Annotated[bool, typer.Option("--archived", help="Archived ones too.")] = False,
    as_json: Json = False,
) -> None:
    """List models."""
    from clutch.sdk import library_calls

    with connect(context) as client:
        call = library_calls.list_models(workspace=workspace, label=label, archived=archived)
        show_list(lambda: list(client.items(call)), MODELS, as_json=as_json, watch=False, empty="No model.")


@app.command("create")
def create_model(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Its name.")],
    workspace: Workspace = "default",
    description: Annotated[str, typer.Option("--description", help="What it is for.")] = "",
    notes: Notes = None,
    label: Labels = None,
) -> None:
    """Create a model, which has no version yet."""
    from clutch.sdk import library_calls
    from clutch.wire.library import NewModel

    new = NewModel(name=name, description=description, notes=written(notes) or "", labels=tuple(label or ()))
    with connect(context) as client:
        client.perform(library_calls.create_model(workspace, new))
    typer.echo(f"model {workspace}/{name}: created")


@app.command("show")
def show_model(context: typer.Context, model: Version, workspace: Workspace = "default", as_json: Json = False) -> None:
    """Show a model and its newest versions, or one version of it."""
    import msgspec

    from clutch.sdk import library_calls

    with connect(context) as client:
        found, version = found_model(client, workspace, model)
        if version:
            one = client.perform(library_calls.get_version(workspace, found.name, version))
            typer.echo(msgspec.json.encode(one).decode() if as_json else version_text(one))
            return
        call = library_calls.list_versions(workspace, found.name, limit=VERSIONS_SHOWN)
        versions = client.perform(call).items
    if as_json:
        typer.echo(msgspec.json.encode({"model": found, "versions": versions}).decode())
        return
    typer.echo(model_text(found))
    if versions:
        typer.echo("\n" + "\n".join(table(versions, VERSIONS, screen_width())))


def model_text(view: ModelView) -> str:
    import msgspec

    pairs: list[tuple[str, Any]] = [
        ("model", f"{view.workspace}/{view.name}"),
        ("state", "archived" if view.archived else ""),
        ("description", view.description),
        ("labels", ", ".join(view.labels)),
        ("aliases", ", ".join(f"{alias} = {number}" for alias, number in view.aliases.items())),
        ("versions", view.versions),
        ("metadata", msgspec.json.encode(view.metadata).decode() if view.metadata else ""),
        ("created", f"{moment(view.created_at)} by {view.created_by}"),
    ]
    return facts(pairs) + (f"\n\n{view.notes.rstrip()}" if view.notes else "")


def version_text(view: VersionView) -> str:
    pairs: list[tuple[str, Any]] = [
        ("version", f"{view.workspace}/{view.model}:{view.number}"),
        ("aliases", ", ".join(view.aliases)),
        ("name", view.name),
        ("checkpoint", view.checkpoint),
        ("trial", view.trial),
        ("step", view.step),
        ("metrics", metrics_text(view.metrics)),
        ("labels", ", ".join(view.labels)),
        ("created", f"{moment(view.created_at)} by {view.created_by}"),
    ]
    return facts(pairs) + (f"\n\n{view.notes.rstrip()}" if view.notes else "")


@app.command("register")
def register(
    context: typer.Context,
    model: Model,
    checkpoint: Annotated[str, typer.Argument(help="The checkpoint's id, or a unique beginning of it.")],
    workspace: Workspace = "default",
    alias: Annotated[list[str] | None, typer.Option("--alias", help="Let this alias mean it; repeatable.")] = None,
    name: Annotated[str, typer.Option("--name", help="What this version is called.")] = "",
    notes: Notes = None,
    label: Labels = None,
    metric: Metrics = None,
) -> None:
    """Register a checkpoint as the next version of a model, which keeps it from then on."""
    from clutch.sdk import library_calls
    from clutch.wire.library import RegisterVersion

    metrics = metrics_of(metric)
    with connect(context) as client:
        try:
            found, _ = found_model(client, workspace, model)
        except NotFound as error:
            step = f"'clutch model create {model}' makes it."
            raise NotFound(error.cause, object=error.object, next_step=step) from None
        asked = RegisterVersion(
            checkpoint=client.checkpoint(checkpoint).id,
            name=name,
            notes=written(notes) or "",
            labels=tuple(label or ()),
            metrics=metrics,
            aliases=tuple(alias or ()),
        )
        made = client.perform(library_calls.register_version(workspace, found.name, asked))
    typer.echo(f"model {workspace}/{made.model}:{made.number}: checkpoint {made.checkpoint}")


@app.command("alias")
def alias(
    context: typer.Context,
    version: Version,
    alias: Annotated[str, typer.Argument(help="The word that shall mean it: best, prod.")] = "",
    workspace: Workspace = "default",
    instead_of: Annotated[
        int | None, typer.Option("--instead-of", min=0, help="Only if it means this version now; 0: none.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the alias of MODEL:ALIAS away.")] = False,
) -> None:
    """Let an alias mean a version, instead of the one it means; or take it away."""
    from clutch.sdk import library_calls
    from clutch.wire.library import SetAlias

    with connect(context) as client:
        if remove:
            found, word = found_model(client, workspace, version)
            if not word or alias:
                raise BadRequest("it is not said which", object="alias", next_step="Write MODEL:ALIAS --remove.")
            client.perform(library_calls.delete_alias(workspace, found.name, word))
            typer.echo(f"model {workspace}/{found.name}: {word} means nothing any more")
            return
        if not alias:
            raise BadRequest("it is not said which", object="alias", next_step="Write MODEL:VERSION ALIAS.")
        meant = found_version(client, workspace, version)
        asked = SetAlias(version=meant.number, instead_of=instead_of)
        moved = client.perform(library_calls.set_alias(workspace, meant.model, alias, asked))
    before = f", no longer {moved.before}" if moved.before and moved.before != moved.version else ""
    typer.echo(f"model {workspace}/{meant.model}: {alias} means version {moved.version}{before}")


@app.command("edit")
def edit(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="MODEL, or MODEL:VERSION for one of its versions.")],
    workspace: Workspace = "default",
    description: Annotated[str | None, typer.Option("--description", help="What the model is for.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="What the version is called.")] = None,
    notes: Notes = None,
    label: Labels = None,
    no_labels: Annotated[bool, typer.Option("--no-labels", help="Take all labels away.")] = False,
    metadata: Annotated[str | None, typer.Option("--metadata", help="A JSON object; @FILE reads a file.")] = None,
    metric: Metrics = None,
    archived: Annotated[bool | None, typer.Option("--archive/--unarchive", help="It takes no new version.")] = None,
) -> None:
    """Change what is written about a model or a version, or archive a model."""
    from clutch.sdk import library_calls
    from clutch.wire.library import ModelChange, VersionChange

    labels = tuple(label or ()) if label or no_labels else None
    with connect(context) as client:
        found, version = found_model(client, workspace, model)
        if version:
            _refuse(model, {"--description": description, "--metadata": metadata, "--archive": archived})
            metrics = metrics_of(metric) if metric else None
            change = VersionChange(name=name, notes=written(notes), labels=labels, metrics=metrics)
            client.perform(library_calls.change_version(workspace, found.name, version, change))
        else:
            _refuse(model, {"--name": name, "--metric": metric or None})
            given = metadata_of(metadata)
            asked = ModelChange(
                description=description, notes=written(notes), labels=labels, metadata=given, archived=archived
            )
            client.perform(library_calls.change_model(workspace, found.name, asked))
    typer.echo(f"model {workspace}/{found.name}{f':{version}' if version else ''}: changed")


def _refuse(model: str, given: dict[str, Any]) -> None:
    """Options that mean nothing here are said, not ignored."""
    wrong = [option for option, value in given.items() if value is not None]
    if wrong:
        what, other = ("a version", "the model's name alone") if ":" in model else ("a model", "MODEL:VERSION")
        raise BadRequest(f"{what} has no {', '.join(wrong)}", object=model, next_step=f"Give {other}.")


def metadata_of(text: str | None) -> dict[str, Any] | None:
    import msgspec

    if text is None:
        return None
    try:
        return msgspec.json.decode((written(text) or "").encode(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise BadRequest(
            f"it is no JSON object: {error}", object="metadata", next_step="""Write --metadata '{"team": "vision"}'."""
        ) from None


@app.command("delete")
def delete(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="MODEL with all its versions, or MODEL:VERSION.")],
    workspace: Workspace = "default",
    yes: Yes = False,
) -> None:
    """Delete a model or a version. Checkpoints that nothing else keeps may then be removed."""
    from clutch.sdk import library_calls

    with connect(context) as client:
        found, version = found_model(client, workspace, model)
        if version:
            meant = client.perform(library_calls.get_version(workspace, found.name, version))
            what = f"{workspace}/{found.name}:{meant.number}"
            if not yes:
                typer.confirm(f"Delete version {what}?", abort=True)
            client.perform(library_calls.delete_version(workspace, found.name, meant.number))
        else:
            what = f"{workspace}/{found.name}"
            if not yes:
                typer.confirm(f"Delete model {what} with its {found.versions} versions?", abort=True)
            client.perform(library_calls.delete_model(workspace, found.name))
    typer.echo(f"model {what}: deleted")


@app.command("download")
def download(
    context: typer.Context,
    version: Version,
    folder: Annotated[Path, typer.Argument(help="Where its files go; made if it is not there.")],
    workspace: Workspace = "default",
    through_master: Annotated[bool, typer.Option("--through-master", help="Not straight from the store.")] = False,
) -> None:
    """Copy the files of a version here, each checked against its manifest."""
    with connect(context) as client:
        meant = found_version(client, workspace, version)
        client.checkpoint(meant.checkpoint).download(folder, through_master=through_master)
    typer.echo(f"model {workspace}/{meant.model}:{meant.number}: in {folder}")
