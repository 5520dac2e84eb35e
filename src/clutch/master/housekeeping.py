"""What a leading master does now and then: ends what nobody uses, removes output that is old or too much."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from clutch.core.recorded import Recorded
from clutch.master.output.lane import OutputLane
from clutch.master.services import Services
from clutch.wire import events as e
from clutch.wire.errors import ClutchError
from clutch.wire.facts import TaskEnded
from clutch.wire.output import RetentionPolicy
from clutch.wire.schedule import PreemptReason

LOOK_S = 2.0
RETAIN_S = 60.0

log = structlog.get_logger("clutch.master.housekeeping")


class Ends:
    """Tells those who follow a task's output that it has ended, so that they end too."""

    def __init__(self, output: OutputLane) -> None:
        self._output = output

    def heard(self, recorded: Sequence[Recorded]) -> None:
        for entry in recorded:
            if isinstance(entry.fact, TaskEnded):
                self._output.wake(entry.fact.task)


class Housekeeping:
    """Cancel ``run`` with the master that it belongs to."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._retained_at = 0.0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._end_unused()
                now = self._services.clock.now()
                if now - self._retained_at >= RETAIN_S:
                    self._retained_at = now
                    await self._retain(now)
            except ClutchError as error:
                log.warning("housekeeping failed and is tried again", error=str(error))

    async def _end_unused(self) -> None:
        services = self._services
        for task in services.proxy.idle.unused(services.loop.state, services.clock.now()):
            log.info("nobody has used it for its idle timeout", task=task)
            await services.loop.ask(e.Cancel(cause="idle timeout", task=task, reason=PreemptReason.STOPPED))

    async def _retain(self, now: float) -> None:
        services, settings = self._services, self._services.settings
        policy = RetentionPolicy(age_max_s=settings.output_max_age_s, size_max_bytes=settings.output_max_bytes)
        await services.output.retain(policy, now, lambda task: task in services.loop.state.tasks)
