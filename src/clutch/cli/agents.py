"""``clutch agent``: the machines of the cluster. With ``--master`` and no command, this machine becomes one of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from clutch.cli.agent_start import start_agent
from clutch.cli.lists import Column, Json, Watch, ago, facts, screen_width, show, show_list, table
from clutch.cli.tasks import MEMBERS
from clutch.cli.where import connect
from clutch.wire.errors import BadRequest

if TYPE_CHECKING:
    from clutch.wire.api import NodeDetail

app = typer.Typer(rich_markup_mode=None, no_args_is_help=False)
app.callback(invoke_without_command=True)(start_agent)

Node = Annotated[str, typer.Argument(help="Its name, or a unique beginning of it.")]
Slots = Annotated[str, typer.Option("--slots", help="Only these: 0,1 or 0-3.")]

SLOTS_MAX = 4096

NODES = (
    Column("node", lambda node: node.key),
    Column("state", lambda node: node.state),
    Column("pool", lambda node: node.pool, 2),
    Column("slots", lambda node: f"{node.slots_held}/{node.slots}", right=True),
    Column("cpus", lambda node: f"{node.millicpus / 1000:g}", 4, True),
    Column("memory", lambda node: f"{node.memory_bytes / 2**30:.0f}G", 5, True),
    Column("since", lambda node: ago(node.changed_at, time.time()), 3, True),
    Column("reason", lambda node: node.reason, 1),
)


@app.command("list")
def list_agents(
    context: typer.Context,
    pool: Annotated[str, typer.Option(help="Only of this pool.")] = "",
    state: Annotated[str, typer.Option(help="Only in this state.")] = "",
    as_json: Json = False,
    watch: Watch = False,
) -> None:
    """List the machines of the cluster and how full they are."""
    from clutch.sdk import calls

    with connect(context) as client:
        show_list(
            lambda: list(client.items(calls.list_nodes(pool=pool, state=state, limit=1000))),
            NODES,
            as_json=as_json,
            watch=watch,
            empty="No machine. Add this one with 'clutch agent --master URL --token-file FILE'.",
        )


@app.command("show")
def show_agent(context: typer.Context, node: Node, as_json: Json = False, watch: Watch = False) -> None:
    """Show a machine: its slots, what it measures, who is on it."""
    import msgspec

    from clutch.sdk import calls

    with connect(context) as client:

        def draw() -> str:
            detail = client.perform(calls.get_node(node))
            return msgspec.json.encode(detail).decode() if as_json else node_text(detail)

        show(draw, watch=watch, as_json=as_json)


def node_text(detail: NodeDetail) -> str:
    from clutch.sdk.code import human_size

    node, use = detail.node, detail.use
    busy = {slot.slot: slot for slot in use.slots} if use is not None else {}
    head = [
        ("node", node.key),
        ("state", f"{node.state}{': ' + node.reason if node.reason else ''}"),
        ("pool", node.pool),
        ("slots", f"{node.slots_held} of {node.slots} held"),
        ("cpus", f"{node.millicpus / 1000:g}{f', {use.cpu_percent:.0f}% busy' if use else ''}"),
        ("memory", human_size(node.memory_bytes) + (f", {human_size(use.memory_bytes)} in use" if use else "")),
        ("disk", f"{human_size(use.disk_free_bytes)} free" if use else ""),
        ("backends", ", ".join(use.backends) if use else ""),
        ("release", use.version if use else ""),
        ("address", use.address if use else ""),
        ("labels", ", ".join(f"{key}={value}" for key, value in use.labels.items()) if use else ""),
    ]
    slots = (
        Column("slot", lambda slot: slot.index, right=True),
        Column("kind", lambda slot: slot.kind),
        Column("state", lambda slot: "disabled" if slot.index in detail.disabled else ""),
        Column("busy", lambda slot: _percent(busy, slot.index), right=True),
        Column("uuid", lambda slot: slot.uuid, 1),
    )
    parts = [facts(head)]
    for rows, columns in ((detail.slots, slots), (detail.members, _members())):
        if rows:
            parts.append("\n".join(table(rows, columns, screen_width())))
    return "\n\n".join(parts)


def _members() -> tuple[Column, ...]:
    return (Column("task", lambda member: member.member.partition("/")[0]), *MEMBERS[:2], *MEMBERS[3:])


def _percent(busy: Mapping[int, object], slot: int) -> str:
    percent = getattr(busy.get(slot), "percent", -1)
    return f"{percent}%" if percent >= 0 else ""


@app.command("drain")
def drain(context: typer.Context, node: Node) -> None:
    """Empty a machine: what can leave is asked to, and nothing new comes."""
    _move(context, node, "drain", "being emptied; 'clutch agent enable' takes it back")


@app.command("enable")
def enable(context: typer.Context, node: Node, slots: Slots = "") -> None:
    """Take a drained machine back, or some of its disabled slots."""
    if slots:
        _change_slots(context, node, parse_slots(slots), disable=False)
    else:
        _move(context, node, "open", "takes work again")


@app.command("disable")
def disable(context: typer.Context, node: Node, slots: Slots = "") -> None:
    """Give nothing new to some slots of a machine, or to the whole machine."""
    if slots:
        _change_slots(context, node, parse_slots(slots), disable=True)
    else:
        _move(context, node, "drain", "being emptied; 'clutch agent enable' takes it back")


@app.command("remove")
def remove(context: typer.Context, node: Node) -> None:
    """Forget a machine that is lost, or drained and empty."""
    from clutch.sdk import calls

    with connect(context) as client:
        client.perform(calls.remove_node(node))
    typer.echo(f"{node}: forgotten")


def _move(context: typer.Context, node: str, move: str, done: str) -> None:
    from clutch.sdk import calls

    with connect(context) as client:
        client.perform(calls.move_node(node, move))
    typer.echo(f"{node}: {done}")


def _change_slots(context: typer.Context, node: str, slots: tuple[int, ...], *, disable: bool) -> None:
    from clutch.sdk import calls

    with connect(context) as client:
        now = client.perform(calls.get_node(node)).disabled
        wanted = tuple(sorted({*now, *slots} if disable else {slot for slot in now if slot not in slots}))
        client.perform(calls.set_slots(node, wanted))
    typer.echo(f"{node}: disabled slots: {', '.join(map(str, wanted)) or 'none'}")


def parse_slots(text: str) -> tuple[int, ...]:
    """``0,2-4`` as numbers."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal()) or int(last) > SLOTS_MAX:
            raise BadRequest(f"{part!r} names no slots", object="--slots", next_step="Write 0,1 or 0-3.")
        found += range(int(first), int(last) + 1)
    return tuple(found)
