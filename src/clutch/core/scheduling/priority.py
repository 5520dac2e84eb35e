"""The priority policy: the most important first, first come first served inside a priority.

Requests are looked at in turn. One that fits what is open is granted. One that does not
1. waits for what is already coming back, if that will do (nobody is asked twice);
2. or makes the fewest, least important, newest victims leave; the room it will get is kept for it, to the slot;
3. or, where nothing can be freed, reserves the nodes that are closest to holding it: only preemptible work may pass it
   there, marked as backfilled, and is the first to leave once the reservation can be satisfied.

So nothing starves: a reserved node only ever gets emptier for the one that waits. It reads a ledger through forks and
returns an ``Outcome``; it never changes the ledger and knows no time but ``now``.
"""

from __future__ import annotations

import heapq
from enum import Enum

from clutch.core.scheduling.demand import Demand
from clutch.core.scheduling.evictable import and_backfilled_at
from clutch.core.scheduling.fitting import Claim, Rules, fit
from clutch.core.scheduling.headroom import Headroom
from clutch.core.scheduling.ledger import Ledger
from clutch.core.scheduling.limits import Limits
from clutch.core.scheduling.outcome import Note, Outcome
from clutch.core.scheduling.reservation import reserve
from clutch.core.scheduling.victims import VictimSearch
from clutch.core.scheduling.waiting_line import Line, Turn
from clutch.core.scheduling.workbench import Workbench
from clutch.wire.ids import NodeId, TaskId
from clutch.wire.schedule import Grant, Placement, Preemption, Request, WaitCode
from clutch.wire.specs import PriorityPolicy

RESERVATIONS = 16
"""How many blocked lines may reserve nodes at once."""
SEARCHES = 64
"""How many times a pass may find victims. Beyond that it says there is more, and until then only work that can make
way passes those it did not search for."""

LAST = 1 << 62
"""An order behind every other of the same priority."""

Entry = tuple[Turn, int, list[Turn], Line]
"""Whose turn it is, its place in its queue, the queue and its line."""


class Next(Enum):
    """Who is looked at after a request."""

    SAME_QUEUE = 1  # those behind it may still find room
    OTHER_QUEUES = 2  # its limits are full: those behind it in its queue are refused alike
    OTHER_LINES = 3  # it found no room: nobody of its line will


class PriorityPass:
    """One pass over one pool."""

    def __init__(self, ledger: Ledger, policy: PriorityPolicy, now: float) -> None:
        self.ledger = ledger
        self.policy = policy
        self.now = now
        self.bench = Workbench(ledger)
        self.limits = Limits(ledger)
        self.headroom = Headroom(ledger)
        self.search = VictimSearch(self.bench, now, preemption=policy.preemption)
        self.outcome = Outcome(scopes=self.limits.full)
        self.reserved: dict[NodeId, Claim] = {}
        self.rules = Rules(ledger.pool.fit, self.reserved)
        self.anywhere = Rules(ledger.pool.fit)
        self.closed: dict[str, None] = {}
        """Without backfill: the kinds of slots somebody waits for ("" for none); nobody behind may take any."""
        self.cells: dict[int, None] = {}
        """Priorities at which cells wait, where the pool keeps headroom for them."""
        if self.headroom.kept:
            lines = [line for line in ledger.lines.lines.values() if line.demand.interactive]
            self.cells = {turn[0]: None for line in lines for queue in line.queues.values() for turn in queue}
        self.reservations_left = RESERVATIONS
        self.searches_left = SEARCHES

    def run(self) -> Outcome:
        lines = self.ledger.lines.lines.values()
        heap: list[Entry] = [(queue[0], 0, queue, line) for line in lines for queue in line.queues.values()]
        heapq.heapify(heap)
        done: dict[int, None] = {}
        waiting = self.ledger.waiting
        while heap:
            turn, place, queue, line = heap[0]
            if line.number in done:
                heapq.heappop(heap)
                continue
            if self._after_cells(turn, line.demand):
                heapq.heapreplace(heap, ((turn[0], LAST, turn[2]), place, queue, line))
                continue
            after = self._decide(waiting[turn[2]], line)
            if after is Next.OTHER_LINES:
                done[line.number] = None
            if after is Next.SAME_QUEUE and place + 1 < len(queue):
                heapq.heapreplace(heap, (queue[place + 1], place + 1, queue, line))
            else:
                heapq.heappop(heap)
        return self.outcome

    def _after_cells(self, turn: Turn, demand: Demand) -> bool:
        """Whether this one would borrow what is kept for cells while cells as important wait: they come first."""
        if turn[1] == LAST or turn[0] not in self.cells:
            return False
        return demand.borrows and not demand.interactive and self.headroom.would_borrow(demand)

    def _decide(self, request: Request, line: Line) -> Next:
        """Decide about one request."""
        demand = line.demand
        if self.limits.refuse(request, demand.slots) is not None:
            return Next.OTHER_QUEUES
        if any(kind in self.closed for kind in (demand.slots_by_kind or ("",))):
            return Next.OTHER_LINES
        if self.outcome.more and demand.slots and not self._may_backfill(request):
            return Next.OTHER_LINES
        if self.headroom.allows(demand):
            placements = fit(self.bench.open, demand, self.rules)
            backfilled = self.outcome.more
            if placements is None and self.reserved and self._may_backfill(request):
                placements = fit(self.bench.open, demand, self.anywhere)
                backfilled = True
            if placements is not None:
                self._grant(request, demand, placements, backfilled)
                return Next.SAME_QUEUE
        return Next.SAME_QUEUE if self._makes_room(request, line) else Next.OTHER_LINES

    def _may_backfill(self, request: Request) -> bool:
        return request.preemptible and self.policy.preemption and self.policy.backfill and request.interactive is None

    def _grant(self, request: Request, demand: Demand, placements: tuple[Placement, ...], backfilled: bool) -> None:
        self.bench.grant(placements)
        self.limits.take(request, demand.slots)
        borrowed = self.headroom.take(demand)
        self.outcome.grants.append(Grant(request.request, placements, backfilled or borrowed))

    def _makes_room(self, request: Request, line: Line) -> bool:
        """Find room that is coming back, or make some come back; if there is none, reserve."""
        if not self.ledger.fits_empty(line):
            return False  # no set of nodes could ever hold it: it waits in nobody's way
        demand = line.demand
        missing = self.headroom.missing(demand)
        if missing <= 0 and (self.ledger.evictable.leaving or self.bench.victims):
            coming = self.bench.coming(request, demand, self.rules)
            if coming is not None:
                self._promise(request, demand, coming, self.bench.leavers(coming))
                return True
        if not self.searches_left:
            self.outcome.more = True
            return False
        if self._evict(request, demand, missing):
            return True
        if missing > 0:
            self.headroom.close(demand)
        else:
            self._reserve(request, demand)
        return False

    def _evict(self, request: Request, demand: Demand, missing: int) -> bool:
        if missing > 0:
            found = self.search.find_firm(request, demand, self.rules, missing)
        else:
            found = self.search.find(request, demand, self.rules)
        if found is None:
            return False
        self.searches_left -= 1
        self.bench.evict(found.victims)
        self.headroom.evicted(found.victims)
        tasks = tuple(victim.request.task for victim in found.victims)
        if found.ripe_at:
            self.outcome.again(found.ripe_at)
            self.bench.unripe.update({victim.request.request: victim for victim in found.victims})
        else:
            for victim in found.victims:
                self.outcome.preemptions.append(Preemption(victim.request.request, request.request))
        self._promise(request, demand, found.placements, tasks)
        return True

    def _promise(
        self, request: Request, demand: Demand, placements: tuple[Placement, ...], tasks: tuple[TaskId, ...]
    ) -> None:
        nodes = self.bench.promise(placements)
        self.limits.take(request, demand.slots)
        self.headroom.take(demand)
        if any(holding.request.task in tasks for holding in self.bench.unripe.values()):
            code, detail = WaitCode.NO_ROOM, "waits for work that has just begun and may be asked to leave soon"
        else:
            code, detail = WaitCode.FREEING, "waits for work that was asked to leave"
        self.outcome.notes[request.request] = Note(code, detail, tasks, nodes)

    def _reserve(self, request: Request, demand: Demand) -> None:
        if not self.policy.backfill and demand.only is None:
            for kind in demand.slots_by_kind or ("",):
                self.closed[kind] = None
            return
        if not self.reservations_left:
            return
        room = self.bench.soon
        if self.policy.preemption:
            room = self.bench.room_for(request, and_backfilled_at(request.priority))
        claims = reserve(room, demand, self.rules)
        if claims is None:
            return
        self.reservations_left -= 1
        self.reserved.update(claims)
        self.outcome.reservations[request.request] = tuple(claims)


def plan_priority(ledger: Ledger, policy: PriorityPolicy, now: float) -> Outcome:
    return PriorityPass(ledger, policy, now).run()
