"""Masters, agents and provisioners that break a law each, named for what they do. The simulator must catch them all.

They are subclasses of the production parts, changed in one place; production code knows nothing of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec

from clutch.agent import brain as b
from clutch.backends.machines.base import Machines
from clutch.core import controller as c
from clutch.core.recorded import Recorded
from clutch.core.state import Touched
from clutch.master.contacts import Contacts, Heard
from clutch.master.effects import Effect, Performer
from clutch.master.loop import Loop
from clutch.master.provisioner import Provisioner
from clutch.testing.sim.borrowing import Borrower
from clutch.testing.sim.cluster import Kit
from clutch.wire import events as e
from clutch.wire import facts as f
from clutch.wire.errors import Unavailable
from clutch.wire.ids import PoolName, RequestId
from clutch.wire.journal import Batch, OutboxItem
from clutch.wire.machines import LAUNCH, MachineId, Order, StopReason, launch_token, terminate_token
from clutch.wire.messages import MemberStatus, Report, Wanted
from clutch.wire.outcomes import MachineState, Verdict
from clutch.workloads.experiment.controller.controller import ExperimentController
from clutch.workloads.experiment.controller.own import Own


class GrantsTwice(Loop):
    """Forgets what it granted: the same slots go to the next task too."""

    def _record(self, recorded: list[Recorded], fact: f.Fact, now: float, cause: str) -> None:
        super()._record(recorded, fact, now, cause)
        if isinstance(fact, f.AllocationGranted):
            self.state.ledger_of(fact.task).release(RequestId(fact.task))


class _Disordered(Loop):
    async def _turn(self, batch: list[Any]) -> None:
        now = max(self.clock.now(), self.state.at)
        recorded = self._decide(batch, now)
        touched = self.state.touched
        self.state.touched = Touched()
        await self._disorder(batch, touched, self._durable(recorded, touched))

    async def _disorder(self, batch: list[Any], touched: Touched, durable: Batch) -> None:
        raise AssertionError("a disordered loop says in which order it does things")


class AnswersBeforePersisting(_Disordered):
    """Acknowledges first and writes afterwards: a crash in between loses what was acknowledged."""

    async def _disorder(self, batch: list[Any], touched: Touched, durable: Batch) -> None:
        self._answer(batch)
        if durable.rows:
            await self._persist(durable)
        self._act(touched)


class ActsBeforePersisting(_Disordered):
    """Tells agents what to do before it is durable: a crash in between leaves work that nobody granted."""

    async def _disorder(self, batch: list[Any], touched: Touched, durable: Batch) -> None:
        self._act(touched)
        if durable.rows:
            await self._persist(durable)
        self._answer(batch)


class BelievesAnyWriter(Loop):
    """Does not look at the fence of a member's words: an incarnation that was given up can still write."""

    def _decide(self, batch: list[Any], now: float) -> list[Recorded]:
        for pending in batch:
            event = pending.event
            if isinstance(event, e.CommitCheckpoint | e.AckLeave | e.DeclareFinished):
                current = self.state.members.get(event.member)
                if current is not None:
                    fence = current.fence(self.state.generation)
                    pending.event = msgspec.structs.replace(event, fence=fence)
        return super()._decide(batch, now)


class OverlooksStrays(Loop):
    """Does not see work on a returning node that is no longer anybody's, and grants its slots again."""

    def hear(self, report: Report) -> None:
        fences = {m: found.fence(self.state.generation) for m, found in self.state.members.items()}
        kept = tuple(o for o in report.members if o.status is MemberStatus.EXITED or fences.get(o.member) == o.fence)
        super().hear(msgspec.structs.replace(report, members=kept, leases=()))


class _BelievesAnything(Contacts):
    def take(self, report: Report, now: float) -> Heard:
        super().take(report, now)
        return Heard.NEWS


class BelievesOldReports(Loop):
    """Takes late and doubled reports for news: what they do not show yet seems to have vanished."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._contacts = _BelievesAnything(self.settings.suspect_after_s, self.settings.beat_s)

    def hear(self, report: Report) -> None:
        told = msgspec.structs.replace(report, generation=self.state.generation, term=self.state.term)
        super().hear(told)


class ObeysOldOrders(b.Brain):
    """Does what a late message says, though it has heard later ones."""

    def ordered(self, wanted: Wanted) -> list[b.Effect]:
        if wanted.node != self.node:
            return []
        self.wanted = wanted
        return [*self._reconcile(), self.report()]


class BlamesVictims(Loop):
    """Takes members that only lost a peer for ones that failed."""

    def _record(self, recorded: list[Recorded], fact: f.Fact, now: float, cause: str) -> None:
        if isinstance(fact, f.VerdictFound):
            fact = msgspec.structs.replace(fact, verdict=Verdict.FAILED)
        super()._record(recorded, fact, now, cause)


class ForgivesFailures(Loop):
    """Believes members that lost a peer without looking for the one that failed."""

    def _record(self, recorded: list[Recorded], fact: f.Fact, now: float, cause: str) -> None:
        if isinstance(fact, f.VerdictFound):
            fact = msgspec.structs.replace(fact, verdict=Verdict.INFRASTRUCTURE)
        super()._record(recorded, fact, now, cause)


class ForgetsExits(b.Brain):
    """Drops an exit record before the master has taken it over: the work seems never to have run."""

    def exited(self, member: Any, fence: Any, exit: Any) -> list[b.Effect]:
        self.records.pop((member, fence), None)
        return [b.Forget(member, fence), *self._reconcile(), self.report()]


class StopsBusyMachines(Loop):
    """Takes a machine that serves for an idle one, whatever runs on it."""

    def _decide(self, batch: list[Any], now: float) -> list[Recorded]:
        recorded = super()._decide(batch, now)
        for machine in list(self.state.machines.values()):
            if machine.state is MachineState.SERVING and machine.idle_since is None and now - machine.since > 10.0:
                stop = f.MachineStopAsked(machine.machine, StopReason.IDLE, terminate_token(machine.machine))
                self._record(recorded, stop, now, "provisioner")
        return recorded


class ForgetsMachinesThatStop(Loop):
    """Asks for the next machine while the one before is still being stopped, and paid for."""

    def _decide(self, batch: list[Any], now: float) -> list[Recorded]:
        recorded = super()._decide(batch, now)
        for pool, spec in self.state.pools.items():
            own = [machine for machine in self.state.machines.values() if machine.pool == pool]
            live = [machine for machine in own if machine.state is not MachineState.STOPPING]
            if spec.autoscale is None or len(live) == len(own) or not self.state.ledgers[pool].waiting:
                continue
            for _ in range(spec.autoscale.nodes_max - len(live)):
                name = MachineId(f"{pool}-{self.state.generation}-{self.state.index + 1}")
                self._record(recorded, f.MachineAsked(name, pool, launch_token(name)), now, "provisioner")
        return recorded


class DeliversBeforePerforming(Performer):
    """Marks a launch delivered, and launches then: a crash in between leaves a machine that never was."""

    async def _perform(self, effect: Effect, item: OutboxItem) -> None:
        if item.kind == LAUNCH:
            order = msgspec.msgpack.decode(item.payload, type=Order)
            await self.loop.ask(e.MachineUp(cause="provider", machine=order.machine, instance="soon"))
        await super()._perform(effect, item)


class LaunchesUnderAnotherName(Provisioner):
    """Makes up a new token when an answer is lost and it tries again: what the first try made, nobody knows."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._tried: dict[MachineId, int] = {}

    async def launch(self, item: OutboxItem) -> e.Event:
        order = msgspec.msgpack.decode(item.payload, type=Order)
        again = self._tried[order.machine] = self._tried.get(order.machine, 0) + 1
        if again == 1:
            await super().launch(item)
            raise Unavailable("its answer was lost", object=item.token)
        order = msgspec.structs.replace(order, machine=MachineId(f"{order.machine}.{again}"))
        return await super().launch(msgspec.structs.replace(item, payload=msgspec.msgpack.encode(order)))


class BelievesLateListings(Provisioner):
    """Holds a listing against what was launched after it was taken, and forgets that listings lag."""

    async def look(self, pool: PoolName, machines: Machines) -> None:
        found = await machines.listing()
        await asyncio.sleep(0.5)
        ours = tuple(instance for instance in found if instance.cluster == self.settings.cluster)
        now = self.loop.state.index
        self.loop.tell(e.MachinesListed(cause=f"provider:{pool}", pool=pool, instances=ours, index=now))


class CountsRepetitions(ExperimentController):
    """Forgets at which steps a trial has validated: whatever is said twice, or after a restart, counts twice."""

    def apply(self, own: Own, note: bytes) -> Own:
        super().apply(own, note)
        for trial in own.exp.trials.values():
            trial.steps.clear()
        return own


class StopsWithoutAsking(ExperimentController):
    """Decides that a trial shall stop and does not ask it to: its slots stay where they are."""

    def decide(self, own: Own, happening: c.Happening, now: float, rng: Random) -> Iterator[c.Wish]:
        for wish in super().decide(own, happening, now, rng):
            if not isinstance(wish, c.Stop):
                yield wish


class ForgetsPins(ExperimentController):
    """Has files removed that somebody holds."""

    def apply(self, own: Own, note: bytes) -> Own:
        super().apply(own, note)
        for one in own.exp.checkpoints.values():
            one.pins = []
        return own


class ForgetsItsBound(ExperimentController):
    """Takes a bound on its slots and tells its trials nothing of it."""

    def decide(self, own: Own, happening: c.Happening, now: float, rng: Random) -> Iterator[c.Wish]:
        for wish in super().decide(own, happening, now, rng):
            if not isinstance(wish, c.SetMaxSlots):
                yield wish


class BorrowsUnseen(Borrower):
    """Begins from what nobody holds for it."""

    holds = False


def _kit(name: str, **parts: Any) -> type[Kit]:
    return type(name, (Kit,), parts)


MUTATIONS: dict[str, type[Kit]] = {
    "grants twice": _kit("GrantsTwiceKit", loop=GrantsTwice),
    "answers before persisting": _kit("AnswersBeforePersistingKit", loop=AnswersBeforePersisting),
    "acts before persisting": _kit("ActsBeforePersistingKit", loop=ActsBeforePersisting),
    "believes any writer": _kit("BelievesAnyWriterKit", loop=BelievesAnyWriter),
    "overlooks strays": _kit("OverlooksStraysKit", loop=OverlooksStrays),
    "believes old reports": _kit("BelievesOldReportsKit", loop=BelievesOldReports),
    "obeys old orders": _kit("ObeysOldOrdersKit", brain=ObeysOldOrders),
    "forgets exits": _kit("ForgetsExitsKit", brain=ForgetsExits),
    "blames victims": _kit("BlamesVictimsKit", loop=BlamesVictims),
    "forgives failures": _kit("ForgivesFailuresKit", loop=ForgivesFailures),
    "stops busy machines": _kit("StopsBusyMachinesKit", loop=StopsBusyMachines),
    "forgets machines that stop": _kit("ForgetsMachinesThatStopKit", loop=ForgetsMachinesThatStop),
    "delivers before performing": _kit("DeliversBeforePerformingKit", performer=DeliversBeforePerforming),
    "launches under another name": _kit("LaunchesUnderAnotherNameKit", provisioner=LaunchesUnderAnotherName),
    "believes late listings": _kit("BelievesLateListingsKit", provisioner=BelievesLateListings),
}

EXPERIMENT_MUTATIONS: dict[str, type[Kit]] = {
    "counts repetitions": _kit("CountsRepetitionsKit", experiments=CountsRepetitions),
    "stops without asking": _kit("StopsWithoutAskingKit", experiments=StopsWithoutAsking),
    "forgets pins": _kit("ForgetsPinsKit", experiments=ForgetsPins),
    "forgets its bound": _kit("ForgetsItsBoundKit", experiments=ForgetsItsBound),
    "borrows unseen": _kit("BorrowsUnseenKit", borrower=BorrowsUnseen),
}
"""Experiments that break one promise of theirs each; only seeds with experiments can catch them."""
