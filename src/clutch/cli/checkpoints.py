"""``clutch checkpoint``: what trials saved."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from clutch.cli.lists import Column, Json, facts, moment, screen_width, show_list, table
from clutch.cli.where import connect

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
KEPT = "committed,partial,deleting,lost"
One = Annotated[str, typer.Argument(help="Its id, or a unique beginning of it.")]


@app.command("list")
def list_checkpoints(
    context: typer.Context,
    experiment: Annotated[str, typer.Argument(help="An experiment, or a trial as EXPERIMENT.NUMBER.")],
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also those that were deleted.")] = False,
    state: Annotated[str, typer.Option(help="Only in these states, joined by commas.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 1000,
    as_json: Json = False,
) -> None:
    """List the checkpoints of an experiment or a trial that have files."""
    from clutch.cli.experiment_render import CHECKPOINTS
    from clutch.wire.experiments import trial_of

    with connect(context) as client:
        whose = client.trial(experiment) if trial_of(experiment) is not None else client.experiment(experiment)
        rows = whose.checkpoints(state=state or ("" if everything else KEPT))
        empty = "No checkpoint." if everything or state else "No checkpoint; with --all also those that were deleted."
        show_list(lambda: list(islice(rows, limit)), CHECKPOINTS, as_json=as_json, watch=False, empty=empty)


@app.command("show")
def show_checkpoint(context: typer.Context, checkpoint: One, as_json: Json = False) -> None:
    """Show a checkpoint and its files."""
    import msgspec

    from clutch.cli.experiment_render import words

    with connect(context) as client:
        detail = client.checkpoint(checkpoint).detail()
    if as_json:
        typer.echo(msgspec.json.encode(detail).decode())
        return
    row = detail.row
    head = [
        ("checkpoint", row.key),
        ("trial", row.trial),
        ("step", row.step),
        ("state", row.state),
        ("metric", row.value if row.has_value else ""),
        ("size", f"{row.size_bytes:,} bytes in {sum(not file.is_folder for file in detail.files)} files"),
        ("storage", row.storage or f"blobs of workspace {row.workspace}"),
        ("prefix", detail.prefix),
        ("held by", words(row.pins)),
        ("committed", moment(row.committed_at)),
        ("metadata", ", ".join(f"{name}={value}" for name, value in detail.metadata.items())),
    ]
    typer.echo(facts(head))
    if detail.files:
        columns = (
            Column("path", lambda file: file.path),
            Column("bytes", lambda file: f"{file.size_bytes:,}", 0, True),
            Column("sha256", lambda file: file.sha256, 1),
        )
        typer.echo("\n" + "\n".join(table(detail.files, columns, screen_width())))


@app.command("download")
def download(
    context: typer.Context,
    checkpoint: One,
    folder: Annotated[Path, typer.Argument(help="Where its files go; made if it is not there.")],
    only: Annotated[list[str] | None, typer.Option("--only", help="Files like this (*.pt); repeatable.")] = None,
    through_master: Annotated[bool, typer.Option("--through-master", help="Not straight from the store.")] = False,
) -> None:
    """Copy a checkpoint's files here, each checked against its manifest."""
    from fnmatch import fnmatch

    patterns = tuple(only or ())
    with connect(context) as client:
        found = client.checkpoint(checkpoint)
        selector = (lambda path: any(fnmatch(path, pattern) for pattern in patterns)) if patterns else None
        found.download(folder, selector=selector, through_master=through_master)
        typer.echo(f"{found.id}: in {folder}")


@app.command("delete")
def delete(
    context: typer.Context,
    checkpoints: Annotated[list[str], typer.Argument(help="Ids, or unique beginnings of them.")],
    only: Annotated[list[str] | None, typer.Option("--only", help="Only files like this; repeatable.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete the files of checkpoints, or some of them. What a model holds is refused."""
    what = f"files like {', '.join(only)} of" if only else "all files of"
    if not yes:
        typer.confirm(f"Delete {what} {', '.join(checkpoints)}?", abort=True)
    with connect(context) as client:
        for checkpoint in checkpoints:
            client.checkpoint(checkpoint).delete(*(only or ()))
            typer.echo(f"{checkpoint}: its files are being deleted")


@app.command("metadata")
def metadata(
    context: typer.Context,
    checkpoint: One,
    values: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE, from now on; a VALUE that is JSON is meant so.")
    ] = None,
    names: Annotated[list[str] | None, typer.Option("--remove", help="A NAME that is said no more.")] = None,
    as_json: Json = False,
) -> None:
    """Show what is said of a checkpoint, or change it. Both options are repeatable."""
    import msgspec

    from clutch.sdk import experiment_calls as calls
    from clutch.wire.errors import BadRequest
    from clutch.wire.experiment_api import ChangeMetadata
    from clutch.wire.metadata import meant

    said = {}
    for pair in values or ():
        name, equals, word = pair.partition("=")
        if not name or not equals:
            raise BadRequest(f"{pair!r} is not NAME=VALUE", object="--set", next_step="Say e.g. --set epoch=3.")
        said[name] = meant(word)
    with connect(context) as client:
        if said or names:
            change = ChangeMetadata(set=said, remove=tuple(names or ()))
            detail = client.perform(calls.change_checkpoint_metadata(checkpoint, change))
        else:
            detail = client.checkpoint(checkpoint).detail()
    if as_json:
        typer.echo(msgspec.json.encode({name: meant(word) for name, word in detail.metadata.items()}).decode())
    elif detail.metadata:
        typer.echo(facts(list(detail.metadata.items())))


@app.command("share")
def share_folder(
    folder: Annotated[Path, typer.Argument(help="A folder on this machine; made if it is not there.")],
) -> None:
    """Let every user keep checkpoints in a folder, each their own. As root or the folder's owner."""
    from clutch.backends.blobs.files import typed
    from clutch.backends.blobs.shared_folder import share

    with typed(f"folder {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    share(folder)
    typer.echo(f"{folder}: every user may keep checkpoints there and change only their own")
