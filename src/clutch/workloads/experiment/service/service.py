"""All that a master does for experiments, put together once: the value that their routes ask for.

``open_experiments`` ties it to the parts of a master: it listens to the loop, to the metrics lane and to the output
lane, speaks for detached runs, and has something to do while its master leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar, cast

import structlog

from clutch.core.recorded import Recorded
from clutch.master.push.checkpoints import check_metadata
from clutch.master.services import Services
from clutch.wire.errors import BadRequest, ClutchError, Conflict, IllegalMove, NotFound
from clutch.wire.experiment_api import AnswerSearch, ChangeMetadata
from clutch.wire.experiment_views import CheckpointRow, ExperimentView
from clutch.wire.experiment_words import (
    ContinueExperiment,
    DescribeCheckpoint,
    EditExperiment,
    PinCheckpoints,
    Said,
    holder_of,
)
from clutch.wire.experiments import KIND, CheckpointState, trial_of
from clutch.wire.facts import ControllerClosed
from clutch.wire.ids import TaskId
from clutch.wire.metadata import words
from clutch.workloads.experiment.controller.own import Own
from clutch.workloads.experiment.controller.sources import foreign, sources
from clutch.workloads.experiment.service.continuations import Continuations
from clutch.workloads.experiment.service.detached import Detached
from clutch.workloads.experiment.service.feeding import Feeder
from clutch.workloads.experiment.service.forgetting import Forgetting
from clutch.workloads.experiment.service.looking import own_of
from clutch.workloads.experiment.service.own import whole_of
from clutch.workloads.experiment.service.rules import OutputRules
from clutch.workloads.experiment.service.submitting import Submitting
from clutch.workloads.experiment.service.telling import Teller
from clutch.workloads.experiment.service.trial_words import TrialWords
from clutch.workloads.experiment.service.warm_starts import wanted_sources

T = TypeVar("T")
AGAIN_S = 1.0

log = structlog.get_logger("clutch.experiments")


class Kept(Protocol):
    """What the library keeps for experiments."""

    async def layers(self, workspace: str, template: str = "") -> list[dict[str, Any]]:
        """What a configuration of this workspace is laid over, the nearest first."""
        ...

    async def holding(self, checkpoint: str, holder: str, do: Callable[[], Awaitable[T]]) -> T:
        """Do what needs the checkpoint held, with it held, until it is released."""
        ...

    async def needing(self, checkpoints: Sequence[str], holder: str, do: Callable[[], Awaitable[T]]) -> T:
        """Do what may need these checkpoints held, with them held; those that an experiment needs then stay so, until
        they are released."""
        ...


class ExperimentService:
    """Experiments of one master. ``lead`` runs while it leads."""

    def __init__(self, services: Services, kept: Kept | None = None) -> None:
        self.services = services
        self._kept = kept
        self.teller = Teller(services.loop, services.journal)
        self.feeder = Feeder(services, self.teller)
        self.rules = OutputRules(services, self.teller)
        self.words = TrialWords(services, self.teller)
        self.detached = Detached(services, self.teller)
        self.forgetting = Forgetting(services, self.teller)
        self.continuations = Continuations(services)
        self.submitting = Submitting(services, kept)

    def heard(self, recorded: Sequence[Recorded]) -> None:
        """The loop has made these facts durable."""
        for entry in recorded:
            if isinstance(entry.fact, ControllerClosed):  # whoever follows what it prints need not wait any more
                self.services.output.wake(TaskId(entry.fact.controller))
        self.words.heard(recorded)
        self.forgetting.heard(recorded)
        self.continuations.heard(recorded)

    async def lead(self) -> None:
        """What a leading master does for experiments, until it is cancelled."""
        await self.services.loop.serving.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._recover())
            group.create_task(self.forgetting.run())
            group.create_task(self.continuations.run())
            group.create_task(self.detached.run())

    async def _recover(self) -> None:
        """A master before us may have died between a lane's commit and the experiment's decision."""
        while True:
            try:
                count = await self.feeder.recover()
            except ClutchError as error:
                log.warning("validations cannot be told again now", error=str(error))
                await asyncio.sleep(AGAIN_S)
                continue
            if count:
                log.info("validations were told again", count=count)
            return

    async def close(self) -> None:
        await self.rules.close()

    # -- saying something to an experiment -----------------------------------------------------------------------

    async def tell(self, experiment: str, said: Said, cause: str) -> None:
        """To one that lives or is over."""
        await self.teller.tell_any(experiment, said, cause)

    async def tell_live(self, experiment: str, said: Said, cause: str) -> None:
        """To one that must live. ``IllegalMove`` when it is over."""
        try:
            await self.teller.tell(experiment, said, cause)
        except NotFound as error:
            if error.object != f"workload {experiment}":
                raise
            raise IllegalMove(
                "it is over",
                object=f"experiment {experiment}",
                next_step="Continue it with 'clutch experiment continue'.",
            ) from error

    async def edit(self, view: ExperimentView, edit: EditExperiment, cause: str) -> None:
        """What is edited must be possible where the experiment stands: a project of its workspace that takes more."""
        if edit.project:
            project = await self.services.access.store.projects.get(view.workspace, edit.project)
            if project.archived:
                raise Conflict(
                    "it is archived and takes nothing new", object=f"project {view.workspace}/{edit.project}"
                )
        await self.tell(view.key, edit, cause)

    async def go_on(self, view: ExperimentView, more: ContinueExperiment, cause: str) -> None:
        """More work for one that is over. What its trials began from is held again, if it is still there."""
        there = []
        for source in foreign(await whole_of(self.services, view.key)):
            row = await self.checkpoint(source)
            if row is not None and row.state == CheckpointState.COMMITTED:
                there.append(source)
        await self._needing(view.key, there, lambda: self.tell(view.key, more, cause))

    async def answer_search(self, experiment: str, said: AnswerSearch, cause: str) -> None:
        """What a custom search's process wants. The checkpoints of others from which its new trials begin are held
        from before that is durable: their own retention must not take them before the trials have read them."""
        own = (await self.services.loop.settled()).workloads.get(experiment)
        there: tuple[str, ...] = ()
        if own is not None and own.kind == KIND:
            there = await wanted_sources(self.services, cast(Own, own.own), said)
        await self._needing(experiment, there, lambda: self.words.answer_search(experiment, said, cause))

    async def _needing(self, experiment: str, sources: Sequence[str], do: Callable[[], Awaitable[None]]) -> None:
        if self._kept is None or not sources:
            await do()
        else:
            await self._kept.needing(sources, holder_of(experiment), do)

    # -- what others need of checkpoints -------------------------------------------------------------------------

    async def checkpoint(self, checkpoint: str) -> CheckpointRow | None:
        found = await self.services.journal.view(CheckpointRow.table, checkpoint)
        return found if isinstance(found, CheckpointRow) else None

    async def describe(self, row: CheckpointRow, change: ChangeMetadata, cause: str) -> None:
        """Something else is said of a checkpoint. Of one that a run still writes nobody says anything but the run:
        it is not known before it is committed."""
        subject = f"checkpoint {row.key}"
        both = sorted(set(change.set) & set(change.remove))
        if both:
            raise BadRequest(f"{both[0][:80]!a} is set and removed at once", object=subject, path="remove")
        said = words(change.set, subject)
        check_metadata(subject, said)
        base = (await self.services.push.checkpoints.manifest(TaskId(row.task), row.key)).metadata
        word = DescribeCheckpoint(checkpoint=row.key, base=base, set=said, remove=change.remove)
        await self.tell(row.experiment, word, cause)

    async def described(self, task: TaskId, checkpoint: str) -> dict[str, str] | None:
        """What is said of it since that was changed; None: what its manifest says."""
        found = trial_of(task)
        if found is None:
            return None
        try:
            one = (await own_of(self.services, found[0])).checkpoints.get(checkpoint)
        except NotFound:
            return None
        return one.metadata if one is not None else None

    async def needs(self, checkpoint: str, holder: str) -> bool:
        """Whether the holder is an experiment that is not over and begins from this checkpoint."""
        experiment = holder.removeprefix(holder_of(""))
        workload = (await self.services.loop.settled()).workloads.get(experiment)
        if holder != holder_of(experiment) or workload is None or workload.kind != KIND:
            return False
        own = cast(Own, workload.own)
        return not own.exp.ended and checkpoint in sources(own)

    async def pin(self, checkpoints: tuple[str, ...], by: str, hold: bool) -> None:
        """``by`` holds these checkpoints from now on, or no longer does. Saying it twice is saying it once.

        ``NotFound`` names one that is not there; those of other experiments may have been said by then.
        """
        of: dict[str, list[str]] = {}
        for checkpoint in checkpoints:
            row = await self.checkpoint(checkpoint)
            if row is None:
                raise NotFound("there is no such checkpoint", object=f"checkpoint {checkpoint}")
            of.setdefault(row.experiment, []).append(checkpoint)
        for experiment, mine in of.items():
            await self.tell(experiment, PinCheckpoints(tuple(mine), by, hold), f"pin:{by}")


def open_experiments(services: Services, kept: Kept | None = None) -> ExperimentService:
    """The experiments of a master, tied to its lanes, its push service and its loop."""
    found = ExperimentService(services, kept)
    services.push.after_metrics.append(found.feeder.after_metrics)
    services.push.guest = found.detached.guest
    services.push.checkpoints.decide_guest = found.detached.saved
    services.push.checkpoints.described = found.described
    services.output.watchers.append(found.rules.watch)
    services.loop.listeners.append(found.heard)
    return found
