"""What the trials of an experiment printed, read as one: by time, whichever trial, task or node it came from."""

from __future__ import annotations

from collections.abc import Sequence

from clutch.core.state import State
from clutch.master.services import Services
from clutch.wire.errors import NotFound
from clutch.wire.experiments import KIND, ExperimentState
from clutch.wire.ids import TaskId
from clutch.workloads.experiment.machine.experiment import Experiment
from clutch.workloads.experiment.service.looking import own_of
from clutch.workloads.experiment.service.own import exp_in


class Printed:
    """The tasks of an experiment: all of its trials, or those of these numbers, and its search's processes.

    A trial that is continued has several, and more of each may come while somebody follows.
    """

    def __init__(self, services: Services, experiment: str, trials: Sequence[int] = ()) -> None:
        self._services = services
        self._experiment = experiment
        self._trials = trials

    async def tasks(self) -> Sequence[TaskId]:
        exp = await own_of(self._services, self._experiment)
        numbers = self._trials or tuple(exp.trials)
        found = [task for number in numbers if number in exp.trials for task in exp.trials[number].tasks]
        if not self._trials:
            found += searches(exp)
        return tuple(TaskId(task) for task in found)

    async def check(self) -> None:
        """``NotFound`` names a number that no trial has."""
        exp = await own_of(self._services, self._experiment)
        for number in self._trials:
            if number not in exp.trials:
                raise NotFound(
                    f"it has no trial {number}" + (f"; they go up to {max(exp.trials)}" if exp.trials else " yet"),
                    object=f"experiment {self._experiment}",
                    next_step=f"'clutch trial list {self._experiment}' shows those there are.",
                    path="trial",
                )

    def has_ended(self) -> bool:
        return is_over(self._services.loop.state, self._experiment, self._trials)


def searches(exp: Experiment) -> list[str]:
    """The tasks that ran its search method's process."""
    first = f"{exp.experiment}.search"
    return [first if number == 1 else f"{first}-{number}" for number in range(1, exp.searchers + 1)]


def is_over(state: State, experiment: str, trials: Sequence[int]) -> bool:
    """Whether an experiment, or these trials of it, will print nothing more."""
    workload = state.workloads.get(experiment)
    if workload is None or workload.kind != KIND:
        return True
    exp = exp_in(workload.own)
    if exp.ended or exp.state is ExperimentState.DELETING:
        return not exp.live
    return bool(trials) and not any(number in exp.live for number in trials)
