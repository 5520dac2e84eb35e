"""How leases move on: slots for cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from clutch.core import lease as leases
from clutch.core.deadlines import Due
from clutch.core.lease import Lease
from clutch.core.recorded import Recorded
from clutch.core.state import State
from clutch.wire import facts as f
from clutch.wire.outcomes import LeaseState
from clutch.wire.schedule import Holding

replace = msgspec.structs.replace


def _put_lease(state: State, lease: Lease) -> None:
    state.leases[lease.lease] = lease
    state.touched.leases[lease.lease] = None
    state.touched.pools[state.tasks[lease.task].spec.pool] = None
    if lease.placement is not None:
        state.touched.nodes[lease.placement.node] = None


def _lease_wanted(state: State, fact: f.LeaseWanted, recorded: Recorded) -> None:
    lease = Lease(
        lease=fact.lease,
        task=fact.task,
        members=fact.members,
        slots=fact.slots,
        kind=fact.kind,
        order=fact.order,
        state=LeaseState.WANTED,
        asked_at=recorded.at,
        wait_limit_s=fact.wait_limit_s,
        linger_s=fact.linger_s,
        deadline=fact.wait_until,
    )
    state.orders = fact.order
    state.tasks[fact.task] = replace(state.tasks[fact.task], last_cell=fact.cell)
    state.leases_of.setdefault(fact.task, {})[fact.lease] = None
    _put_lease(state, lease)
    state.deadlines.set(Due.LEASE, fact.lease, fact.wait_until)
    state.ledger_of(fact.task).enqueue(state.lease_request(lease))


def _lease_granted(state: State, fact: f.LeaseGranted, recorded: Recorded) -> None:
    waiting = state.leases[fact.lease]
    placement = fact.placed.placement
    state.deadlines.clear(Due.LEASE, fact.lease)
    state.leases_on.setdefault(placement.node, {})[fact.lease] = None
    lease = replace(
        leases.moved(waiting, LeaseState.HELD),
        members=(fact.member,),
        placement=placement,
        number=fact.placed.lease_number,
        granted_at=recorded.at,
        uses=1,
        deadline=0.0,
    )
    holding = Holding(request=state.lease_request(lease), placements=(placement,), since=recorded.at)
    state.ledger_of(lease.task).hold(holding)
    _put_lease(state, lease)


def _lease_lingered(state: State, fact: f.LeaseLingered, recorded: Recorded) -> None:
    lease = leases.moved(state.leases[fact.lease], LeaseState.LINGERING)
    state.ledger_of(lease.task).mark(leases.request_id(fact.lease), lingering=True)
    state.deadlines.set(Due.LEASE, fact.lease, fact.until)
    _put_lease(state, replace(lease, deadline=fact.until))


def _lease_reused(state: State, fact: f.LeaseReused, recorded: Recorded) -> None:
    lease = leases.moved(state.leases[fact.lease], LeaseState.HELD)
    state.ledger_of(lease.task).mark(leases.request_id(fact.lease), lingering=False)
    state.deadlines.clear(Due.LEASE, fact.lease)
    _put_lease(state, replace(lease, deadline=0.0, uses=lease.uses + 1))


def _lease_reclaimed(state: State, fact: f.LeaseReclaimed, recorded: Recorded) -> None:
    lease = leases.moved(state.leases[fact.lease], LeaseState.RECLAIMING)
    request = leases.request_id(fact.lease)
    state.ledger_of(lease.task).mark(request, leaving=True, lingering=False, leaving_for=fact.beneficiary)
    state.deadlines.clear(Due.LEASE, fact.lease)
    lease = replace(lease, deadline=fact.deadline, beneficiary=fact.beneficiary, ending_index=recorded.index)
    _put_lease(state, lease)


def _lease_ended(state: State, fact: f.LeaseEnded, recorded: Recorded) -> None:
    lease = state.leases[fact.lease]
    ledger = state.ledger_of(lease.task)
    request = leases.request_id(fact.lease)
    if lease.placement is None:
        ledger.withdraw(request)
    else:
        ledger.release(request)
        del state.leases_on[lease.placement.node][fact.lease]
    state.deadlines.clear(Due.LEASE, fact.lease)
    _put_lease(state, lease)
    ended = replace(leases.moved(lease, LeaseState.ENDED), how=fact.how)
    del state.leases[fact.lease]
    del state.leases_of[lease.task][fact.lease]
    del state.touched.leases[fact.lease]
    state.touched.ended_leases[fact.lease] = ended


HANDLERS: dict[type[f.Fact], Callable[[State, Any, Recorded], None]] = {
    f.LeaseWanted: _lease_wanted,
    f.LeaseGranted: _lease_granted,
    f.LeaseLingered: _lease_lingered,
    f.LeaseReused: _lease_reused,
    f.LeaseReclaimed: _lease_reclaimed,
    f.LeaseEnded: _lease_ended,
}
