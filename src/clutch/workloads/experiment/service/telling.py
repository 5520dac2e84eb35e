"""Words on their way to an experiment's controller. One that is over is opened again from its archive to hear them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from clutch.backends.journal.base import FullJournal
from clutch.master.loop import Loop
from clutch.wire import events as e
from clutch.wire.errors import Conflict, NotFound
from clutch.wire.experiment_open import reopen
from clutch.wire.experiment_views import ExperimentArchive
from clutch.wire.experiment_words import Said, say
from clutch.wire.experiments import KIND

TRIES = 5


class Teller:
    """Says things to experiments; what is said is durable when it returns."""

    def __init__(self, loop: Loop, journal: FullJournal) -> None:
        self._loop = loop
        self._journal = journal
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    async def tell(self, experiment: str, said: Said, cause: str) -> None:
        """To one that lives. ``NotFound`` when it does not."""
        await self._loop.ask(e.TellController(cause=cause, controller=experiment, payload=say(said)))

    def is_live(self, experiment: str) -> bool:
        return experiment in self._loop.state.workloads

    async def tell_any(self, experiment: str, said: Said, cause: str) -> None:
        """To one that lives or is over. ``NotFound`` when there is none.

        An archive is read and opened by one caller at a time, and only after the loop has said that the experiment is
        not live: nobody opens it from an archive that another has replaced since.
        """
        for _ in range(TRIES):
            try:
                await self.tell(experiment, said, cause)
                return
            except NotFound as error:
                if not _is_over(error, experiment):
                    raise
            async with self._alone(experiment):
                if not self.is_live(experiment):
                    await self._reopen(experiment, cause)
                try:
                    await self.tell(experiment, said, cause)
                    return
                except NotFound as error:
                    if not _is_over(error, experiment):
                        raise
        raise Conflict("it ends and is opened again all the time", object=f"experiment {experiment}")

    async def _reopen(self, experiment: str, cause: str) -> None:
        archive = await self._journal.view(ExperimentArchive.table, experiment)
        if not isinstance(archive, ExperimentArchive):
            raise NotFound(
                "there is no such experiment, or it was deleted",
                object=f"experiment {experiment}",
                next_step="List experiments with 'clutch experiment list --all'.",
            )
        spec = reopen(archive.payload)
        try:
            await self._loop.ask(e.OpenController(cause=cause, controller=experiment, kind=KIND, spec=spec))
        except Conflict:
            if not self.is_live(experiment):
                raise

    @asynccontextmanager
    async def _alone(self, experiment: str) -> AsyncIterator[None]:
        lock, users = self._locks.get(experiment, (asyncio.Lock(), 0))
        self._locks[experiment] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[experiment]
            if users == 1:
                del self._locks[experiment]
            else:
                self._locks[experiment] = (lock, users - 1)


def _is_over(error: NotFound, experiment: str) -> bool:
    """Whether the loop said that nothing of this id lives, and not the experiment that something in it is missing."""
    return error.object == f"workload {experiment}"
