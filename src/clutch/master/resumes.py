"""From which step each epoch resumed, kept with the metrics: what older epochs reported beyond it is superseded."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

import structlog

from clutch.core.recorded import Recorded
from clutch.master.loop import Loop
from clutch.master.metrics_lane.lane import MetricsLane
from clutch.wire.errors import ClutchError
from clutch.wire.facts import AllocationGranted
from clutch.wire.ids import Epoch, TaskId

WAITING_MAX = 100_000
AGAIN_S = 1.0

log = structlog.get_logger("clutch.master.resumes")


class Resumes:
    """``heard`` is the loop's listener; ``run`` writes what it heard, and again whatever a dead master may not have."""

    def __init__(self, loop: Loop, metrics: MetricsLane) -> None:
        self._loop = loop
        self._metrics = metrics
        self._waiting: OrderedDict[tuple[TaskId, Epoch], int] = OrderedDict()
        self._news = asyncio.Event()

    def heard(self, recorded: Sequence[Recorded]) -> None:
        for entry in recorded:
            if isinstance(entry.fact, AllocationGranted):
                self._note(entry.fact.task, entry.fact.epoch)

    def _note(self, task: TaskId, epoch: Epoch) -> None:
        live = self._loop.state.tasks.get(task)
        if live is None or epoch <= 1:
            return
        self._waiting[task, epoch] = live.step if live.checkpoint else -1
        if len(self._waiting) > WAITING_MAX:
            self._waiting.popitem(last=False)
        self._news.set()

    async def run(self) -> None:
        """While this master leads, until cancelled."""
        for task, allocation in self._loop.state.allocations.items():
            self._note(task, allocation.epoch)
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                (task, epoch), step = next(iter(self._waiting.items()))
                try:
                    await self._metrics.resumed(task, epoch, step)
                except ClutchError as error:
                    log.warning("where an epoch resumed cannot be kept now", task=task, epoch=epoch, error=str(error))
                    await asyncio.sleep(AGAIN_S)
                    continue
                self._waiting.pop((task, epoch), None)
