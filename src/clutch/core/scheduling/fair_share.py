"""The fair-share policy: every group gets its max-min fair share of the slots, by weight.

Cells and work without slots go first, in order. Then groups that have least per weight are served first, each up to its
share, in order inside the group. One that is within its share and finds no room waits for what is coming back, or makes
groups above their share give back, newest first, or reserves nodes. What then is still open goes to groups beyond their
share, since idle slots help nobody; they are the first to give back. It reads a ledger and returns an ``Outcome``.
"""

from __future__ import annotations

import heapq

from clutch.core.scheduling.demand import Demand
from clutch.core.scheduling.fitting import Claim, Rules, fit
from clutch.core.scheduling.headroom import Headroom
from clutch.core.scheduling.ledger import Ledger
from clutch.core.scheduling.limits import Limits
from clutch.core.scheduling.outcome import Note, Outcome
from clutch.core.scheduling.quota import group_of
from clutch.core.scheduling.reservation import reserve
from clutch.core.scheduling.shares import Group, fair_shares
from clutch.core.scheduling.waiting_line import turn_of
from clutch.core.scheduling.workbench import Workbench
from clutch.wire.ids import NodeId, RequestId, TaskId
from clutch.wire.schedule import Grant, Holding, Placement, Preemption, Request, WaitCode
from clutch.wire.specs import FairSharePolicy

RESERVATIONS = 16
VICTIMS_TRIED = 256

Amounts = dict[str, dict[str, int]]
"""By kind, by group."""


class FairSharePass:
    """One pass over one pool."""

    def __init__(self, ledger: Ledger, policy: FairSharePolicy, now: float) -> None:
        self.ledger = ledger
        self.policy = policy
        self.now = now
        self.bench = Workbench(ledger)
        self.limits = Limits(ledger)
        self.headroom = Headroom(ledger)
        self.outcome = Outcome(scopes=self.limits.full)
        self.reserved: dict[NodeId, Claim] = {}
        self.rules = Rules(ledger.pool.fit, self.reserved)
        self.reservations_left = RESERVATIONS
        self.demands: dict[RequestId, Demand] = {
            turn[2]: line.demand
            for line in ledger.lines.lines.values()
            for queue in line.queues.values()
            for turn in queue
        }
        self.held: Amounts = held_by_group(ledger)
        self.shares: Amounts = shares_of(ledger, self.demands, self.held)
        self.short = False
        """Somebody within its share waits for room."""

    def run(self) -> Outcome:
        order = sorted(self.ledger.waiting.values(), key=turn_of)
        for request in order:
            demand = self.demands[request.request]
            if request.interactive is not None or not demand.slots:
                self._serve(request, demand)
        beyond = self._within_shares([r for r in order if r.interactive is None and self.demands[r.request].slots])
        for request in beyond:
            self._serve_beyond(request, self.demands[request.request])
        return self.outcome

    def _within_shares(self, order: list[Request]) -> list[Request]:
        """Serve every group up to its share; what is left over, in order."""
        queues: dict[str, list[Request]] = {}
        for request in order:
            queues.setdefault(group_of(request), []).append(request)
        places = dict.fromkeys(queues, 0)
        heap = [(self._load(queue[0]), turn_of(queue[0]), name) for name, queue in queues.items()]
        heapq.heapify(heap)
        beyond: list[Request] = []
        while heap:
            _, _, name = heapq.heappop(heap)
            queue, place = queues[name], places[name]
            if not self._serve_within(queue[place], beyond):
                beyond.extend(queue[place + 1 :])
                continue
            places[name] = place = place + 1
            if place < len(queue):
                heapq.heappush(heap, (self._load(queue[place]), turn_of(queue[place]), name))
        return sorted(beyond, key=turn_of)

    def _load(self, request: Request) -> float:
        group = group_of(request)
        return sum(held.get(group, 0) for held in self.held.values()) / request.weight

    def _serve_within(self, request: Request, beyond: list[Request]) -> bool:
        """Serve one request if its group's share covers it; True if the next of the group may be looked at."""
        demand = self.demands[request.request]
        group = group_of(request)
        for kind, slots in demand.slots_by_kind.items():
            share = self.shares[kind][group]
            held = self.held.get(kind, {}).get(group, 0)
            if held + slots > share:
                detail = f"group {group} has {held} of its fair share of {share} {kind} slots"
                self.outcome.shares.setdefault(group, detail)
                beyond.append(request)
                return slots > share  # larger than the whole share: it holds up nobody of its group
        if self._serve(request, demand):
            return True
        beyond.append(request)
        return False

    def _serve(self, request: Request, demand: Demand) -> bool:
        """Grant, or make room, or reserve; False if it stays blocked."""
        if self.limits.refuse(request, demand.slots) is not None:
            return True
        if not self.headroom.allows(demand):
            self.headroom.close(demand)
            return False
        placements = fit(self.bench.open, demand, self.rules)
        if placements is not None:
            self._grant(request, demand, placements)
            return True
        if not self.ledger.fits_empty(self.ledger.lines.line_of(request.request)):
            return True
        coming = self.bench.coming(request, demand, self.rules)
        if coming is not None:
            self._promise(request, demand, coming, self.bench.leavers(coming))
            return True
        if self._evict(request, demand):
            return True
        self.short = True
        if self.reservations_left:
            claims = reserve(self.bench.soon, demand, self.rules)
            if claims is not None:
                self.reservations_left -= 1
                self.reserved.update(claims)
                self.outcome.reservations[request.request] = tuple(claims)
        return False

    def _serve_beyond(self, request: Request, demand: Demand) -> None:
        """What nobody can use within its share may be used beyond one, if it can be given back or nobody is short."""
        if request.request in self.outcome.reservations or request.request in self.outcome.notes:
            return
        if self.short and not (request.preemptible and self.policy.preemption):
            return
        if self.limits.refuse(request, demand.slots) is not None or not self.headroom.allows(demand):
            return
        placements = fit(self.bench.open, demand, self.rules)
        if placements is not None:
            self._grant(request, demand, placements)

    def _grant(self, request: Request, demand: Demand, placements: tuple[Placement, ...]) -> None:
        self.bench.grant(placements)
        self._count(request, demand)
        self.outcome.grants.append(Grant(request.request, placements, self.headroom.take(demand)))

    def _promise(
        self, request: Request, demand: Demand, placements: tuple[Placement, ...], tasks: tuple[TaskId, ...]
    ) -> None:
        nodes = self.bench.promise(placements)
        self._count(request, demand)
        self.headroom.take(demand)
        detail = "waits for work that was asked to leave"
        self.outcome.notes[request.request] = Note(WaitCode.FREEING, detail, tasks, nodes)

    def _count(self, request: Request, demand: Demand) -> None:
        self.limits.take(request, demand.slots)
        group = group_of(request)
        for kind, slots in demand.slots_by_kind.items():
            held = self.held.setdefault(kind, {})
            held[group] = held.get(group, 0) + slots

    def _evict(self, request: Request, demand: Demand) -> bool:
        """Make what lingers, and then groups above their share, give back: newest first, and no more than needed."""
        work = self.bench.soon.fork()
        chosen: list[Holding] = []
        held = {kind: amounts.copy() for kind, amounts in self.held.items()}
        placements: tuple[Placement, ...] | None = None
        for holding in self._candidates(request, demand)[:VICTIMS_TRIED]:
            if not holding.lingering and not self._is_above(holding, held):
                continue
            chosen.append(holding)
            work.give(holding.placements)
            for placement in () if holding.lingering else holding.placements:
                amounts = held.setdefault(placement.kind, {})
                group = group_of(holding.request)
                amounts[group] = amounts.get(group, 0) - len(placement.slots)
            placements = fit(work, demand, self.rules)
            if placements is not None:
                break
        if placements is None:
            return False
        for holding in chosen[-2::-1]:
            work.take(holding.placements)
            fewer = fit(work, demand, self.rules)
            if fewer is None:
                work.give(holding.placements)
            else:
                chosen.remove(holding)
                placements = fewer
        self.bench.evict(chosen)
        self.headroom.evicted(chosen)
        for holding in chosen:
            for placement in holding.placements:
                if placement.slots and not holding.lingering:  # a lingering lease counts for nobody
                    self.held[placement.kind][group_of(holding.request)] -= len(placement.slots)
            self.outcome.preemptions.append(Preemption(holding.request.request, request.request))
        self._promise(request, demand, placements, tuple(holding.request.task for holding in chosen))
        return True

    def _is_above(self, holding: Holding, held: Amounts) -> bool:
        group = group_of(holding.request)
        return any(
            held.get(p.kind, {}).get(group, 0) > self.shares.get(p.kind, {}).get(group, 0)
            for p in holding.placements
            if p.slots
        )

    def _candidates(self, request: Request, demand: Demand) -> list[Holding]:
        """Who may be asked: what lingers, then preemptible work of groups above their share, the newest first."""
        found: list[Holding] = []
        min_run_s = self.ledger.pool.min_run_s
        for holding in self.ledger.holdings.values():
            held = holding.request
            if holding.leaving or held.request in self.bench.victims:
                continue
            if not any(placement.kind in demand.slots_by_kind and placement.slots for placement in holding.placements):
                continue
            if holding.lingering:
                found.append(holding)
                continue
            if not self.policy.preemption or not held.preemptible or held.interactive is not None:
                continue
            if group_of(held) == group_of(request):
                continue
            if demand.interactive and held.leave_within_s > demand.wait_limit_s:
                continue
            ripe_at = max(holding.since, holding.last_victim_at) + min_run_s
            if ripe_at > self.now:
                if self._is_above(holding, self.held):
                    self.outcome.again(ripe_at)
                continue
            found.append(holding)
        return sorted(found, key=lambda h: (not h.lingering, -h.since, -h.request.order, h.request.request))


def held_by_group(ledger: Ledger) -> Amounts:
    """Slots that groups hold and keep (not what is leaving), by kind."""
    held: Amounts = {kind: {} for kind in ledger.index.totals}
    for holding in ledger.holdings.values():
        if holding.leaving or holding.lingering:
            continue
        group = group_of(holding.request)
        for placement in holding.placements:
            if placement.slots:
                amounts = held.setdefault(placement.kind, {})
                amounts[group] = amounts.get(group, 0) + len(placement.slots)
    return held


def shares_of(ledger: Ledger, demands: dict[RequestId, Demand], held: Amounts) -> Amounts:
    """Each group's fair share of each kind."""
    owned: dict[str, int] = {}
    for node in ledger.index.nodes:
        for kind, mask in ledger.index.desks[node].enabled.items():
            owned[kind] = owned.get(kind, 0) + mask.bit_count()
    groups: dict[str, dict[str, Group]] = {kind: {} for kind in owned}
    for holding in ledger.holdings.values():
        if not holding.leaving and not holding.lingering:
            _count_holding(groups, holding)
    for request in ledger.waiting.values():
        for kind, slots in demands[request.request].slots_by_kind.items():
            group = _group(groups, kind, request)
            if request.interactive is None:
                group.smallest = min(group.smallest or slots, slots)
            group.demand += slots
    for request in (*ledger.waiting.values(), *(holding.request for holding in ledger.holdings.values())):
        if request.max_slots:
            for by_name in groups.values():
                capped = by_name.get(group_of(request))
                if capped is not None:
                    capped.demand = max(min(capped.demand, request.max_slots), capped.fixed)
    return {kind: fair_shares(list(by_name.values()), owned.get(kind, 0)) for kind, by_name in groups.items()}


def _count_holding(groups: dict[str, dict[str, Group]], holding: Holding) -> None:
    request = holding.request
    sums: dict[str, int] = {}
    for placement in holding.placements:
        if placement.slots:
            sums[placement.kind] = sums.get(placement.kind, 0) + len(placement.slots)
    for kind, slots in sums.items():
        group = _group(groups, kind, request)
        group.demand += slots
        if not request.preemptible or request.interactive is not None:
            group.fixed += slots
        else:
            group.smallest = min(group.smallest or slots, slots)


def _group(groups: dict[str, dict[str, Group]], kind: str, request: Request) -> Group:
    by_name = groups.setdefault(kind, {})
    name = group_of(request)
    found = by_name.get(name)
    if found is None:
        found = by_name[name] = Group(name, request.weight, request.order, 0)
    found.weight = max(found.weight, request.weight)
    found.age = min(found.age, request.order)
    return found


def plan_fair_share(ledger: Ledger, policy: FairSharePolicy, now: float) -> Outcome:
    return FairSharePass(ledger, policy, now).run()
