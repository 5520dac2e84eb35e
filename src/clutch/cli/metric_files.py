"""What tasks reported, drawn on the screen or written to files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from clutch.cli.curves import Curve, are_curves, number, plot
from clutch.cli.experiment_render import COLOURS
from clutch.cli.lists import coloured
from clutch.wire.errors import BadRequest

if TYPE_CHECKING:
    from pathlib import Path

    from clutch.sdk.client import Client
    from clutch.wire.metrics import Series

HEIGHT = 8
FILES = (".csv", ".parquet")


class Asked(NamedTuple):
    """What of it, and how."""

    group: str = ""
    names: tuple[str, ...] = ()
    points: int = 200
    tensorboard: bool = False
    as_json: bool = False


def write_metrics(client: Client, tasks: Sequence[str], asked: Asked, target: Path) -> int:
    """Every point that these tasks reported, in a file or a folder; how many there were."""
    from clutch.sdk import calls
    from clutch.sdk.metric_export import export, pages

    if target.suffix and target.suffix.lower() not in FILES and not asked.tensorboard and not target.is_dir():
        step = f"Write {' or '.join(FILES)} for a file; a folder gets the event files of TensorBoard."
        raise BadRequest(f"nothing is written as {target.suffix}", object=str(target), next_step=step)
    fields = {"group": asked.group, "name": asked.names, "exact": True}

    def of_task(task: str) -> Iterator[Series]:
        return pages(lambda after: client.perform(calls.task_metrics(task, **fields, after=after)))

    def every() -> Iterator[Series]:
        for task in tasks:
            yield from of_task(task)

    return export(every(), target, "tensorboard" if asked.tensorboard else "")


def drawn(series: Sequence[Series]) -> str:
    """One picture for each metric, the runs in it as curves of their own."""
    colour = coloured()
    width = shutil.get_terminal_size().columns - 1
    pictures: list[str] = []
    for group, name in dict.fromkeys((one.group, one.name) for one in series):
        curves = [
            Curve(
                [(float(p.step), float(p.value)) for p in one.points if not isinstance(p.value, str)],
                COLOURS[place % len(COLOURS)] if colour else "",
            )
            for place, one in enumerate(one for one in series if (one.group, one.name) == (group, name))
        ]
        if not are_curves(curves):
            last = [f"{number(y)} at step {number(x)}" for curve in curves for x, y in curve.points[-1:]]
            pictures += [f"{group}/{name}: {', '.join(last)}"] if last else []
        elif lines := plot(curves, width, HEIGHT):
            pictures.append("\n".join([f"{group}/{name}", *lines]))
    return "\n\n".join(pictures)
