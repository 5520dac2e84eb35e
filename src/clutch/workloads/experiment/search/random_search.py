"""Trials drawn independently. One that refuses its hyperparameters does not count: another is drawn for it."""

from __future__ import annotations

from typing import Any

from clutch.wire.experiments import ExperimentSpec, RandomSearch
from clutch.workloads.experiment.search.checks import at_least
from clutch.workloads.experiment.search.plain import Plain
from clutch.workloads.experiment.search.sampling import sample


class RandomMethod(Plain):
    def __init__(self, spec: ExperimentSpec, method: RandomSearch) -> None:
        at_least(1, max_trials=method.max_trials)
        at_least(0, max_concurrent_trials=method.max_concurrent_trials)
        super().__init__(spec, method.max_trials, method.max_concurrent_trials, replaces=True)

    def hparams(self, trial: int) -> dict[str, Any]:
        return sample(self._spec.hyperparameters, self._spec.seed, trial)
