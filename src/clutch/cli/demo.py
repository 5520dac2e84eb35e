"""``clutch demo``: what Clutch does, in front of your eyes."""

from __future__ import annotations

import time
from typing import Annotated

import typer

app = typer.Typer(rich_markup_mode=None)
Plain = Annotated[bool, typer.Option("--plain", help="Lines instead of a live table (also when piped).")]


@app.callback(invoke_without_command=True)
def demo(context: typer.Context) -> None:
    """Show a search on a cluster of this machine's own, or a simulated day."""
    if context.invoked_subcommand is None:
        search()


@app.command("search")
def search(
    trials: Annotated[int, typer.Option("--trials", min=4, help="So many networks are trained.")] = 16,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Which networks.")] = 5,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the cluster running to look around in it.")] = False,
    plain: Plain = False,
) -> None:
    """Train networks that read digits on a cluster of their own, stop the weak ones early, survive two crashes.

    Everything is real: master, agent, processes, kill -9, the data, the model that is registered and asked at the end.
    """
    from clutch.cli.demo_search import Show

    raise typer.Exit(Show(trials=trials, seed=seed, keep=keep, plain=plain).run())


@app.command("day")
def day(
    seed: Annotated[int, typer.Option("--seed", min=0, help="Which day.")] = 9,
    speed: Annotated[float, typer.Option("--speed", min=0.1, help="Virtual seconds per second.")] = 8.0,
    story: Annotated[str, typer.Option("--story", help="Tell what happens to one thing of the day.")] = "",
    plain: Plain = False,
) -> None:
    """Show trials, notebook cells and RL programs sharing the slots of one cluster while things go wrong.

    Everything is simulated but the part that decides: master loop, scheduler, journal and agent brains are the real
    ones. Every promise is checked after every step.
    """
    from rich.console import Console
    from rich.live import Live

    from clutch.cli.day_render import day_lines, day_table, day_verdict
    from clutch.testing.sim.day import Day

    console = Console()
    one = Day(seed)
    if story:
        typer.echo("\n".join(one.story(story)))
        return
    if plain or not console.is_terminal:
        for _ in one.hours():
            console.print(day_lines(one), highlight=False, soft_wrap=True)
    else:
        pause = one.hour_s / speed
        with Live(day_table(one), console=console, refresh_per_second=8, screen=False) as live:
            for _ in one.hours():
                live.update(day_table(one))
                time.sleep(pause)
    console.print(day_verdict(one), highlight=False, soft_wrap=True)
    if one.broken:
        raise typer.Exit(1)
