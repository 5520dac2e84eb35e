"""``clutch backup`` and ``clutch restore``: a journal to a file, and a file to an empty journal."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

if TYPE_CHECKING:
    from clutch.backends.journal.backup import Summary

Journal = Annotated[str, typer.Option("--journal", "-j", help="memory:, sqlite:///FILE, a path, or postgresql://...")]
File = Annotated[Path, typer.Argument(help="The backup's file.")]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]


def add_commands(app: typer.Typer) -> None:
    app.command("backup")(backup)
    app.command("restore")(restore)


def backup(journal: Journal, file: File, as_json: Json = False) -> None:
    """Copy a journal into a new file. The master may go on running."""
    from clutch.backends.journal import backup as files
    from clutch.backends.journal.opening import open_journal

    async def copy() -> Summary:
        opened = await open_journal(journal, must_exist=True)
        try:
            return await files.backup(opened, file)
        finally:
            await opened.close()

    _say(asyncio.run(copy()), f"Backed up to {file}", as_json)


def restore(journal: Journal, file: File, as_json: Json = False) -> None:
    """Fill an empty journal from a backup, as the next generation: everything started before is fenced off."""
    from clutch.backends.journal import backup as files
    from clutch.backends.journal.opening import open_journal

    async def fill() -> Summary:
        opened = await open_journal(journal)
        try:
            return await files.restore(opened, file)
        finally:
            await opened.close()

    _say(asyncio.run(fill()), f"Restored from {file}", as_json)


def _say(summary: Summary, done: str, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.encode(summary).decode())
        return
    origin = summary.origin
    typer.echo(f"{done}: generation {origin.generation}, rows up to {origin.last_index} ({summary.rows} kept),")
    typer.echo(f"  {summary.views} views, {summary.outbox} effects that wait, snapshot at {summary.snapshot_index}.")
