"""What a trial reported, drawn on the screen or written to files."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

from clutch.cli.curves import Curve, plot
from clutch.cli.experiment_render import COLOURS
from clutch.cli.lists import coloured

if TYPE_CHECKING:
    from clutch.wire.metrics import Series

HEIGHT = 8


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
