"""A small pool to play with: builders, a driver that does what plans say, and brute-force answers to compare with."""

from __future__ import annotations

from itertools import product

from clutch.core.scheduling.ledger import Ledger
from clutch.core.scheduling.plan import Plan, plan, recheck
from clutch.core.scheduling.quota import QuotaBook
from clutch.wire.ids import NodeId, PoolName, RequestId, TaskId
from clutch.wire.resources import CUDA, Capacity, Resources, Slot
from clutch.wire.schedule import Holding, Interactive, Part, Placement, Request, Room, Waiting
from clutch.wire.specs import Members, PoolSpec, PriorityPolicy, Quota, Shape, Split, Spread


def room(name: str, slots: int = 8, *, kind: str = CUDA, cpus: int = 64, memory: int = 2**38, **more: object) -> Room:
    capacity = Capacity(tuple(Slot(i, kind) for i in range(slots)), cpus * 1000, memory)
    return Room(NodeId(name), capacity, **more)  # type: ignore[arg-type]


def members(count: int, slots: int = 1, *, cpus: int = 0, memory: int = 0, kind: str = CUDA) -> Members:
    return Members(count, Resources(slots, kind, cpus * 1000, memory))


def request(name: str, shape: Shape | int = 1, order: int = 0, **more: object) -> Request:
    if isinstance(shape, int):
        shape = members(1, shape)
    part_keys = {key: more.pop(key) for key in ("spread", "avoid", "subscribes", "first_rank") if key in more}
    parts = more.pop("parts", None) or (Part("worker", shape, **part_keys),)  # type: ignore[arg-type]
    return Request(request=RequestId(name), task=TaskId(name), order=order, parts=parts, **more)  # type: ignore[arg-type]


def cell(
    name: str, nodes: tuple[str, ...], slots: int = 1, order: int = 0, wait: float = 60.0, **more: object
) -> Request:
    return request(name, slots, order, interactive=Interactive(tuple(NodeId(n) for n in nodes), wait), **more)


class Yard:
    """One pool. ``step`` plans and does what the plan says; time moves only when told."""

    def __init__(self, rooms: list[Room], quotas: dict[str, int] | None = None, **pool: object) -> None:
        self.book = QuotaBook()
        for scope, slots in (quotas or {}).items():
            self.book.set_limit(Quota(scope, slots))
        pool.setdefault("policy", PriorityPolicy())
        self.ledger = Ledger(PoolSpec(PoolName("pool"), **pool), self.book)  # type: ignore[arg-type]
        for each in rooms:
            self.ledger.put_room(each)
        self.now = 1000.0
        self.victim_at: dict[str, float] = {}

    def want(self, *requests: Request) -> Yard:
        for each in requests:
            self.ledger.enqueue(each)
        return self

    def plan(self) -> Plan:
        return plan(self.ledger, self.now)

    def grant(self, made: Plan) -> list[str]:
        for grant in made.grants:
            wanted = self.ledger.waiting[grant.request]
            self.ledger.hold(
                Holding(
                    request=wanted,
                    placements=grant.placements,
                    since=self.now,
                    last_victim_at=self.victim_at.get(grant.request, 0.0),
                    backfilled=grant.backfilled,
                )
            )
        return [grant.request for grant in made.grants]

    def step(self) -> Plan:
        """Plan, grant, mark victims as leaving; the ledger accepts it all."""
        made = self.plan()
        checked = recheck(made, self.ledger)
        assert checked.grants == made.grants and checked.preemptions == made.preemptions
        self.grant(made)
        for preemption in made.preemptions:
            self.ledger.mark(preemption.victim, leaving=True, leaving_for=preemption.beneficiary)
            self.victim_at[preemption.victim] = self.now
        self.ledger.check()
        return made

    def run(self, *requests: Request) -> Yard:
        """Wait for and get these at once."""
        self.want(*requests)
        granted = self.grant(self.plan())
        missing = [each.request for each in requests if each.request not in granted]
        assert not missing, f"no room for {missing}"
        return self

    def later(self, seconds: float) -> Yard:
        self.now += seconds
        return self

    def end(self, *names: str) -> Yard:
        for name in names:
            self.ledger.release(RequestId(name))
        self.ledger.check()
        return self

    def gone(self) -> list[str]:
        """Everybody who was asked to leave leaves, and waits again."""
        left = [name for name, holding in self.ledger.holdings.items() if holding.leaving]
        for name in left:
            again = self.ledger.holdings[name].request
            self.ledger.release(name)
            self.ledger.enqueue(again)
        self.ledger.check()
        return list(left)

    def nodes(self, name: str) -> list[str]:
        return [placement.node for placement in self.ledger.holdings[RequestId(name)].placements]

    def why(self, name: str) -> Waiting:
        return self.plan().why(RequestId(name))


def granted(made: Plan) -> dict[str, list[tuple[str, int]]]:
    """What was granted: by request, the nodes and the number of slots on each."""
    return {g.request: [(p.node, len(p.slots)) for p in g.placements] for g in made.grants}


def victims(made: Plan) -> list[str]:
    return sorted(preemption.victim for preemption in made.preemptions)


def could_fit(ledger: Ledger, wanted: Request, without: tuple[str, ...] = (), granted_too: Plan | None = None) -> bool:
    """By trying everything: could this request be placed if these holdings were gone? One part, small pools."""
    free: dict[str, list[int]] = {}
    for node, each in ledger.rooms.items():
        if each.usable and node not in wanted.excluded_nodes:
            disabled = set(each.disabled_slots)
            free[node] = [
                len([s for s in each.capacity.slots if s.index not in disabled and s.kind == CUDA]),
                each.capacity.millicpus,
                each.capacity.memory_bytes,
            ]
    held: list[Placement] = [p for name, h in ledger.holdings.items() if name not in without for p in h.placements]
    for grant in granted_too.grants if granted_too else ():
        held.extend(grant.placements)
    for placement in held:
        if placement.node in free:
            free[placement.node][0] -= len(placement.slots)
            free[placement.node][1] -= placement.millicpus
            free[placement.node][2] -= placement.memory_bytes
    if wanted.interactive is not None:
        free = {node: amounts for node, amounts in free.items() if node in wanted.interactive.nodes}
    (part,) = wanted.parts
    return _split_fits(part.shape, free) if isinstance(part.shape, Split) else _members_fit(part, part.shape, free)


def _split_fits(shape: Split, free: dict[str, list[int]]) -> bool:
    sizes = []
    for slots, millicpus, memory in free.values():
        size = max(slots, 0)
        if shape.millicpus_per_slot:
            size = min(size, max(millicpus, 0) // shape.millicpus_per_slot)
        if shape.memory_bytes_per_slot:
            size = min(size, max(memory, 0) // shape.memory_bytes_per_slot)
        sizes.append(size)
    for cut in product(*(range(min(size, shape.slots) + 1) for size in sizes)):
        used = [share for share in cut if share]
        whole = sum(cut) == shape.slots and len(used) <= (shape.max_nodes or len(cut))
        if whole and (not shape.even or len(set(used)) == 1):
            return True
    return False


def _members_fit(part: Part, shape: Members, free: dict[str, list[int]]) -> bool:
    each = shape.each
    for nodes in product(free, repeat=shape.count):
        if part.spread is Spread.HARD and (len(set(nodes)) < len(nodes) or set(nodes) & set(part.avoid)):
            continue
        count = {node: nodes.count(node) for node in nodes}
        if all(
            free[node][0] >= n * each.slots
            and (not each.millicpus or free[node][1] >= n * each.millicpus)
            and (not each.memory_bytes or free[node][2] >= n * each.memory_bytes)
            for node, n in count.items()
        ):
            return True
    return False
