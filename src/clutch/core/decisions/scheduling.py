"""Plans made facts: ask each pool's policy what should happen, re-check it, and decide it.

Runs when something changed, not on a tick. A policy only proposes; what it proposes is checked against the ledger once
more here, and the agent has the last word on its slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from clutch.core import member as members
from clutch.core.decisions import allocations, leases
from clutch.core.scheduling.plan import Plan, plan, recheck
from clutch.core.state import State
from clutch.wire import facts as f
from clutch.wire.ids import LeaseId, MemberId, NodeId, PoolName, TaskId
from clutch.wire.schedule import Grant, Placement, Preemption

Facts = Iterator[f.Fact]


def schedule(state: State, pools: Iterable[PoolName], now: float, plans: dict[PoolName, Plan]) -> Facts:
    """What the pools' policies want now, one pass each. ``plans`` receives each pool's plan, for those who ask why;
    one that says there is more wants to be asked again once these facts are folded."""
    for pool in pools:
        ledger = state.ledgers[pool]
        if not ledger.waiting:
            plans.pop(pool, None)
            continue
        made = plans[pool] = plan(ledger, now)
        checked = recheck(made, ledger)
        for grant in checked.grants:
            yield granted(state, grant)
        for preemption in checked.preemptions:
            yield from preempted(state, preemption, now)


def _placed(state: State, placement: Placement) -> f.Placed:
    """A placement and its lease number: the index of the fact that will grant it, so it grows for ever on every slot,
    whatever becomes of the node."""
    return f.Placed(placement, state.index + 1 if placement.slots else 0)


def granted(state: State, grant: Grant) -> f.Fact:
    """The fact that a grant becomes: a lease, one member, or a whole allocation."""
    kind, _, name = grant.request.partition(":")
    if kind == "lease" and name:
        placed = _placed(state, grant.placements[0])
        lease = state.leases[LeaseId(name)]
        holder = next(m for m in lease.members if _lives_on(state, m, placed.placement.node))
        return f.LeaseGranted(lease.lease, holder, placed)
    member = state.waiting_members.get(grant.request)
    if member is not None:
        return f.MemberGranted(member, _placed(state, grant.placements[0]))
    task = state.tasks[TaskId(grant.request)]
    placed_members = tuple(_placed(state, placement) for placement in grant.placements)
    return f.AllocationGranted(task.task, task.epoch + 1, placed_members, grant.backfilled)


def _lives_on(state: State, member: MemberId, node: NodeId) -> bool:
    found = state.members.get(member)
    present = found is not None and found.state in members.PRESENT
    return present and found is not None and found.placement is not None and found.placement.node == node


def preempted(state: State, preemption: Preemption, now: float) -> Facts:
    kind, _, name = preemption.victim.partition(":")
    if kind == "lease" and name:
        lease = state.leases.get(LeaseId(name))
        if lease is not None:
            detail = f"{preemption.beneficiary} waits for its slots"
            yield from leases.reclaim(state, lease, detail, now, preemption.beneficiary)
        return
    task = TaskId(preemption.victim)
    if task in state.allocations:
        yield from allocations.ask_leave(state, task, preemption.reason, now, preemption.beneficiary)
