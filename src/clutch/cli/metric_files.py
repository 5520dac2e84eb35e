"""What a trial reported, drawn on the screen or written to files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from clutch.cli.curves import Curve, plot
from clutch.cli.experiment_render import COLOURS
from clutch.cli.lists import coloured

if TYPE_CHECKING:
    from pathlib import Path

    from clutch.sdk.experiment import Trial
    from clutch.wire.metrics import Series

HEIGHT = 8


def write_metrics(
    trial: Trial, target: Path, *, group: str = "", names: tuple[str, ...] = (), tensorboard: bool = False
) -> int:  # fmt: skip
    """Every point that a trial reported, in a file or a folder; how many there were."""
    from clutch.sdk import experiment_calls as calls
    from clutch.sdk.metric_export import export, pages

    asked = {"group": group, "name": names, "exact": True}

    def of_task(task: str) -> Iterator[Series]:
        return pages(lambda after: trial.client.perform(calls.task_metrics(task, **asked, after=after)))

    def every() -> Iterator[Series]:
        for task in trial.detail().tasks:
            yield from of_task(task)

    return export(every(), target, "tensorboard" if tensorboard else "")


def drawn(series: Sequence[Series]) -> str:
    """One picture for each metric, the runs of the trial in it as curves of their own."""
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
        lines = plot(curves, width, HEIGHT)
        if lines:
            pictures.append("\n".join([f"{group}/{name}", *lines]))
    return "\n\n".join(pictures)
