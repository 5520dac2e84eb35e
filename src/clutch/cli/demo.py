"""``clutch demo``: a mixed day on a small simulated cluster, as a live table."""

from __future__ import annotations

import time
from typing import Annotated

import typer


def demo(
    seed: Annotated[int, typer.Option("--seed", min=0, help="Which day.")] = 9,
    speed: Annotated[float, typer.Option("--speed", min=0.1, help="Virtual seconds per second.")] = 8.0,
    story: Annotated[str, typer.Option("--story", help="Tell what happens to one thing of the day.")] = "",
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of a live table (also when piped).")] = False,
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
    day = Day(seed)
    if story:
        typer.echo("\n".join(day.story(story)))
        return
    if plain or not console.is_terminal:
        for _ in day.hours():
            console.print(day_lines(day), highlight=False, soft_wrap=True)
    else:
        pause = day.hour_s / speed
        with Live(day_table(day), console=console, refresh_per_second=8, screen=False) as live:
            for _ in day.hours():
                live.update(day_table(day))
                time.sleep(pause)
    console.print(day_verdict(day), highlight=False, soft_wrap=True)
    if day.broken:
        raise typer.Exit(1)
