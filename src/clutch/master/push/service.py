"""The push API behind its routes: everything a member may say, about its own allocation, as its own incarnation.

A member is known by its token: which member, which fence. Each call first asks where it stands (``Stale`` when it is
not current any more), and a call that waits asks again each time it wakes. What is durable goes through the loop or a
lane of its own; what is soft (progress, who waits where) is in memory and lost with this master.

    Push(loop, blobs, metrics, clock)      loop.listeners.append(push.heard)      run() tidies, close() ends all waits
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from clutch.backends.blobs.base import FullBlobs
from clutch.core.recorded import Recorded
from clutch.core.state import State
from clutch.master.loop import Clock, Loop
from clutch.master.metrics_lane.lane import MetricsLane
from clutch.master.push.bells import Bells
from clutch.master.push.checkpoints import Checkpoints
from clutch.master.push.lead import Lead
from clutch.master.push.left import LeftMetrics
from clutch.master.push.meetings import FOLDER as MEETINGS
from clutch.master.push.meetings import RENDEZVOUS, Coming, Meetings, round_name
from clutch.master.push.names import FOLDER as NAMES
from clutch.master.push.names import NamesService, first_token, task_scope
from clutch.master.push.roster import check_announce, missing_names, roster_of
from clutch.master.push.served import Shelves
from clutch.master.push.standing import Speaker, Standing
from clutch.wire import events as e
from clutch.wire import facts as f
from clutch.wire.errors import BadRequest, ClutchError, TooLarge
from clutch.wire.ids import Fence, MemberId, TaskId
from clutch.wire.metrics import MetricBatch
from clutch.wire.push import (
    GATHER_MAX_BYTES,
    MEETING_MAX_S,
    POLL_MAX_S,
    Announce,
    BeginCheckpoint,
    CheckpointBegun,
    CheckpointView,
    CommitManifest,
    Gather,
    Gathered,
    MetricsTaken,
    Preemption,
    Progress,
    ProgressView,
    PushMetrics,
    Roster,
    RunInfo,
)

TIDY_S = 60.0
TRASH_MAX = 100_000
MESSAGE_MAX = 1_000

Member = tuple[MemberId, Fence]
AfterMetrics = Callable[[MemberId, Fence, tuple[MetricBatch, ...]], Awaitable[None]]
Guest = Callable[[State, MemberId, Fence], Speaker | None]

WAKING = (
    f.LeaveAsked, f.LeaveAcked, f.MemberLeaveAsked, f.MemberEnding, f.MemberExited, f.MemberLost, f.MemberWanted,
    f.MemberRemoved, f.RoleResized, f.AllocationEnding, f.AllocationEnded, f.TaskEnded,
)  # fmt: skip
"""Facts that change where a waiting member stands."""


class Push:
    """All that members say. One per master."""

    def __init__(
        self,
        loop: Loop,
        blobs: FullBlobs,
        metrics: MetricsLane,
        clock: Clock,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.loop = loop
        self.blobs = blobs
        self.bells = Bells()
        self.lead = Lead(loop)
        self.checkpoints = Checkpoints(loop, blobs, clock.now)
        self.names = NamesService(blobs, monotonic, self.bells, self.lead.confirm, self._first_token)
        self.shelves = Shelves(blobs, clock.now)
        self.meetings = Meetings(blobs, clock.now, self.bells, self._discard)
        self.after_metrics: list[AfterMetrics] = []
        """Awaited when batches are durable and before that is said; the member hears what they raise."""
        self.left = LeftMetrics(loop, metrics, self.after_metrics)
        self.guest: Guest = lambda state, member, fence: None
        """Who speaks under a name that no task has."""
        self._metrics = metrics
        self._clock = clock
        self._progress: dict[TaskId, ProgressView] = {}
        self._trash: deque[str] = deque(maxlen=TRASH_MAX)
        self._swept = False

    # -- life ----------------------------------------------------------------------------------------------------

    def heard(self, recorded: Iterable[Recorded]) -> None:
        """The loop has made these facts durable: wake whom they concern, let go of what is over."""
        woken: dict[TaskId, None] = {}
        for entry in recorded:
            fact = entry.fact
            if isinstance(fact, WAKING):
                woken[fact.task if hasattr(fact, "task") else fact.member.task] = None
            if isinstance(fact, f.CheckpointCommitted):
                self.checkpoints.heard(fact.checkpoint)
            elif isinstance(fact, f.AllocationEnded):
                self._progress.pop(fact.task, None)
                self._trash.append(f"{self.meetings.drop(fact.task, fact.epoch)}/")
            elif isinstance(fact, f.TaskEnded):
                self._trash.append(f"{self.names.drop(task_scope(fact.task))}/")
        for task in woken:
            self.bells.ring(task)

    async def run(self) -> None:
        """Takes away what is over, now and then, until cancelled; a store that is down is tried again."""
        try:
            while True:
                await asyncio.sleep(TIDY_S)
                await self.tidy()
        finally:
            self.close()

    async def tidy(self) -> None:
        """Take away what is over, once."""
        try:
            if not self.loop.serving.is_set():
                return
            if not self._swept:
                await self._find_dead()
                self._swept = True
            await self.names.tidy()
            while self._trash:
                await self._empty(self._trash[0])
                self._trash.popleft()
        except ClutchError:
            return  # the store does not answer; what is over waits for the next time

    async def _empty(self, key: str) -> None:
        if not key.endswith("/"):
            await self.blobs.delete(key)
            return
        keys = [listed.key async for page in self.blobs.list(key) for listed in page]
        for found in keys:
            await self.blobs.delete(found)

    async def _find_dead(self) -> None:
        """What a master before us did not come to take away."""
        state = await self.loop.settled()
        live = {f"{MEETINGS}/{task}/{allocation.epoch}/" for task, allocation in state.allocations.items()}
        live |= {f"{NAMES}/{task_scope(task)}/" for task in state.tasks}
        dead: dict[str, None] = {}
        for folder, depth in ((MEETINGS, 4), (f"{NAMES}/task", 4)):
            async for page in self.blobs.list(folder):
                for listed in page:
                    dead["/".join(listed.key.split("/")[:depth]) + "/"] = None
        self._trash.extend(folder for folder in dead if folder not in live)

    def close(self) -> None:
        """This master ends: every call that waits is answered now, with ``Unavailable``."""
        self.bells.close()

    def _discard(self, key: str) -> None:
        self._trash.append(key)

    def _first_token(self) -> int:
        return first_token(self.loop.state.generation, self.loop.state.term)

    # -- where a member stands -----------------------------------------------------------------------------------

    def stand(self, member: Member) -> Standing:
        """Where a member stands in the live state; ``Stale`` when it is not current."""
        return self._standing(self.loop.state, *member)

    async def standing(self, member: Member) -> Standing:
        """The same at a moment when everything it is read from is durable. Use it before you wait again."""
        return self._standing(await self.loop.settled(), *member)

    def _standing(self, state: State, member: MemberId, fence: Fence) -> Standing:
        guest = None if member.task in state.tasks else self.guest(state, member, fence)
        return Standing(state, member, fence, guest)

    def progress_of(self, task: TaskId) -> ProgressView | None:
        """What a member of the task said last of how far it is."""
        return self._progress.get(task)

    # -- what members say ----------------------------------------------------------------------------------------

    async def rendezvous(self, member: Member, said: Announce) -> Roster:
        check_announce(said)
        where = msgspec.structs.replace(said, timeout_s=0.0, within_s=0.0)  # its wait is its own business
        coming = Coming(msgspec.msgpack.encode(where), poll_s(said.timeout_s), meeting_s(said.within_s))
        answer, barrier = await self.meetings.come(lambda: self.stand(member), RENDEZVOUS, coming)
        return roster_of(await self.standing(member), barrier, answer)

    async def all_gather(self, member: Member, said: Gather) -> Gathered:
        if len(said.data) > GATHER_MAX_BYTES:
            raise TooLarge(
                f"{len(said.data)} bytes, at most {GATHER_MAX_BYTES} a member",
                object="all_gather",
                path="data",
                next_step="Keep the bytes in blobs and gather their keys, or use the transports.",
            )
        coming = Coming(said.data, poll_s(said.timeout_s), meeting_s(said.within_s))
        name = round_name(said.round)
        answer, barrier = await self.meetings.come(lambda: self.stand(member), name, coming)
        if answer is None:
            return Gathered(ready=False, missing=missing_names(barrier))
        return Gathered(ready=True, data=answer.data)

    async def preemption(self, member: Member, timeout_s: float) -> Preemption:
        """Whether it must leave, as soon as that is so; at once when it already is."""
        loop = asyncio.get_running_loop()
        until = loop.time() + poll_s(timeout_s)
        while True:
            answer = (await self.standing(member)).preemption(self._clock.now())
            left = until - loop.time()
            if answer.asked or left <= 0:
                return answer
            await self.bells.wait(member[0].task, left)

    async def acknowledge(self, member: Member) -> Preemption:
        """It has seen that it must leave; exit 0 now means that it left and not that it is done."""
        identity, fence = member
        await self.loop.ask(
            e.AckLeave(cause=f"task:{identity}", task=identity.task, member=identity, fence=fence)
        )  # fmt: skip
        return (await self.standing(member)).preemption(self._clock.now())

    async def finished(self, member: Member) -> None:
        """The work is complete: exit 0 means done, whatever was acknowledged."""
        identity, fence = member
        await self.loop.ask(
            e.DeclareFinished(cause=f"task:{identity}", task=identity.task, member=identity, fence=fence)
        )

    async def metrics(self, member: Member, said: PushMetrics) -> MetricsTaken:
        identity, fence = member
        self.stand(member)
        sequence = await self._metrics.write(identity, fence, said.batches)
        for after in self.after_metrics:
            await after(identity, fence, said.batches)
        return MetricsTaken(sequence=sequence)

    def progress(self, member: Member, said: Progress) -> None:
        if not 0.0 <= said.fraction <= 1.0:
            raise BadRequest(f"{said.fraction} is not from 0 to 1", object="progress", path="fraction")
        if len(said.message) > MESSAGE_MAX:
            raise TooLarge(f"more than {MESSAGE_MAX} characters", object="progress", path="message")
        self.stand(member)
        self._progress[member[0].task] = ProgressView(
            fraction=said.fraction, message=said.message, member=str(member[0]), at=self._clock.now()
        )

    async def begin_checkpoint(self, member: Member, said: BeginCheckpoint) -> CheckpointBegun:
        return self.checkpoints.begin(await self.standing(member), said)

    async def commit_checkpoint(self, member: Member, checkpoint: str, said: CommitManifest) -> CheckpointView:
        return await self.checkpoints.commit(await self.standing(member), checkpoint, said)

    async def info(self, member: Member) -> RunInfo:
        return (await self.standing(member)).info(self._clock.now())


def poll_s(timeout_s: float) -> float:
    """How long a call may wait: what was asked, at most ``POLL_MAX_S``."""
    if not 0 <= timeout_s < float("inf"):
        raise BadRequest(f"a wait of {timeout_s} s", object="poll", path="timeout_s", next_step="Give 0 to 60 seconds.")
    return min(timeout_s, POLL_MAX_S)


def meeting_s(within_s: float) -> float:
    if not 0 < within_s <= MEETING_MAX_S:
        raise BadRequest(
            f"a meeting of {within_s} s",
            object="meeting",
            path="within_s",
            next_step=f"Give up to {MEETING_MAX_S:.0f}.",
        )
    return within_s
