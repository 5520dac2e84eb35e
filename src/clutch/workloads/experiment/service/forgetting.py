"""Deleted experiments: when their files are gone, their metrics, output and records go, and then they themselves.

Whatever a master dies in the middle of is done again by the next one: each step may be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from clutch.core.recorded import Recorded
from clutch.master.services import Services
from clutch.wire.errors import ClutchError, NotFound
from clutch.wire.experiment_words import Forgotten
from clutch.wire.experiments import KIND
from clutch.wire.facts import ControllerNoted
from clutch.wire.ids import TaskId
from clutch.wire.views import TaskView
from clutch.workloads.experiment.service.own import waits_to_be_forgotten
from clutch.workloads.experiment.service.telling import Teller

AGAIN_S = 5.0
LISTED = 1_000

log = structlog.get_logger("clutch.experiments")


class Forgetting:
    """``heard`` is the loop's listener; ``run`` does it while this master leads."""

    def __init__(self, services: Services, teller: Teller) -> None:
        self._services = services
        self._teller = teller
        self._due: dict[str, None] = {}
        self._news = asyncio.Event()

    def heard(self, recorded: Iterable[Recorded]) -> None:
        for entry in recorded:
            if isinstance(entry.fact, ControllerNoted):
                self._look(entry.fact.controller)

    def _look(self, experiment: str) -> None:
        workload = self._services.loop.state.workloads.get(experiment)
        if workload is not None and workload.kind == KIND and waits_to_be_forgotten(workload.own):
            self._due[experiment] = None
            self._news.set()

    async def run(self) -> None:
        for experiment in list((await self._services.loop.settled()).workloads):
            self._look(experiment)
        while True:
            await self._news.wait()
            self._news.clear()
            while self._due:
                experiment = next(iter(self._due))
                try:
                    await self._forget(experiment)
                except ClutchError as error:
                    log.warning("a deleted experiment is not forgotten yet", experiment=experiment, error=str(error))
                    await asyncio.sleep(AGAIN_S)
                    continue
                self._due.pop(experiment, None)

    async def _forget(self, experiment: str) -> None:
        services = self._services
        tasks = await tasks_of(services, experiment)
        for task in tasks:
            await services.metrics.forget(task)
            await services.output.forget(task)
            await services.push.checkpoints.forget(task)
        try:
            await self._teller.tell(experiment, Forgotten(), "master:forgotten")
        except NotFound:
            return  # said before, by a master that died of it
        log.info("a deleted experiment is forgotten", experiment=experiment, tasks=len(tasks))


async def tasks_of(services: Services, experiment: str) -> list[TaskId]:
    """Every task that an experiment ever had, live or ended."""
    found: list[TaskId] = []
    beginning = f"{experiment}."
    after = beginning
    while True:
        page = await services.journal.page(TaskView.table, {}, "key", after, LISTED)
        mine = [TaskId(view.key) for view in page if view.key.startswith(beginning)]
        found += mine
        if len(mine) < LISTED:
            return found
        after = mine[-1]
