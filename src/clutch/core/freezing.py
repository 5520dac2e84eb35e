"""The live state as bytes, and back: what a snapshot holds.

Only entities are written; ledgers, deadlines and look-ups are indexes and are built again. ``VERSION`` grows with every
change that an older release could not read; a newer one than ours is refused, an older one is brought up to date here.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from clutch.core import member as members
from clutch.core import task as tasks
from clutch.core.allocation import Allocation
from clutch.core.controller import Controller
from clutch.core.deadlines import Due
from clutch.core.folds.cluster import wait_for
from clutch.core.lease import Lease
from clutch.core.machines import Machine, Setbacks
from clutch.core.member import Member
from clutch.core.node import Node
from clutch.core.scheduling.ledger import Ledger
from clutch.core.state import State, Workload
from clutch.core.task import Task
from clutch.wire.errors import Corrupt, TooNew
from clutch.wire.ids import PoolName, RequestId, TaskId
from clutch.wire.journal import Snapshot
from clutch.wire.machines import MachineId
from clutch.wire.outcomes import AllocationState, LeaseState, MemberState, TaskState
from clutch.wire.schedule import Holding
from clutch.wire.specs import PoolSpec, Quota

VERSION = 2
"""2: machines."""


class FrozenWorkload(msgspec.Struct, frozen=True, array_like=True):
    controller: str
    kind: str
    own: bytes
    alarm: float


class FrozenState(msgspec.Struct, frozen=True):
    index: int
    at: float
    generation: int
    term: int
    term_index: int
    orders: int
    pools: list[PoolSpec]
    quotas: list[Quota]
    nodes: list[Node]
    tasks: list[Task]
    allocations: list[Allocation]
    members: list[Member]
    leases: list[Lease]
    workloads: list[FrozenWorkload]
    keys: dict[str, TaskId]
    began: dict[TaskId, float]
    """Since when each allocation's present holding counts: the ledger's ``since`` after a respawn may be later."""
    machines: list[Machine] = []
    setbacks: dict[PoolName, Setbacks] = {}
    gone_machines: dict[MachineId, int] = {}


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(FrozenState)


def freeze(state: State) -> Snapshot:
    """A snapshot of everything that is so after the state's last fact."""
    began = {}
    for task in state.allocations:
        holding = state.ledger_of(task).holdings.get(RequestId(task))
        if holding is not None:
            began[task] = holding.since
    frozen = FrozenState(
        index=state.index,
        at=state.at,
        generation=state.generation,
        term=state.term,
        term_index=state.term_index,
        orders=state.orders,
        pools=list(state.pools.values()),
        quotas=list(state.quotas.values()),
        nodes=list(state.nodes.values()),
        tasks=list(state.tasks.values()),
        allocations=list(state.allocations.values()),
        members=list(state.members.values()),
        leases=list(state.leases.values()),
        workloads=[
            FrozenWorkload(w.controller, w.kind, state.controllers[w.kind].dump(w.own), w.alarm)
            for w in state.workloads.values()
        ],
        keys=state.keys,
        began=began,
        machines=list(state.machines.values()),
        setbacks=state.setbacks,
        gone_machines=state.gone_machines,
    )
    return Snapshot(index=state.index, version=VERSION, payload=_encoder.encode(frozen))


def thaw(snapshot: Snapshot, controllers: Mapping[str, Controller]) -> State:
    """The state a snapshot holds, with its indexes."""
    if snapshot.version > VERSION:
        raise TooNew(
            f"this release reads snapshots up to version {VERSION}, this one has {snapshot.version}",
            object=f"snapshot at {snapshot.index}",
            next_step="Start the release that wrote it, or a newer one.",
        )
    try:
        frozen = _decoder.decode(snapshot.payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"its bytes do not decode: {error}",
            object=f"snapshot at {snapshot.index}",
            next_step="Restore the last backup with 'clutch restore'.",
        ) from error
    state = State(controllers)
    state.index, state.at, state.orders = frozen.index, frozen.at, frozen.orders
    state.generation, state.term, state.term_index = frozen.generation, frozen.term, frozen.term_index
    for quota in frozen.quotas:
        state.quotas[quota.scope] = quota
        state.quota_book.set_limit(quota)
    for pool in frozen.pools:
        state.pools[pool.name] = pool
        state.ledgers[pool.name] = Ledger(pool, state.quota_book)
    state.keys = dict(frozen.keys)
    state.machines = {machine.machine: machine for machine in frozen.machines}
    state.setbacks = dict(frozen.setbacks)
    state.gone_machines = dict(frozen.gone_machines)
    for frozen_workload in frozen.workloads:
        own = controllers[frozen_workload.kind].load(frozen_workload.own)
        workload = Workload(frozen_workload.controller, frozen_workload.kind, own, frozen_workload.alarm)
        state.workloads[workload.controller] = workload
        if workload.alarm:
            state.deadlines.set(Due.ALARM, workload.controller, workload.alarm)
    _thaw_nodes(state, frozen)
    _thaw_tasks(state, frozen)
    _thaw_leases(state, frozen)
    return state


def _thaw_nodes(state: State, frozen: FrozenState) -> None:
    for node in frozen.nodes:
        state.nodes[node.node] = node
        state.ledgers[node.pool].put_room(node.room())
        wait_for(state, node)


def _thaw_tasks(state: State, frozen: FrozenState) -> None:
    for task in frozen.tasks:
        state.tasks[task.task] = task
    for allocation in frozen.allocations:
        state.allocations[allocation.task] = allocation
        if allocation.state is AllocationState.LEAVING and allocation.leave is not None:
            state.deadlines.set(Due.LEAVE, allocation.task, allocation.leave.deadline)
        if allocation.state is AllocationState.FLUSHING:
            state.deadlines.set(Due.FLUSH, allocation.task, allocation.flush_deadline)
    for member in frozen.members:
        state.members[member.member] = member
        if member.placement is not None and member.state in members.PRESENT:
            state.members_on.setdefault(member.placement.node, {})[member.member] = None
        if member.state is MemberState.LEAVING:
            state.deadlines.set(Due.MEMBER_LEAVE, str(member.member), member.deadline)
    for task in frozen.tasks:
        ledger = state.ledgers[task.spec.pool]
        if task.state is TaskState.RESTING:
            state.deadlines.set(Due.REST, task.task, task.rest_until)
        for bar in task.barred:
            state.deadlines.set(Due.BAR, tasks.bar_name(task.task, bar.node), bar.until)
        if task.state is TaskState.QUEUED:
            ledger.enqueue(tasks.request(task))
        present = [m for m in state.members_of(task.task) if m.state in members.PRESENT]
        placements = tuple(m.placement for m in present if m.placement is not None)
        if placements:
            allocation = state.allocations[task.task]
            request = tasks.request(task)
            holding = Holding(
                request=request,
                placements=placements,
                since=frozen.began[task.task],
                last_victim_at=task.last_victim_at,
                backfilled=allocation.backfilled,
                leaving_for=allocation.beneficiary or RequestId(""),
                leaving=allocation.state in (AllocationState.LEAVING, AllocationState.ENDING),
            )
            ledger.keep(holding)
    for member in frozen.members:
        if member.state is MemberState.RESTING:
            state.deadlines.set(Due.MEMBER_REST, str(member.member), member.rest_until)
        if member.state is MemberState.WANTED:
            state.waiting_members[members.request_id(member.member)] = member.member
            state.ledger_of(member.member.task).enqueue(state.member_request(member))


def _thaw_leases(state: State, frozen: FrozenState) -> None:
    for lease in frozen.leases:
        state.leases[lease.lease] = lease
        state.leases_of.setdefault(lease.task, {})[lease.lease] = None
        if lease.state in (LeaseState.WANTED, LeaseState.LINGERING):
            state.deadlines.set(Due.LEASE, lease.lease, lease.deadline)
        ledger = state.ledger_of(lease.task)
        request = state.lease_request(lease)
        if lease.placement is None:
            ledger.enqueue(request)
            continue
        state.leases_on.setdefault(lease.placement.node, {})[lease.lease] = None
        ledger.keep(
            Holding(
                request=request,
                placements=(lease.placement,),
                since=lease.granted_at,
                leaving=lease.state is LeaseState.RECLAIMING,
                leaving_for=lease.beneficiary or RequestId(""),
                lingering=lease.state is LeaseState.LINGERING,
            )
        )
