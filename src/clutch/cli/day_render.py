"""How a simulated day looks: nodes with their slots, tasks with their reasons, the latest news."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from clutch.testing.sim.day import Day

COLOURS = {"trial": "green", "gang": "cyan", "sweep": "bright_green", "rl": "magenta", "lease": "yellow"}
NODE_COLOURS = {"ready": "green", "draining": "yellow", "unreported": "yellow", "suspect": "yellow"}
TASKS_SHOWN = 14


def _slot(occupant: str) -> Text:
    if not occupant:
        return Text("  ·  ", style="dim")
    name = occupant.removeprefix("lease ").split("/")[0]
    kind = "lease" if occupant.startswith("lease ") else name.split("-")[0]
    return Text(f"{name} ", style=COLOURS.get(kind, "white"))


def _bar(slots: tuple[str, ...]) -> Text:
    return Text(" ").join(_slot(occupant) for occupant in slots)


def day_table(day: Day) -> Group:
    nodes = Table(title=f"t = {day.clock_s:.0f} s   {'   '.join(day.masters())}", title_justify="left", expand=True)
    for column in ("node", "state", "slots (yellow: a notebook cell's lease)", "residents"):
        nodes.add_column(column)
    for glance in day.nodes():
        style = NODE_COLOURS.get(glance.state, "red")
        residents = ", ".join(name.split("/")[0] for name in glance.residents)
        nodes.add_row(glance.node, Text(glance.state, style=style), _bar(glance.slots), residents)
    tasks = Table(expand=True)
    for column in ("task", "state", "priority", "epoch", "saved step", "waits because"):
        tasks.add_column(column)
    glances = day.tasks()
    for task in glances[:TASKS_SHOWN]:
        style = COLOURS.get(task.kind, "white")
        row = (Text(task.task, style=style), task.state, str(task.priority), str(task.epoch), str(task.step), task.why)
        tasks.add_row(*row)
    if len(glances) > TASKS_SHOWN:
        tasks.add_row(f"... and {len(glances) - TASKS_SHOWN} more", "", "", "", "", "")
    news = Text("\n".join(line[:150] for line in day.news(7)), style="dim")
    return Group(nodes, tasks, Panel(news, title="what just happened", title_align="left"), Text(_count(day)))


def _count(day: Day) -> str:
    ended = ", ".join(f"{count} {reason}" for reason, count in day.ended().items()) or "none yet"
    facts, checks = len(day.cluster.truth.history), day.cluster.promises.checks
    return f"ended: {ended}   facts: {facts}   promises checked: {checks} times"


def day_lines(day: Day) -> str:
    """One line for programs and logs: how full each node is, and how many wait."""
    nodes = "  ".join(
        f"{glance.node}[{''.join('#' if occupant else '.' for occupant in glance.slots)}]"
        + ("" if glance.state == "ready" else f"({glance.state})")
        for glance in day.nodes()
    )
    waiting = sum(1 for task in day.tasks() if task.state == "queued")
    return f"{day.clock_s:6.0f} s  {nodes}  {waiting:2d} waiting  {_count(day)}"


def day_verdict(day: Day) -> str:
    faults = ", ".join(f"{count} x {kind}" for kind, count in day.cluster.fired.items() if count) or "nothing"
    tasks = len(day.cluster.truth.submitted)
    name = next((task for task in day.cluster.truth.submitted if task.startswith("notebook")), "n0")
    verdict = f"BROKEN: {day.broken}" if day.broken else f"all {tasks} tasks ended, every promise held"
    return (
        f"{verdict}. {_count(day)}\nwhat went wrong on the way: {faults}\n"
        f"what happened to one of them: clutch demo day --story {name}   more days: clutch sim run --seeds 0-99"
    )
