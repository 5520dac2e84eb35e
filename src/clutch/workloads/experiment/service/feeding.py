"""Validations on their way from the metrics lane to the experiment that decides upon them.

A validation is told when its lane has committed it and before its trial hears that, so a trial that goes on has been
decided upon. A master that died in between is made up for twice: the trial says its batch again, and whoever leads next
tells what each live trial had committed last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import structlog

from clutch.master.metrics_lane.lane import MetricsLane
from clutch.master.services import Services
from clutch.wire.errors import NotFound
from clutch.wire.experiment_words import Validated
from clutch.wire.experiments import KIND, ROLE, trial_of
from clutch.wire.ids import Fence, MemberId, TaskId
from clutch.wire.metrics import VALIDATION, MetricBatch, MetricPoint, Value, heard
from clutch.workloads.experiment.service.own import live_trials
from clutch.workloads.experiment.service.telling import Teller

log = structlog.get_logger("clutch.experiments")
RECOVERED_AT_ONCE = 64
"""Trials whose last validations are held in memory together."""


class Feeder:
    """``after_metrics`` is one of the push service's; ``recover`` is run once, when a master begins to lead."""

    def __init__(self, services: Services, teller: Teller) -> None:
        self._services = services
        self._teller = teller

    async def after_metrics(self, member: MemberId, fence: Fence, batches: tuple[MetricBatch, ...]) -> None:
        """These batches of a member's are durable: whoever decides upon its validations hears them."""
        experiment = self._experiment_of(member)
        if experiment is None:
            return
        points = (point for batch in batches for point in batch.points)
        for said in validations(member.task, fence.epoch, points):
            await self._tell(experiment, said, f"task:{member}")

    def _experiment_of(self, member: MemberId) -> str | None:
        """The live experiment that a chief member is a trial of."""
        found = trial_of(member.task)
        if found is None or (member.role, member.rank) != (ROLE, 0):
            return None
        workload = self._services.loop.state.workloads.get(found[0])
        return found[0] if workload is not None and workload.kind == KIND else None

    async def _tell(self, experiment: str, said: Validated, cause: str) -> None:
        try:
            await self._teller.tell(experiment, said, cause)
        except NotFound:  # it is over: nothing is decided any more, and the metric is kept all the same
            log.info("a validation came after its experiment's end", task=said.task, step=said.step)

    async def recover(self) -> int:
        """Tell every validation that its experiment may not have heard; how many.

        Of each live trial only what was committed last is read: whatever came before it was told before the trial
        heard that it may go on.
        """
        count = 0
        state = await self._services.loop.settled()
        for workload in [w for w in state.workloads.values() if w.kind == KIND]:
            trials = [(TaskId(task), known) for task, known in live_trials(workload.own)]
            for start in range(0, len(trials), RECOVERED_AT_ONCE):
                part = dict(trials[start : start + RECOVERED_AT_ONCE])
                for said in await last_validations(self._services.metrics, list(part)):
                    if said.step not in part[TaskId(said.task)]:
                        count += 1
                        await self._tell(workload.controller, said, "master:metrics lane")
        return count


async def last_validations(metrics: MetricsLane, tasks: Sequence[TaskId]) -> list[Validated]:
    """The validations that the chiefs of these tasks reported last, by task and epoch, as they were reported."""
    found = await metrics.each(tasks, lambda task: metrics.last_reported(task, VALIDATION))
    return [
        said
        for task, sources in zip(tasks, found, strict=True)
        for source, points in sources
        if (source.member.role, source.member.rank) == (ROLE, 0)
        for said in validations(task, source.fence.epoch, points)
    ]


def validations(task: str, epoch: int, points: Iterable[MetricPoint]) -> Iterable[Validated]:
    """What is said of these points, one word for each step, in the order in which they came."""
    steps: dict[int, dict[str, float]] = {}
    times: dict[int, float] = {}
    for point in points:
        if point.group == VALIDATION:
            steps.setdefault(point.step, {}).update(numbers(point.values))
            times[point.step] = point.at
    for step, found in steps.items():
        yield Validated(task=task, epoch=epoch, step=step, values=found, at=times[step])


def numbers(values: dict[str, Value]) -> dict[str, float]:
    """The numbers among values, NaN and the infinities too; no texts, and no truth values in disguise."""
    found: dict[str, float] = {}
    for name, value in values.items():
        meant = heard(value)
        if isinstance(meant, int | float) and not isinstance(meant, bool):
            try:
                found[name] = float(meant)
            except OverflowError:
                continue
    return found
