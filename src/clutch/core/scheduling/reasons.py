"""Why a request waits, in one code that programs can act on and a sentence that people can read.

Worked out when somebody asks, from the snapshot a plan was made of and the notes its policy left: the first of these
that is true. No set of nodes could hold it; no node is usable; its quota or cap is full; it was promised room; what is
free would hold it but is kept (for somebody ahead, or for cells); it would fit but for an exclusion, its spread, or the
subscription bound; there is enough in sum but not in shape; there is not enough. It decides nothing.
"""

from __future__ import annotations

from clutch.core.scheduling.demand import Demand, is_firm
from clutch.core.scheduling.fitting import Rules, fit
from clutch.core.scheduling.outcome import Outcome
from clutch.core.scheduling.quota import group_of, user_scope, workspace_scope
from clutch.core.scheduling.room_index import RoomIndex
from clutch.core.scheduling.snapshot import Snapshot
from clutch.core.scheduling.waiting_line import turn_of
from clutch.wire.ids import NodeId, TaskId
from clutch.wire.resources import ANY
from clutch.wire.schedule import Request, WaitCode

Reason = tuple[WaitCode, str, tuple[TaskId, ...]]
BLOCKERS_SHOWN = 16


class Reasons:
    """The reasons of one plan."""

    def __init__(self, snapshot: Snapshot, outcome: Outcome) -> None:
        self.snapshot = snapshot
        self.outcome = outcome
        self.rules = Rules(snapshot.pool.fit)
        self._left: RoomIndex | None = None

    @property
    def left(self) -> RoomIndex:
        """What is free once this plan's grants are taken."""
        if self._left is None:
            self._left = self.snapshot.index.fork()
            for grant in self.outcome.grants:
                self._left.take(grant.placements)
        return self._left

    def of(self, request: Request) -> Reason:
        if not self.snapshot.empty.desks:
            return WaitCode.NO_NODES, f"pool {self.snapshot.pool.name} has no node", ()
        demand = Demand(request, self.snapshot.usual_kind)
        too_big = self._too_big(demand)
        if too_big:
            return WaitCode.TOO_BIG, too_big, ()
        if not self.snapshot.nodes:
            return WaitCode.NO_NODES, f"pool {self.snapshot.pool.name} has no usable node", ()
        limited = self._limited(request, demand)
        if limited:
            return limited
        note = self.outcome.notes.get(request.request)
        if note is not None:
            return note.code, note.detail, note.blockers
        share = self.outcome.shares.get(group_of(request)) if demand.slots else None
        if share is not None:
            return WaitCode.SHARE, share, ()
        if fit(self.left, demand, self.rules) is not None:
            return self._kept(request)
        return self._no_room(request, demand)

    def _too_big(self, demand: Demand) -> str:
        pool = self.snapshot.pool
        total = sum(self.snapshot.empty.totals.values())
        if pool.interactive_headroom and not demand.interactive and not demand.borrows:
            most = total - pool.interactive_headroom
            if demand.slots > most:
                return f"wants {demand.slots} slots; pool {pool.name} gives at most {most} to work other than cells"
        if fit(self.snapshot.empty, demand, self.rules) is not None:
            return ""
        if demand.excluded and fit(self.snapshot.empty, demand.relaxed(exclusion=True), self.rules) is not None:
            nodes = ", ".join(sorted(demand.excluded))
            return f"wants {_amount(demand)}; the nodes of pool {pool.name} that could hold it are excluded: {nodes}"
        return f"wants {_amount(demand)}; pool {pool.name} could not hold it even if it were empty ({total} slots)"

    def _limited(self, request: Request, demand: Demand) -> Reason | None:
        if not demand.slots:
            return None
        bounds = [
            (scope, self.snapshot.limits[scope], WaitCode.QUOTA)
            for scope in (user_scope(request.owner), workspace_scope(request.workspace))
            if scope in self.snapshot.limits
        ]
        if request.max_slots:
            bounds.append(("group:" + group_of(request), request.max_slots, WaitCode.GROUP_CAP))
        for scope, limit, code in bounds:
            if demand.slots > limit:
                return code, f"wants {demand.slots} slots, {scope} may hold {limit} in all", ()
            turn = self.outcome.scopes.get(scope)
            if turn is not None and turn <= turn_of(request):
                return code, f"{scope} may hold {limit} slots at once", self._holders(scope)
        return None

    def _holders(self, scope: str) -> tuple[TaskId, ...]:
        found: dict[TaskId, None] = {}
        for holding in self.snapshot.holdings.values():
            held = holding.request
            if scope in (user_scope(held.owner), workspace_scope(held.workspace), "group:" + group_of(held)) and any(
                placement.slots for placement in holding.placements
            ):
                found[held.task] = None
        return tuple(found)[:BLOCKERS_SHOWN]

    def _kept(self, request: Request) -> Reason:
        ahead = turn_of(request)
        pool = self.snapshot.pool
        waiting = self.snapshot.waiting
        blockers = [
            waiting[name].task
            for name in (*self.outcome.notes, *self.outcome.reservations)
            if name in waiting and turn_of(waiting[name]) < ahead
        ]
        if not blockers and pool.interactive_headroom and request.interactive is None and is_firm(request):
            return WaitCode.HEADROOM, f"what is free is kept for cells ({pool.interactive_headroom} slots)", ()
        return (
            WaitCode.BEHIND,
            "the room that is free is kept for somebody ahead of it",
            tuple(dict.fromkeys(blockers))[:BLOCKERS_SHOWN],
        )

    def _no_room(self, request: Request, demand: Demand) -> Reason:
        nodes = self.outcome.reservations.get(request.request, ())
        blockers = self._tenants(nodes)
        kept = f"; {len(nodes)} nodes are kept for it" if nodes else ""
        if demand.excluded and fit(self.left, demand.relaxed(exclusion=True), self.rules) is not None:
            return WaitCode.EXCLUDED, f"only nodes it excludes have room{kept}", blockers
        if fit(self.left, demand.relaxed(spread=True), self.rules) is not None:
            return WaitCode.SPREAD, f"too few different nodes have room{kept}", blockers
        if fit(self.left, demand.relaxed(subscription=True), self.rules) is not None:
            return WaitCode.NO_SUBSCRIPTION, f"the nodes with room have sold their subscriptions{kept}", blockers
        if self._enough_in_sum(demand):
            return WaitCode.FRAGMENTED, f"enough is free in sum, not in the shape of {_amount(demand)}{kept}", blockers
        return WaitCode.NO_ROOM, f"wants {_amount(demand)}, which is not free{kept}", blockers

    def _enough_in_sum(self, demand: Demand) -> bool:
        left = self.left
        desks = [left.desks[node] for node in demand.only or left.nodes if node in left.desks]
        desks = [desk for desk in desks if desk.usable and desk.node not in demand.excluded]
        for kind, slots in demand.slots_by_kind.items():
            if sum(desk.free_count(kind) for desk in desks) < slots:
                return False
        millicpus = sum(need.count * need.millicpus for need in demand.needs)
        memory = sum(need.count * need.memory_bytes for need in demand.needs)
        return (
            sum(max(d.millicpus, 0) for d in desks) >= millicpus
            and sum(max(d.memory_bytes, 0) for d in desks) >= memory
        )

    def _tenants(self, nodes: tuple[NodeId, ...]) -> tuple[TaskId, ...]:
        """Who holds slots on these nodes."""
        if not nodes:
            return ()
        wanted = dict.fromkeys(nodes)
        found: dict[TaskId, None] = {}
        for holding in self.snapshot.holdings.values():
            if any(placement.node in wanted and placement.slots for placement in holding.placements):
                found[holding.request.task] = None
        return tuple(found)[:BLOCKERS_SHOWN]


def _amount(demand: Demand) -> str:
    parts = [
        f"{slots} slots" if kind == ANY else f"{slots} {kind} slots" for kind, slots in demand.slots_by_kind.items()
    ]
    millicpus = sum(need.count * need.millicpus for need in demand.needs)
    if millicpus:
        parts.append(f"{millicpus / 1000:g} CPUs")
    memory = sum(need.count * need.memory_bytes for need in demand.needs)
    if memory:
        parts.append(f"{memory / 2**30:.3g} GiB")
    return ", ".join(parts) or "nothing"
