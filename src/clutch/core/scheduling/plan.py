"""``plan(ledger, now)``: what to grant, whom to ask to leave, and why everybody else waits.

Pure: it reads the ledger through forks and never changes it. The same ledger, built by the same verbs in the same
order, gives the same plan in every process. A plan is an offer: ``recheck`` says which grants a newer ledger still
takes, and the agent has the last word on its slots.
"""

from __future__ import annotations

from typing import NamedTuple

from clutch.core.scheduling.fair_share import plan_fair_share
from clutch.core.scheduling.ledger import Ledger, refused_by, slots_held
from clutch.core.scheduling.limits import Limits
from clutch.core.scheduling.outcome import Outcome
from clutch.core.scheduling.priority import plan_priority
from clutch.core.scheduling.reasons import Reasons
from clutch.core.scheduling.snapshot import Snapshot
from clutch.core.scheduling.waiting_line import turn_of
from clutch.wire.errors import BrokenInvariant
from clutch.wire.ids import NodeId, RequestId
from clutch.wire.schedule import Grant, Preemption, Waiting
from clutch.wire.specs import PriorityPolicy


class Plan:
    """Grants and preemptions now; reasons and positions when asked."""

    def __init__(self, snapshot: Snapshot, outcome: Outcome) -> None:
        self.grants: tuple[Grant, ...] = tuple(outcome.grants)
        self.preemptions: tuple[Preemption, ...] = tuple(outcome.preemptions)
        self.again_at = outcome.again_at
        """When planning again may change something though nothing happened; None: not before the next event."""
        self.more = outcome.more
        """The pass came to its bound: plan again once these decisions are in the ledger."""
        self._snapshot = snapshot
        self._outcome = outcome
        self._reasons = Reasons(snapshot, outcome)
        self._positions: dict[RequestId, int] | None = None

    def why(self, request: RequestId) -> Waiting:
        """The reason and the position of a request that waited when this was planned and was not granted."""
        position = self._places().get(request)
        if position is None:
            raise BrokenInvariant("does not wait in this plan", object=request)
        code, detail, blockers = self._reasons.of(self._snapshot.waiting[request])
        return Waiting(request, code, position, detail, blockers)

    def line(self) -> tuple[RequestId, ...]:
        """The names of everybody who waits, in the order of the queue. Cheap, unlike their reasons."""
        return tuple(self._places())

    def waiting(self) -> list[Waiting]:
        """Everybody who waits, in the order of the queue."""
        return [self.why(request) for request in self._places()]

    def reservation(self, request: RequestId) -> tuple[NodeId, ...]:
        """The nodes kept for a request that waits, if any."""
        note = self._outcome.notes.get(request)
        return note.nodes if note else self._outcome.reservations.get(request, ())

    def _places(self) -> dict[RequestId, int]:
        if self._positions is None:
            granted = dict.fromkeys(grant.request for grant in self.grants)
            turns = sorted(turn_of(r) for r in self._snapshot.waiting.values() if r.request not in granted)
            self._positions = {turn[2]: place for place, turn in enumerate(turns)}
        return self._positions


def plan(ledger: Ledger, now: float) -> Plan:
    """What to do about this pool now."""
    policy = ledger.pool.policy
    if isinstance(policy, PriorityPolicy):
        outcome = plan_priority(ledger, policy, now)
    else:
        outcome = plan_fair_share(ledger, policy, now)
    return Plan(Snapshot(ledger), outcome)


class Checked(NamedTuple):
    """What of a plan still holds."""

    grants: tuple[Grant, ...]
    preemptions: tuple[Preemption, ...]


def recheck(made: Plan, ledger: Ledger) -> Checked:
    """The grants and preemptions of a plan that a newer ledger still takes, together and in order."""
    work = ledger.index.fork()
    limits = Limits(ledger)
    grants = []
    for grant in made.grants:
        slots = slots_held(grant.placements)
        if grant.request not in ledger.waiting or limits.refuse(ledger.waiting[grant.request], slots) is not None:
            continue
        usable = all(p.node in work.desks and work.desks[p.node].usable for p in grant.placements)
        enabled = usable and all(
            not _disabled(work.desks[p.node].enabled.get(p.kind, 0), p.slots) for p in grant.placements
        )
        if enabled and not refused_by(work, grant.placements):
            work.take(grant.placements)
            limits.take(ledger.waiting[grant.request], slots)
            grants.append(grant)
    preemptions = tuple(
        preemption
        for preemption in made.preemptions
        if preemption.beneficiary in ledger.waiting
        and preemption.victim in ledger.holdings
        and not ledger.holdings[preemption.victim].leaving
    )
    return Checked(tuple(grants), preemptions)


def _disabled(enabled: int, slots: tuple[int, ...]) -> bool:
    return any(not enabled >> slot & 1 for slot in slots)
