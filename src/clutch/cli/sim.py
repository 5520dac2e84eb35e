"""``clutch sim``: run seeded clusters under faults, and tell what happened in one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from clutch.wire.errors import BadRequest

if TYPE_CHECKING:
    from clutch.testing.sim.run import Outcome

app = typer.Typer(help="Whole clusters from a seed: run them, replay them, read their stories.", no_args_is_help=True)

Nodes = Annotated[int | None, typer.Option("--nodes", min=1, max=64, help="How many nodes; the seed decides.")]
Faults = Annotated[bool, typer.Option("--faults/--no-faults", help="Whether things go wrong.")]


def parse_seeds(text: str) -> range:
    """``7`` or ``0-99``, both ends included."""
    first, dash, last = text.partition("-")
    try:
        seeds = range(int(first), int(last or first) + 1)
    except ValueError:
        seeds = range(0)
    if not seeds or (dash and not last):
        raise BadRequest(f"{text!r} is not a range of seeds", object="--seeds", next_step="Write 0-99, or 7.")
    return seeds


@app.command("run")
def run_command(
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Run this one seed and say what happened.")] = None,
    seeds: Annotated[str, typer.Option("--seeds", help="Run a range of seeds.")] = "0-19",
    nodes: Nodes = None,
    faults: Faults = True,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="How many seeds run at once.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per seed.")] = False,
) -> None:
    """Run seeded clusters and check every promise after every step. Exit code 1 if one was broken."""
    from clutch.cli.render import SimReport

    chosen = range(seed, seed + 1) if seed is not None else parse_seeds(seeds)
    with SimReport(len(chosen), as_json=json, in_full=seed is not None) as report:
        for outcome in _outcomes(chosen, nodes, faults, jobs):
            report.show(outcome)
    if report.broken:
        raise typer.Exit(1)


@app.command("save")
def save_command(
    journal: Annotated[str, typer.Argument(help="An empty one: sqlite:///FILE, a path, or postgresql://...")],
    seed: Annotated[int, typer.Option("--seed", min=0, help="Which simulation.")],
    nodes: Nodes = None,
    faults: Faults = True,
) -> None:
    """Keep the journal of a simulated cluster in a real store: to look at, to back up, to try a release on."""
    import asyncio

    from clutch.testing.sim.run import save

    asyncio.run(save(seed, journal, nodes=nodes, faults=faults))
    typer.echo(f"Saved the journal of seed {seed} in {journal}.")


@app.command("story")
def story_command(
    subject: Annotated[str, typer.Argument(help="A task, node, lease or member of that simulation.")],
    seed: Annotated[int, typer.Option("--seed", min=0, help="Which simulation.")],
    nodes: Nodes = None,
    faults: Faults = True,
    json: Annotated[bool, typer.Option("--json", help="The lines as a JSON list.")] = False,
) -> None:
    """Tell everything that happened to one thing in a seed, with causes."""
    import msgspec

    from clutch.testing.sim.run import tell

    lines = tell(seed, subject, nodes=nodes, faults=faults)
    if json:
        typer.echo(msgspec.json.encode(lines))
    else:
        typer.echo("\n".join(lines))


def _outcomes(seeds: range, nodes: int | None, faults: bool, jobs: int) -> Iterator[Outcome]:
    from clutch.testing.sim.run import run

    one = partial(run, nodes=nodes, faults=faults)
    if jobs == 1 or len(seeds) == 1:
        yield from map(one, seeds)
        return
    from multiprocessing import get_context

    with get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(one, seeds, chunksize=4)
