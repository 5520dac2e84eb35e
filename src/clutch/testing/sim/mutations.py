"""Masters and agents that break a law each, named for what they do. The simulator must catch every one of them.

They are subclasses of the production parts, changed in one place; production code knows nothing of them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from clutch.agent import brain as b
from clutch.core.recorded import Recorded
from clutch.core.state import Touched
from clutch.master.contacts import Contacts, Heard
from clutch.master.loop import Loop
from clutch.testing.sim.cluster import Kit
from clutch.wire import events as e
from clutch.wire import facts as f
from clutch.wire.ids import RequestId
from clutch.wire.journal import Batch
from clutch.wire.messages import MemberStatus, Report, Wanted


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


class ForgetsExits(b.Brain):
    """Drops an exit record before the master has taken it over: the work seems never to have run."""

    def exited(self, member: Any, fence: Any, exit: Any) -> list[b.Effect]:
        self.records.pop((member, fence), None)
        return [b.Forget(member, fence), *self._reconcile(), self.report()]


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
}
