"""The master's loop: take a batch of events, decide, write, act, answer. In that order, always.

Facts are folded into the live state as they are decided, because later decisions of the same batch build on them; but
the state is the loop's own, and nothing of it leaves this process (no effect, no answer, no view) before the batch is
durable. If the write fails, the process ends: its state is then ahead of the journal and must not be used again.

The loop knows a journal, a clock and a way to say something to an agent. It runs unchanged in the simulator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from random import Random
from time import perf_counter
from typing import Any, Protocol

import msgspec

from clutch.backends.journal.base import Journal, Maintenance, Views
from clutch.core.autoscale import ScalePlan
from clutch.core.brain import decide, noticed, told
from clutch.core.controller import Controller
from clutch.core.decisions.controllers import News
from clutch.core.decisions.machines import provision
from clutch.core.decisions.scheduling import schedule
from clutch.core.fold import apply
from clutch.core.freezing import freeze, thaw
from clutch.core.outbox import outbox
from clutch.core.projection import project
from clutch.core.recorded import Recorded, from_row, to_row
from clutch.core.scheduling.plan import Plan
from clutch.core.state import State, Touched
from clutch.core.wanted import may_be_ordered, wanted
from clutch.master.contacts import Contacts, Heard
from clutch.wire import events as e
from clutch.wire.errors import BrokenInvariant, ClutchError, Conflict, Unavailable
from clutch.wire.facts import AllocationEnded, Fact, MemberExited
from clutch.wire.ids import MemberId, NodeId, PoolName
from clutch.wire.journal import Batch, Leadership
from clutch.wire.messages import Hello, Refusal, Report, Wanted
from clutch.wire.views import TaskView

READ_ROWS = 10_000
TRIES_A_LEAD = 12
"""So often a standby asks for the lead while one lasts: what it waits too long is added to every take-over."""


class Clock(Protocol):
    """Wall-clock seconds. May jump; the loop never lets decided time run backwards."""

    def now(self) -> float: ...


class Links(Protocol):
    """A way to say something to a node's agent. It may be lost; what matters is said again."""

    def say(self, node: NodeId, message: Hello | Wanted | Refusal) -> None: ...


class LoopSettings(msgspec.Struct, frozen=True):
    holder: str
    """Who leads, in words; unique to this process."""
    lead_s: float = 3.0
    """How long the lead lasts when it is not renewed; it is renewed three times as often."""
    beat_s: float = 1.0
    """At least so often the loop looks at the time, at silent nodes and at what must be said again."""
    suspect_after_s: float = 3.0
    batch_max: int = 500
    queue_max: int = 10_000
    snapshot_rows: int = 20_000
    rows_kept: int = 1_000_000
    """Rows kept behind the older of the two snapshots, for stories; what is older is forgotten."""


class Turn(msgspec.Struct, frozen=True):
    """What one turn cost, for those who measure."""

    events: int
    facts: int
    decide_s: float
    commit_s: float


class _Pending:
    """An event on its way in, and who waits for its answer."""

    __slots__ = ("answer", "error", "event", "facts")

    def __init__(self, event: e.Event, answer: asyncio.Future[Any] | None) -> None:
        self.event = event
        self.answer = answer
        self.error: ClutchError | None = None
        self.facts = 0


class Loop:
    """One master. ``run`` leads until it is stopped or replaced."""

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        links: Links,
        controllers: Mapping[str, Controller],
        rng: Random,
        settings: LoopSettings,
    ) -> None:
        self.journal = journal
        self.clock = clock
        self.links = links
        self.controllers = controllers
        self.rng = rng
        self.settings = settings
        self.state = State(controllers)
        self.plans: dict[PoolName, Plan] = {}
        self.scale_plans: dict[PoolName, ScalePlan] = {}
        self.serving = asyncio.Event()
        self.led_at = 0.0
        """Since when this process leads."""
        self.owing = asyncio.Event()
        """Something has come into the outbox. Whoever performs it clears this before looking."""
        self._contacts = Contacts(settings.suspect_after_s, settings.beat_s)
        self._queue: asyncio.Queue[_Pending] = asyncio.Queue(settings.queue_max)
        self._batch: list[_Pending] = []
        self._snapshot_index = 0
        self._ticked_at = 0.0
        self._lanes: dict[MemberId, e.ReachLanes] = {}
        """How far the store is with each member's output and metrics. Soft: lanes say it again to a new master."""
        self.listeners: list[Callable[[Sequence[Recorded]], None]] = []
        """Told what a batch has made so, as soon as it is durable. They may not wait, and may not fail."""
        self.watchers: list[Callable[[Turn], None]] = []
        self._unplanned: dict[PoolName, None] = {}
        """Pools in which a controller wanted something after the scheduler's last pass."""
        self._ahead = False
        """The state holds facts that are not durable yet."""
        self._caught_up = asyncio.Event()
        self._readers = 0
        self._over = False

    # -- the doors -----------------------------------------------------------------------------------------------

    async def ask(self, event: e.Event) -> Any:
        """What the event led to, once that is durable. Raises the error that refused it."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            self._queue.put_nowait(_Pending(event, answer))
        except asyncio.QueueFull:
            raise Unavailable(
                f"{self.settings.queue_max} events wait already", object="master", next_step="Try again in a moment."
            ) from None
        return await answer

    def hear(self, report: Report) -> None:
        """An agent has reported. A report we do not believe is answered with who leads; a full queue drops it."""
        if not self.serving.is_set():
            return
        now = self.clock.now()
        heard = self._contacts.take(report, now)
        if heard is Heard.NEWS:
            self.tell(e.Reported(cause=f"agent:{report.node}", report=report))
        elif heard is Heard.STRANGE:
            hello = self._contacts.greet(report.node, now)
            if hello is not None:
                self.links.say(report.node, hello)

    def tell(self, event: e.Event) -> None:
        """Take an event that nobody waits for. Such events repeat themselves, so a full queue may drop one."""
        if not self._queue.full():
            self._queue.put_nowait(_Pending(event, None))

    async def settled(self) -> State:
        """The live state at a moment when all of it is durable. Take from it what you need before you wait again."""
        self._readers += 1
        try:
            while self._ahead and not self._over:
                await self._caught_up.wait()
            if self._over:
                raise Unavailable("this master has ended", object="master", next_step="Ask again at another address.")
        finally:
            self._readers -= 1
        return self.state

    # -- life ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Wait for the lead, restore, and serve. Returns never; raises ``Stale`` when another has taken over."""
        leadership = await self._take_lead()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_lead())
                group.create_task(self._serve(leadership))
        finally:
            self._leave()

    def _leave(self) -> None:
        """Nobody waits for ever for an answer that will not come. Whether it was carried out, the next master knows."""
        self.serving.clear()
        self._over = True
        self._caught_up.set()
        for pending in [*self._batch, *(self._queue.get_nowait() for _ in range(self._queue.qsize()))]:
            if pending.answer is not None and not pending.answer.done():
                pending.answer.set_exception(
                    Unavailable("this master has ended", object="master", next_step="Ask again at another address.")
                )

    async def _take_lead(self) -> Leadership:
        while True:
            try:
                return await self.journal.lead(self.settings.holder, self.settings.lead_s)
            except Unavailable:
                await asyncio.sleep(self.settings.lead_s / TRIES_A_LEAD)

    async def _keep_lead(self) -> None:
        while True:
            await asyncio.sleep(self.settings.lead_s / 3)
            await self.journal.renew(self.settings.lead_s)

    async def _serve(self, leadership: Leadership) -> None:
        self.state = await restore(self.journal, self.controllers)
        if self.state.index != leadership.last_index:
            raise BrokenInvariant(f"the journal ends at {leadership.last_index}, the fold at {self.state.index}")
        self._snapshot_index = self.state.index
        self._contacts.generation, self._contacts.term = leadership.generation, leadership.term
        begin = e.BeginTerm(
            cause=f"master:{self.settings.holder}", generation=leadership.generation, term=leadership.term
        )
        await self._turn([_Pending(begin, None)])
        self.led_at = self.clock.now()
        self.serving.set()
        while True:
            self._batch = await self._next_batch()
            await self._turn(self._batch)

    async def _next_batch(self) -> list[_Pending]:
        """What has come in, or a tick when something is due and nothing has."""
        due = self._due_at()
        now = self.clock.now()
        wait = self.settings.beat_s if due is None else min(self.settings.beat_s, max(0.0, due - now))
        if self._unplanned or any(plan.more for plan in self.plans.values()):
            wait = 0.0  # a pass stopped at its bound: see who has come meanwhile, then go on
        batch: list[_Pending] = []
        try:
            async with asyncio.timeout(wait):
                batch.append(await self._queue.get())
        except TimeoutError:
            pass
        while len(batch) < self.settings.batch_max and not self._queue.empty():
            batch.append(self._queue.get_nowait())
        now = self.clock.now()
        for node in self._contacts.fallen_silent(now):
            if node in self.state.nodes:
                batch.append(_Pending(e.Silent(cause="timer", node=node), None))
        if (due is not None and due <= now) or now - self._ticked_at >= self.settings.beat_s:
            self._ticked_at = now
            batch.append(_Pending(e.Tick(cause="timer"), None))
        return batch

    def _due_at(self) -> float | None:
        """When something falls due though nothing happens: a deadline, a silence, a plan that time alone changes."""
        again = (plan.again_at for plan in self.plans.values())
        scale = (plan.look_again_at for plan in self.scale_plans.values())
        moments = (self.state.deadlines.next_at(), self._contacts.next_silence_at(), *again, *scale)
        return min((at for at in moments if at is not None), default=None)

    # -- one turn ------------------------------------------------------------------------------------------------

    async def _turn(self, batch: list[_Pending]) -> None:
        await self._refuse_used_names(batch)
        now = max(self.clock.now(), self.state.at)
        began = perf_counter()
        self._ahead = True
        self._caught_up.clear()
        recorded = self._decide(batch, now)
        decided = perf_counter()
        touched = self.state.touched
        self.state.touched = Touched()
        if recorded:
            durable = self._durable(recorded, touched)
            await self._persist(durable)
            if durable.outbox:
                self.owing.set()
        elif any(pending.answer is not None for pending in batch):
            await self.journal.renew(self.settings.lead_s)  # only a leader may say that something is not so
        await self._catch_up(recorded)
        for watcher in self.watchers:
            watcher(Turn(len(batch), len(recorded), decided - began, perf_counter() - decided))
        self._act(touched)
        self._answer(batch)
        await self._snapshot()

    def _durable(self, recorded: list[Recorded], touched: Touched) -> Batch:
        """The facts, the views they change and the effects they owe and settle: all of it, or none, happened."""
        owed = outbox(self.state, recorded)
        rows = tuple(to_row(r) for r in recorded)
        return Batch(rows, project(self.state, touched), owed.items, owed.delivered)

    async def _catch_up(self, recorded: Sequence[Recorded]) -> None:
        """What was decided is durable: say so to those who listen, and let those who wait have their look."""
        self._ahead = False
        self._caught_up.set()
        if recorded:
            for listener in self.listeners:
                listener(recorded)
        if self._readers:
            await asyncio.sleep(0)  # they run before the next turn begins

    async def _refuse_used_names(self, batch: list[_Pending]) -> None:
        """A task's name is used once and never again, or its fences would repeat. The live state forgets what has
        ended; the views do not."""
        if not isinstance(self.journal, Views):
            return
        for pending in batch:
            event = pending.event
            if not isinstance(event, e.Submit) or event.task in self.state.tasks or event.key in self.state.keys:
                continue
            if await self.journal.view(TaskView.table, event.task) is not None:
                pending.error = Conflict(
                    "a task of this name has ended", object=f"task {event.task}", next_step="Choose another name."
                )

    def _decide(self, batch: list[_Pending], now: float) -> list[Recorded]:
        recorded: list[Recorded] = []
        for pending in batch:
            event = pending.event
            if pending.error is not None:
                continue
            try:
                for fact in decide(self.state, event, now, self.rng):
                    pending.facts += 1
                    self._record(recorded, fact, now, event.cause)
            except ClutchError as error:
                if pending.facts:
                    raise BrokenInvariant(f"{type(event).__name__} was refused half-way: {error}") from error
                pending.error = error
            if isinstance(event, e.ReachLanes):
                self._note_lanes(event)
        self._remind_lanes(recorded, now)
        ticked = any(isinstance(pending.event, e.Tick) for pending in batch)
        news: News = []
        for fact in noticed(self.state, schedule(self.state, self._pools_to_plan(ticked), now, self.plans), news):
            self._record(recorded, fact, now, "scheduler")
        self._tell(recorded, news, now)
        for fact in provision(self.state, self._pools_to_scale(now), now, self.scale_plans):
            self._record(recorded, fact, now, "provisioner")
        return recorded

    def _tell(self, recorded: list[Recorded], news: News, now: float) -> None:
        """Controllers hear what the scheduler decided; where they want something new, it plans again next turn."""
        touched = self.state.touched
        planned, touched.pools = touched.pools, {}
        for fact in told(self.state, news, now, self.rng):
            self._record(recorded, fact, now, "scheduler")
        self._unplanned = dict(touched.pools)
        touched.pools = {**planned, **touched.pools}

    def _note_lanes(self, reached: e.ReachLanes) -> None:
        """Keep the furthest of the latest incarnation: each lane knows only its own part, and late words come."""
        known = self._lanes.get(reached.member)
        if reached.member not in self.state.members or (known is not None and known.fence > reached.fence):
            return
        if known is not None and known.fence == reached.fence:
            reached = msgspec.structs.replace(
                reached,
                metrics_sequence=max(known.metrics_sequence, reached.metrics_sequence),
                output_offset=max(known.output_offset, reached.output_offset),
            )
        self._lanes[reached.member] = reached

    def _remind_lanes(self, recorded: list[Recorded], now: float) -> None:
        """What the lanes reached before a member's exit was known counts as soon as it is."""
        for entry in list(recorded):
            if isinstance(entry.fact, MemberExited) and entry.fact.member in self._lanes:
                for fact in decide(self.state, self._lanes[entry.fact.member], now, self.rng):
                    self._record(recorded, fact, now, "lanes")
            elif isinstance(entry.fact, AllocationEnded):
                gone = [member for member in self._lanes if member.task == entry.fact.task]
                for member in gone:
                    del self._lanes[member]

    def _record(self, recorded: list[Recorded], fact: Fact, now: float, cause: str) -> None:
        entry = Recorded(self.state.index + 1, self._contacts.term, now, cause, fact)
        apply(self.state, entry)
        recorded.append(entry)

    def _pools_to_plan(self, ticked: bool) -> list[PoolName]:
        """Where something changed; with quotas a change in one pool may matter to another; time matters to all."""
        changed = self.state.touched.pools
        more = [pool for pool, plan in self.plans.items() if plan.more]
        everywhere = ticked or (bool(changed) and bool(self.state.quotas))
        more += list(self._unplanned)
        return [pool for pool in self.state.pools if everywhere or pool in changed or pool in more]

    def _pools_to_scale(self, now: float) -> list[PoolName]:
        """Where something changed, a grace has run out, or nobody has looked yet; never because time passed alone."""
        changed = self.state.touched.pools
        found = []
        for pool, spec in self.state.pools.items():
            plan = self.scale_plans.get(pool)
            due = plan is None or (plan.look_again_at is not None and plan.look_again_at <= now)
            shared = bool(changed) and bool(self.state.quotas)  # a quota ties the pools together
            if (spec.autoscale is not None and due) or pool in changed or shared:
                found.append(pool)
        return found

    async def _persist(self, batch: Batch) -> None:
        await self.journal.append(batch)

    def _act(self, touched: Touched) -> None:
        """Say to each node what is wanted there now: to those that changed, and to those that have not taken it in."""
        now = self.clock.now()
        for node in dict.fromkeys([*touched.nodes, *self._contacts.to_repeat(now)]):
            if may_be_ordered(self.state, node):
                self.links.say(node, wanted(self.state, node))
                self._contacts.said(node, self.state.index, now)

    def _answer(self, batch: list[_Pending]) -> None:
        for pending in batch:
            if pending.error is not None and isinstance(pending.event, e.Reported):
                self.links.say(pending.event.report.node, Refusal(pending.error.view()))
            if pending.answer is None or pending.answer.done():
                continue
            if pending.error is not None:
                pending.answer.set_exception(pending.error)
            else:
                pending.answer.set_result(answer_to(self.state, pending.event))

    async def _snapshot(self) -> None:
        if self.state.index - self._snapshot_index < self.settings.snapshot_rows:
            return
        older, self._snapshot_index = self._snapshot_index, self.state.index
        await self.journal.save_snapshot(freeze(self.state))
        if isinstance(self.journal, Maintenance) and older > self.settings.rows_kept:
            await self.journal.forget(older - self.settings.rows_kept)


def answer_to(state: State, event: e.Event) -> Any:
    """What somebody who asked is told: the task a submission is known by, else nothing."""
    if isinstance(event, e.Submit):
        return state.keys.get(event.key, event.task) if event.key else event.task
    return None


async def restore(journal: Journal, controllers: Mapping[str, Controller]) -> State:
    """The state as of the journal's last row: its newest snapshot and the rows behind it. Start and restart alike."""
    snapshot = await journal.load_snapshot()
    state = thaw(snapshot, controllers) if snapshot is not None else State(controllers)
    while rows := await journal.read(state.index, READ_ROWS):
        for row in rows:
            apply(state, from_row(row))
    state.touched = Touched()
    return state
