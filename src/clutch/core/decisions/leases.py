"""Leases for cells: asked for, lingering, reclaimed, released."""

from __future__ import annotations

from collections.abc import Iterator

from clutch.core.checks import check_ask
from clutch.core.lease import Lease
from clutch.core.state import State
from clutch.wire import events as e
from clutch.wire import facts as f
from clutch.wire.errors import BadRequest, Conflict, Stale
from clutch.wire.ids import LeaseId, MemberId, RequestId, TaskId
from clutch.wire.outcomes import AllocationState, LeaseEnd, LeaseState, NodeState

Facts = Iterator[f.Fact]

RECLAIM_S = 30.0
"""How long a member has to bring its tensors to the host before its interpreter is ended."""


def ask(state: State, event: e.AskLease, now: float) -> Facts:
    """A cell wants slots. Any of the named replicas will do; the grant says which."""
    check_ask(event)
    task = state.task(event.task)
    known = state.leases.get(event.lease)
    if known is not None:
        if known.task != event.task:
            raise Conflict("another task has a lease of this name", object=f"lease {event.lease}")
        return
    if event.cell <= task.last_cell:
        raise Stale(
            f"cell {event.cell} asked before; the latest is {task.last_cell}",
            object=f"lease {event.lease}",
            next_step="Ask for the next cell.",
        )
    allocation = state.allocations.get(event.task)
    if allocation is None or allocation.state not in (AllocationState.PLACED, AllocationState.RUNNING):
        raise Conflict(
            "it is not running", object=f"task {event.task}", next_step="Resume it, then run the cell again."
        )
    for identity in event.members:
        member = state.members.get(identity)
        if member is None or identity.task != event.task:
            raise BadRequest(f"{identity} is not one of its members", object=f"task {event.task}")
        subscription = task.role(identity.role).subscribes
        if subscription is None or subscription.kind != event.kind or not 0 < event.slots <= subscription.slots:
            most = f"at most {subscription.slots} {subscription.kind}" if subscription else "no slots"
            raise BadRequest(
                f"a cell of {identity} may lease {most}, not {event.slots} {event.kind}",
                object=f"task {event.task}",
                next_step="Start the session with a larger subscription.",
            )
    yield f.LeaseWanted(
        event.lease,
        event.task,
        event.cell,
        event.members,
        event.slots,
        event.kind,
        state.orders + 1,
        now + event.wait_limit_s,
        event.wait_limit_s,
        event.linger_s,
    )


def withdraw(state: State, event: e.WithdrawLease, now: float) -> Facts:
    lease = state.lease(event.lease)
    if lease.state is LeaseState.WANTED:
        yield f.LeaseEnded(event.lease, LeaseEnd.WITHDRAWN)
    else:
        yield from reclaim(state, lease, "its cell gave it up", now)


def _numbered(state: State, lease: LeaseId, number: int) -> Lease:
    found = state.lease(lease)
    if found.number != number or found.placement is None:
        raise Stale(
            f"its number is {found.number}, not {number}", object=f"lease {lease}", next_step="Ask for a new lease."
        )
    return found


def idle(state: State, event: e.IdleLease, now: float) -> Facts:
    """The cell is over. The lease stays with its member while nobody else waits for the slots."""
    lease = _numbered(state, event.lease, event.number)
    if lease.state is LeaseState.HELD and lease.uses == event.use:
        yield f.LeaseLingered(event.lease, now + lease.linger_s)


def reuse(state: State, event: e.ReuseLease, now: float) -> Facts:
    """The next cell goes on with it, at the cost of one fact and no grant."""
    lease = _numbered(state, event.lease, event.number)
    if lease.state is LeaseState.LINGERING and lease.uses + 1 == event.use:
        yield f.LeaseReused(event.lease)
    elif lease.state is not LeaseState.HELD or lease.uses != event.use:
        raise Stale(f"it is {lease.state}", object=f"lease {event.lease}", next_step="Ask for a new lease.")


def reclaim(state: State, lease: Lease, detail: str, now: float, beneficiary: RequestId | None = None) -> Facts:
    if lease.state in (LeaseState.HELD, LeaseState.LINGERING):
        yield f.LeaseReclaimed(lease.lease, now + RECLAIM_S, detail, beneficiary)


def reclaim_all(state: State, task: TaskId, detail: str, now: float) -> Facts:
    """The task's session is over: what waits is withdrawn, what is held comes back."""
    for identity in list(state.leases_of.get(task, {})):
        lease = state.leases[identity]
        if lease.state is LeaseState.WANTED:
            yield f.LeaseEnded(identity, LeaseEnd.WITHDRAWN)
        elif lease.state in (LeaseState.HELD, LeaseState.LINGERING):
            yield f.LeaseReclaimed(identity, now, detail)


def _held_by(state: State, member: MemberId) -> list[Lease]:
    held = (state.leases[identity] for identity in state.leases_of.get(member.task, {}))
    return [lease for lease in held if lease.placement is not None and lease.members == (member,)]


def reclaim_of_member(state: State, member: MemberId, detail: str, now: float) -> Facts:
    """Its interpreter is gone with it; the slots are free as soon as the agent has seen that."""
    for lease in _held_by(state, member):
        if lease.state in (LeaseState.HELD, LeaseState.LINGERING):
            yield f.LeaseReclaimed(lease.lease, now, detail)


def lost_with_member(state: State, member: MemberId) -> Facts:
    """Nobody can say when the slots are free; their node is closed until its agent shows that they are."""
    for lease in _held_by(state, member):
        yield f.LeaseEnded(lease.lease, LeaseEnd.LOST)


def give_up_unreachable(state: State, task: TaskId) -> Facts:
    """Leases of an ended task on lost nodes: their agents cannot give them back, and need not."""
    for identity in list(state.leases_of.get(task, {})):
        placement = state.leases[identity].placement
        if placement is not None and state.nodes[placement.node].state is NodeState.LOST:
            yield f.LeaseEnded(identity, LeaseEnd.LOST)


def due(state: State, identity: LeaseId, now: float) -> Facts:
    lease = state.leases[identity]
    if lease.state is LeaseState.WANTED:
        yield f.LeaseEnded(identity, LeaseEnd.TIMED_OUT)
    else:
        yield from reclaim(state, lease, "nobody used it", now)
