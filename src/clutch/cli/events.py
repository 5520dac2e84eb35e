"""``clutch events``: the journal as news."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from clutch.cli.lists import Json, clean, moment
from clutch.cli.where import connect

if TYPE_CHECKING:
    from clutch.sdk.client import Client
    from clutch.wire.api import EventView

app = typer.Typer(rich_markup_mode=None)
PAUSE_S = 0.5


@app.command("events")
def events(
    context: typer.Context,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens, until Ctrl-C.")] = False,
    task: Annotated[str, typer.Option("--task", help="Only of this task.")] = "",
    kind: Annotated[str, typer.Option("--kind", help="Only these kinds, joined by commas: task_submitted.")] = "",
    after: Annotated[str, typer.Option("--after", help="Only what came behind this row of the journal.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="At most so many.")] = 100,
    as_json: Json = False,
) -> None:
    """Show what happened, and what happens."""
    import msgspec

    filters = {"task": task, "kind": kind}
    with connect(context) as client:
        found = following(client, after, filters) if follow else latest(client, after, filters, limit)
        try:
            for event in found:
                typer.echo(msgspec.json.encode(event).decode() if as_json else event_text(event))
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def event_text(event: EventView) -> str:
    what = f"{event.object}: {event.text}" if event.object else event.text
    return f"{event.index:>8}  {moment(event.at)}  {event.kind:<20}  {clean(what)}  ({clean(event.cause)})"


def latest(client: Client, after: str, filters: dict[str, str], limit: int) -> Iterator[EventView]:
    """The last ones, or those right behind a row."""
    from clutch.sdk import calls

    if after:
        yield from client.perform(calls.list_events(after=after, limit=limit, **filters)).items
        return
    end = client.perform(calls.get_master()).index
    back = limit * 2
    while True:
        start = max(0, end - back)
        found = tuple(client.items(calls.list_events(after=str(start), limit=1000, **filters)))
        if len(found) >= limit or not start:
            yield from found[-limit:]
            return
        back *= 8


def following(client: Client, after: str, filters: dict[str, str]) -> Iterator[EventView]:
    """What happens, over breaks and masters, each event once."""
    from clutch.sdk import calls
    from clutch.sdk.events import EventStream
    from clutch.wire.errors import Unavailable

    stream = EventStream(after)
    client.patience_s = 30.0
    while True:
        try:
            for line in client.lines(calls.follow_events(stream.after, **filters)):
                event = stream.hear(line)
                if event is not None:
                    yield event
        except Unavailable:
            pass
        time.sleep(PAUSE_S)
