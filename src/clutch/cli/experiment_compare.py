"""Several experiments, or the trials of one, side by side."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from clutch.cli.curves import Curve, are_curves, number, plot
from clutch.cli.experiment_render import COLOURS
from clutch.cli.lists import Column, coloured, screen_width, table
from clutch.wire.metrics import TRAINING, VALIDATION

if TYPE_CHECKING:
    from clutch.sdk.client import Client

TRIALS_MAX = 12
POINTS = 200


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a comparison."""

    name: str
    state: str
    group: str
    """Of ``points``."""
    metric: str
    best: float | None
    best_step: int
    hparams: dict[str, Any]
    points: list[tuple[int, float]]


def compared(client: Client, names: Sequence[str], metric: str, group: str) -> list[Compared]:
    """The best trial of each experiment; of one experiment alone, its best trials. Without a group: validations, or
    where each trial has validated only once, what it reported while it trained."""
    found = _read(client, names, metric, group or VALIDATION)
    if group or are_curves(_curves(found, False)):
        return found
    trained = _read(client, names, metric, TRAINING)
    return trained if are_curves(_curves(trained, False)) else found


def _read(client: Client, names: Sequence[str], metric: str, group: str) -> list[Compared]:
    found = []
    for name in names:
        experiment = client.experiment(name)
        view = experiment.view
        count = TRIALS_MAX if len(names) == 1 else 1
        for trial in islice(experiment.trials(order="best", limit=count), count):
            wanted = metric or view.metric
            series = client.trial(trial.key).metrics(group=group, name=wanted, points=POINTS, superseded="false")
            points = [(p.step, float(p.value)) for one in series for p in one.points if not isinstance(p.value, str)]
            found.append(
                Compared(
                    name=f"{view.name} {trial.key}" if len(names) > 1 else f"trial {trial.trial}",
                    state=trial.state,
                    group=group,
                    metric=wanted,
                    best=trial.best if trial.has_best else None,
                    best_step=trial.best_step,
                    hparams=json.loads(trial.hparams),
                    points=sorted(points),
                )
            )
    return found


def compared_text(found: Sequence[Compared]) -> str:
    """Curves above, values and what differs in the hyperparameters below."""
    colour = coloured()
    curves = _curves(found, colour)
    differing = _differing(found)
    columns = [
        Column("what", lambda one: one.name),
        Column("state", lambda one: one.state, 3),
        Column("best", lambda one: "" if one.best is None else number(one.best), 0, True),
        Column("at", lambda one: one.best_step if one.best is not None else "", 2, True),
        *(Column(name, _hparam(name), 1, True) for name in differing),
    ]
    rows = table(found, columns, screen_width(), colour)
    if not are_curves(curves):
        return "\n".join(rows)
    what = ", ".join(dict.fromkeys(f"{one.group}/{one.metric}" for one in found))
    drawn = plot(curves[::-1], shutil.get_terminal_size().columns - 1, 12)
    return "\n".join([f"{what} by step", *drawn, "", *rows])


def _curves(found: Sequence[Compared], colour: bool) -> list[Curve]:
    return [Curve(one.points, COLOURS[place % len(COLOURS)] if colour else "") for place, one in enumerate(found)]


def _hparam(path: str) -> Callable[[Any], object]:
    return lambda one: _shown(_at(one.hparams, path))


def _differing(found: Sequence[Compared]) -> list[str]:
    """Paths of the hyperparameters that are not the same everywhere."""
    names = dict.fromkeys(path for one in found for path in _paths(one.hparams))
    return [name for name in names if len({json.dumps(_at(one.hparams, name)) for one in found}) > 1]


def _paths(value: Any, path: str = "") -> list[str]:
    if isinstance(value, dict):
        return [found for name, inner in value.items() for found in _paths(inner, f"{path}.{name}" if path else name)]
    return [path]


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _shown(value: Any) -> str:
    return "" if value is None else number(value) if isinstance(value, float) else str(value)
