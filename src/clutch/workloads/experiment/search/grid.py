"""Every point of the grid once: trial N is point N. One that refuses its hyperparameters is skipped."""

from __future__ import annotations

from typing import Any

from clutch.wire.errors import BadRequest
from clutch.wire.experiments import ExperimentSpec, Grid
from clutch.workloads.experiment.search.base import Extended
from clutch.workloads.experiment.search.checks import at_least
from clutch.workloads.experiment.search.plain import Plain
from clutch.workloads.experiment.search.sampling import grid_axes, grid_point, grid_size


class GridMethod(Plain):
    def __init__(self, spec: ExperimentSpec, method: Grid) -> None:
        at_least(0, max_concurrent_trials=method.max_concurrent_trials)
        self._axes = grid_axes(spec.hyperparameters)
        super().__init__(spec, grid_size(self._axes), method.max_concurrent_trials, replaces=False)

    def hparams(self, trial: int) -> dict[str, Any]:
        return grid_point(self._spec.hyperparameters, self._axes, trial)

    def check_extension(self, event: Extended) -> None:
        if event.max_trials > self._max_trials:
            raise BadRequest(
                f"the grid has {self._max_trials} points, and each is tried once",
                object="max_trials",
                next_step="Submit a finer grid.",
                path="max_trials",
            )
