"""Where a trial that is continued goes on, kept with the metrics of the tasks that ran it before.

A continued trial is another task, and the metrics of each task are kept apart. What an earlier task reported beyond the
checkpoint from which a later one begins is superseded, as if one task had been started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from clutch.core.recorded import Recorded
from clutch.master.services import Services
from clutch.wire.errors import ClutchError
from clutch.wire.experiment_views import CheckpointRow
from clutch.wire.experiments import KIND, trial_of, trial_task
from clutch.wire.facts import AllocationGranted
from clutch.wire.ids import TaskId
from clutch.workloads.experiment.service.own import exp_in

AGAIN_S = 1.0
NOTHING = -1
"""The step from which a trial resumes that begins from nothing."""
LATER = 2**30
"""Added to a task's attempt it is an epoch that comes after all that a task before it can have had."""

log = structlog.get_logger("clutch.experiments")


class Continuations:
    """``heard`` is the loop's listener; ``run`` writes what it heard, and again whatever a dead master may not have."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._due: dict[str, None] = {}
        self._news = asyncio.Event()

    def heard(self, recorded: Iterable[Recorded]) -> None:
        for entry in recorded:
            if isinstance(entry.fact, AllocationGranted) and entry.fact.epoch == 1:
                self._note(entry.fact.task)

    def _note(self, task: str) -> None:
        if attempt_of(task) > 1:
            self._due[task] = None
            self._news.set()

    async def run(self) -> None:
        for running in list((await self._services.loop.settled()).allocations):
            self._note(running)
        while True:
            await self._news.wait()
            self._news.clear()
            while self._due:
                task = next(iter(self._due))
                try:
                    await self._keep(task)
                except ClutchError as error:
                    log.warning("where a trial goes on cannot be kept now", task=task, error=str(error))
                    await asyncio.sleep(AGAIN_S)
                    continue
                self._due.pop(task, None)

    async def _keep(self, task: str) -> None:
        experiment, number = trial_of(task) or ("", 0)
        workload = self._services.loop.state.workloads.get(experiment)
        if workload is None or workload.kind != KIND or number not in (trials := exp_in(workload.own).trials):
            return
        if trials[number].task != task:
            return  # it has been continued again meanwhile
        row = await self._services.journal.view(CheckpointRow.table, trials[number].warm_start)
        step = row.step if isinstance(row, CheckpointRow) else NOTHING
        for attempt in range(1, attempt_of(task)):
            earlier = TaskId(trial_task(experiment, number, attempt))
            await self._services.metrics.resumed(earlier, LATER + attempt_of(task), step)


def attempt_of(task: str) -> int:
    """Which task of its trial it is, from 1; 0 for a task that is no trial's."""
    if trial_of(task) is None:
        return 0
    attempt = task.rpartition(".")[2].partition("-")[2]
    return int(attempt) if attempt.isdecimal() else 1
