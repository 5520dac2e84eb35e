"""Detached runs: a program that nobody schedules speaks like a member, under a token of its own, until it is silent.

Its experiment has one trial and no task. Who it is, is signed into its token as for every member: task, role, rank and
fence; the fence's epoch is the trial's, so an earlier start of the same run is refused as soon as a later one begins.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import structlog

from clutch.core.allocation import Allocation
from clutch.core.member import Member
from clutch.core.state import State
from clutch.core.task import Task
from clutch.master.push.standing import Speaker, Standing
from clutch.master.services import Services
from clutch.wire.errors import ClutchError, Conflict, NotFound, Stale
from clutch.wire.experiment_api import DetachedBegun, DetachedOutput, EndDetached
from clutch.wire.experiment_views import TrialView
from clutch.wire.experiment_words import DetachedBegan, DetachedEnded, DetachedSaved
from clutch.wire.experiments import KIND, ROLE, TRIAL, trial_of, trial_task
from clutch.wire.ids import Fence, MemberId, PoolName, TaskId
from clutch.wire.link import OutputPiece
from clutch.wire.outcomes import AllocationState, MemberState, TaskState
from clutch.wire.push import CheckpointView
from clutch.wire.resources import Resources
from clutch.wire.specs import Members, RoleSpec, TaskSpec
from clutch.workloads.experiment.service.own import detached_epoch, spec_in
from clutch.workloads.experiment.service.telling import Teller

SILENT_S = 300.0
"""A run of which nobody has heard for so long has failed."""
HEARTBEAT_S = 60.0
LOOK_S = 10.0

log = structlog.get_logger("clutch.experiments")


class Detached:
    """``guest`` is asked by the push service, ``is_live`` by the door, ``run`` ends those who fell silent."""

    def __init__(self, services: Services, teller: Teller) -> None:
        self._services = services
        self._teller = teller
        self._heard_at: dict[str, float] = {}
        """By experiment; soft: a new master gives everybody its patience anew."""

    # -- who speaks ----------------------------------------------------------------------------------------------

    def is_live(self, state: State, member: MemberId, fence: Fence) -> bool:
        return self._own(state, member, fence) is not None

    def has_live(self, state: State, task: str) -> bool:
        """Whether output of this task may still come, though it is no task of the cluster's."""
        found = trial_of(task)
        workload = state.workloads.get(found[0]) if found is not None else None
        return workload is not None and workload.kind == KIND and detached_epoch(workload.own) is not None

    def _own(self, state: State, member: MemberId, fence: Fence) -> Any:
        found = trial_of(member.task)
        if found is None or (member.role, member.rank, fence.incarnation) != (ROLE, 0, 1):
            return None
        workload = state.workloads.get(found[0])
        if workload is None or workload.kind != KIND or member.task != trial_task(found[0], 1):
            return None
        is_current = detached_epoch(workload.own) == fence.epoch and fence.generation == state.generation
        return workload.own if is_current else None

    def guest(self, state: State, member: MemberId, fence: Fence) -> Speaker | None:
        """A detached run that may speak now. ``Stale`` for one that is over; None for what never was one."""
        own = self._own(state, member, fence)
        if own is None:
            found = trial_of(member.task)
            workload = state.workloads.get(found[0]) if found is not None else None
            if workload is not None and workload.kind == KIND and spec_in(workload.own).detached:
                raise Stale(
                    f"it writes as {fence}; the run has ended or was begun again",
                    object=f"member {member}",
                    next_step="Stop: another start has taken over.",
                )
            return None
        experiment, _, _ = member.task.rpartition(".")
        self._heard_at[experiment] = time.monotonic()
        spec = spec_in(own)
        role = RoleSpec(ROLE, Members(count=1, each=Resources()))
        task = Task(
            task=member.task,
            spec=TaskSpec(
                kind=TRIAL,
                name=spec.name,
                pool=PoolName(""),
                roles=(role,),
                owner=spec.owner,
                workspace=spec.workspace,
                project=spec.project,
            ),
            order=0,
            submitted_at=0.0,
            state=TaskState.RUNNING,
            epoch=fence.epoch,
        )
        allocation = Allocation(
            task=member.task, epoch=fence.epoch, state=AllocationState.RUNNING, members=(member,), began_at=0.0
        )
        speaks = Member(member=member, epoch=fence.epoch, incarnation=1, state=MemberState.RUNNING)
        return Speaker(task=task, allocation=allocation, member=speaks)

    # -- its life ------------------------------------------------------------------------------------------------

    async def begin(self, experiment: str, cause: str) -> DetachedBegun:
        """It has started (again), in a new epoch: its token, and from where it goes on."""
        await self._teller.tell_any(experiment, DetachedBegan(), cause)
        state = await self._services.loop.settled()
        workload = state.workloads.get(experiment)
        epoch = detached_epoch(workload.own) if workload is not None else None
        if epoch is None:
            raise Conflict("it was ended at the same moment", object=f"experiment {experiment}", next_step="Try again.")
        task = TaskId(trial_task(experiment, 1))
        member, fence = MemberId(task, ROLE, 0), Fence(state.generation, epoch, 1)
        self._heard_at[experiment] = time.monotonic()
        trial = await self._services.journal.view(TrialView.table, task)
        known = trial if isinstance(trial, TrialView) else None
        if epoch > 1:
            step = known.checkpoint_step if known is not None and known.checkpoint else -1
            await self._services.metrics.resumed(task, epoch, step)
        return DetachedBegun(
            experiment=experiment,
            trial=task,
            task=task,
            epoch=epoch,
            token=self._services.access.task_token(member, fence),
            checkpoint=known.checkpoint if known is not None else "",
            checkpoint_step=known.checkpoint_step if known is not None else 0,
            heartbeat_s=HEARTBEAT_S,
        )

    async def saved(self, standing: Standing, view: CheckpointView) -> None:
        """A checkpoint of a detached run is whole in its store: its experiment hears it as a fact."""
        member = standing.member.member
        experiment, _, _ = member.task.rpartition(".")
        word = DetachedSaved(
            epoch=standing.fence.epoch,
            checkpoint=view.id,
            step=view.step,
            size_bytes=view.size_bytes,
            storage=view.storage,
        )
        await self._teller.tell(experiment, word, f"task:{member}")

    async def output(self, member: tuple[MemberId, Fence], said: DetachedOutput) -> int:
        """Keep what it printed; the offset up to which its stream is durable."""
        identity, fence = member
        if not self._services.push.stand(member).is_guest:
            raise Conflict(
                "its agent reads what it prints",
                object=f"member {identity}",
                next_step="Only a detached run sends its output itself.",
            )
        piece = OutputPiece(identity, fence, said.stream, said.offset, said.at, said.data)
        (committed,) = await self._services.output.write([piece])
        return committed.stdout if said.stream == "stdout" else committed.stderr

    async def ended(self, member: tuple[MemberId, Fence], said: EndDetached) -> None:
        identity, fence = member
        if not self._services.push.stand(member).is_guest:
            raise Conflict("the cluster sees itself how it ends", object=f"member {identity}", next_step="Just exit.")
        experiment, _, _ = identity.task.rpartition(".")
        word = DetachedEnded(epoch=fence.epoch, failed=said.failed, detail=said.detail[:2_000])
        await self._teller.tell(experiment, word, f"task:{identity}")
        self._services.output.wake(identity.task)

    async def run(self) -> None:
        """End those who have been silent for too long, until cancelled."""
        while True:
            try:
                await self.look(time.monotonic())
            except ClutchError as error:
                log.warning("silent runs cannot be ended now", error=str(error))
            await asyncio.sleep(LOOK_S)

    async def look(self, now: float) -> None:
        """Once."""
        state = await self._services.loop.settled()
        live = {
            workload.controller: epoch
            for workload in state.workloads.values()
            if workload.kind == KIND and (epoch := detached_epoch(workload.own)) is not None
        }
        self._heard_at = {one: self._heard_at.get(one, now) for one in live}
        for experiment, epoch in live.items():
            if now - self._heard_at[experiment] < SILENT_S:
                continue
            word = DetachedEnded(epoch=epoch, failed=True, detail=f"nothing was heard of it for {SILENT_S:.0f} s")
            try:
                await self._teller.tell(experiment, word, "master:silence")
            except NotFound:
                continue
            self._services.output.wake(TaskId(trial_task(experiment, 1)))
