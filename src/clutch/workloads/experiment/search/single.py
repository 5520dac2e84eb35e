"""One trial, with the constants of its spec; what is not constant is drawn once."""

from __future__ import annotations

from typing import Any

from clutch.wire.errors import BadRequest
from clutch.wire.experiments import ExperimentSpec
from clutch.workloads.experiment.search.base import Extended
from clutch.workloads.experiment.search.plain import Plain
from clutch.workloads.experiment.search.sampling import sample


class SingleMethod(Plain):
    """A trial that refuses its hyperparameters has failed: there are no others to try."""

    def __init__(self, spec: ExperimentSpec) -> None:
        super().__init__(spec, 1, 1, replaces=False)

    def hparams(self, trial: int) -> dict[str, Any]:
        return sample(self._spec.hyperparameters, self._spec.seed, trial)

    def check_extension(self, event: Extended) -> None:
        if event.max_trials > 1:
            raise BadRequest(
                "a single search has one trial",
                object="max_trials",
                next_step="Submit it as a random search.",
                path="max_trials",
            )
