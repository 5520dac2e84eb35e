"""Terms, pools and nodes: what follows from reports, silence and what operators ask."""

from __future__ import annotations

from collections.abc import Iterator

from clutch.core import member as members
from clutch.core import node as nodes
from clutch.core.checks import check_pool
from clutch.core.decisions import allocations, leases
from clutch.core.decisions import members as member_decisions
from clutch.core.member import Member
from clutch.core.state import State
from clutch.wire import events as e
from clutch.wire import facts as f
from clutch.wire.errors import BadRequest, Conflict, Stale
from clutch.wire.ids import NodeId
from clutch.wire.machines import MachineId
from clutch.wire.messages import MemberStatus, ObservedMember, Report
from clutch.wire.outcomes import LeaseEnd, LeaseState, MachineState, MemberState, NodeState, NodeWish, Verdict
from clutch.wire.resources import Capacity
from clutch.wire.schedule import PreemptReason
from clutch.wire.specs import OnDeath, OnNodeLost

Facts = Iterator[f.Fact]


def begin_term(state: State, event: e.BeginTerm, now: float) -> Facts:
    if (event.generation, event.term) <= (state.generation, state.term):
        raise Stale(f"term {event.term} is not above {state.term}", object="mastership")
    yield f.TermBegan(event.generation, event.term)


def put_pool(state: State, event: e.PutPool, now: float) -> Facts:
    check_pool(event.pool)
    if state.pools.get(event.pool.name) != event.pool:
        yield f.PoolPut(event.pool)


def set_quota(state: State, event: e.SetQuota, now: float) -> Facts:
    scope, _, name = event.quota.scope.partition(":")
    if scope not in ("user", "workspace") or not name or event.quota.slots < 0:
        raise BadRequest(
            f"a quota of {event.quota.slots} slots for {event.quota.scope!r} is not one",
            object="quota",
            next_step="Name its scope 'user:NAME' or 'workspace:NAME' and give at least 0 slots.",
        )
    yield f.QuotaSet(event.quota)


def remove_quota(state: State, event: e.RemoveQuota, now: float) -> Facts:
    if event.scope in state.quotas:
        yield f.QuotaRemoved(event.scope)


# -- reports ------------------------------------------------------------------------------------------------------


def reported(state: State, event: e.Reported, now: float) -> Facts:
    """A node's agent says what it observes. First the node, then what runs on it, then what no longer does."""
    report = event.report
    if (report.generation, report.term) != (state.generation, state.term):
        raise Stale(
            f"the report belongs to term {report.term}, this is term {state.term}",
            object=f"node {report.node}",
            next_step="The agent must hear this master's hello first.",
        )
    pool = state.pool(report.pool)
    known = state.nodes.get(report.node)
    if known is not None and known.pool != pool.name:
        raise Conflict(
            f"it belongs to pool {known.pool}, the agent says {pool.name}",
            object=f"node {report.node}",
            next_step=f"Drain and remove the node first, or start the agent with --pool {known.pool}.",
        )
    _check_machine(state, report, known)
    strays = _strays(state, report)
    says = f.NodeReported(report.node, report.pool, report.session, report.capacity, strays)
    if known is None or _differs(state, known, says):
        yield says
        yield from _end_what_lost_its_slots(state, report.node, report.capacity, now)
    for observed in report.members:
        if _is_current(state, report.node, observed):
            yield from _observed(state, observed, now)
    yield from _no_longer_there(state, report, now)


def _check_machine(state: State, report: Report, known: nodes.Node | None) -> None:
    """A machine that was given up does not become a node again, however late its agent speaks."""
    machine = state.machines.get(MachineId(report.node))
    stopped = machine is not None and machine.state is MachineState.STOPPING
    if known is None and (stopped or MachineId(report.node) in state.gone_machines):
        raise Conflict(
            "its machine was given up" if machine is None else f"its machine is being stopped ({machine.reason})",
            object=f"node {report.node}",
            next_step="Nothing is needed: the machine is terminated.",
        )
    if machine is not None and machine.pool != report.pool:
        raise Conflict(
            f"its machine was launched for pool {machine.pool}, the agent says {report.pool}",
            object=f"node {report.node}",
            next_step=f"Start the agent with --pool {machine.pool}.",
        )


def _differs(state: State, known: nodes.Node, says: f.NodeReported) -> bool:
    to = nodes.state_after_report(known.wish, says.strays)
    if (known.state, known.session, known.strays) != (to, says.session, says.strays):
        return True
    return (known.capacity, known.missing) != state.on_the_books(known, says.capacity)


def _is_current(state: State, node: NodeId, observed: ObservedMember) -> bool:
    """Whether this very incarnation is the one that should be on this very node."""
    member = state.members.get(observed.member)
    return (
        member is not None
        and member.state in members.PRESENT
        and member.fence(state.generation) == observed.fence
        and member.placement is not None
        and member.placement.node == node
    )


def _strays(state: State, report: Report) -> tuple[str, ...]:
    """What is alive on the node though the books have it elsewhere, later, or not at all."""
    found = [
        f"{o.member} {o.fence}"
        for o in report.members
        if o.status is not MemberStatus.EXITED and not _is_current(state, report.node, o)
    ]
    for observed in report.leases:
        lease = state.leases.get(observed.lease)
        placed_here = lease is not None and lease.placement is not None and lease.placement.node == report.node
        if lease is None or not placed_here or lease.number != observed.number:
            found.append(f"lease {observed.lease} #{observed.number}")
    return tuple(sorted(found))


def _end_what_lost_its_slots(state: State, node: NodeId, capacity: Capacity, now: float) -> Facts:
    there = {slot.index for slot in capacity.slots}
    for identity in list(state.members_on.get(node, {})):
        member = state.members.get(identity)
        if member is None or member.placement is None or member.state not in members.PRESENT:
            continue
        missing = [slot for slot in member.placement.slots if slot not in there]
        if missing:
            detail = f"slot {missing[0]} of node {node} disappeared under {identity}"
            yield from allocations.end(state, identity.task, Verdict.INFRASTRUCTURE, detail, now)
    for lease_id in list(state.leases_on.get(node, {})):
        lease = state.leases[lease_id]
        if lease.placement is not None and not there.issuperset(lease.placement.slots):
            yield from leases.reclaim(state, lease, f"a slot of node {node} disappeared under it", now)


def _observed(state: State, observed: ObservedMember, now: float) -> Facts:
    member = state.members[observed.member]
    if observed.status is MemberStatus.EXITED:
        assert observed.exit is not None
        yield from member_decisions.exited(state, member, observed.exit, now)
        return
    running = observed.status is MemberStatus.RUNNING
    news = not member.observed or (running and member.state in (MemberState.PLACED, MemberState.STARTING))
    if news:
        yield f.MemberObserved(observed.member, observed.fence, observed.status)
        if running:
            yield from allocations.ran(state, observed.member.task)


def _no_longer_there(state: State, report: Report, now: float) -> Facts:
    """Members and leases the books have on this node and the report has not."""
    listed = {o.member for o in report.members if _is_current(state, report.node, o)}
    for identity in list(state.members_on.get(report.node, {})):
        member = state.members.get(identity)
        if identity in listed or member is None or member.state not in members.PRESENT:
            continue
        if member.observed:
            yield from member_decisions.lost(state, member, f"node {report.node} no longer knows it", now)
        elif member.state is MemberState.ENDING and _reflects(state, report, member.ending_index):
            yield from member_decisions.lost(state, member, "it was ended before it started", now)
    in_use = {o.lease for o in report.leases}
    for lease_id in list(state.leases_on.get(report.node, {})):
        lease = state.leases.get(lease_id)
        if lease is None or lease_id in in_use or lease.state is not LeaseState.RECLAIMING:
            continue
        if _reflects(state, report, lease.ending_index):
            yield f.LeaseEnded(lease_id, LeaseEnd.RELEASED)
            yield from allocations.settle(state, lease.task, now)


def _reflects(state: State, report: Report, index: int) -> bool:
    """Whether the agent had taken in a ``Wanted`` from ``index`` or later, or nothing from before it can reach it."""
    return report.wanted_sequence >= index or index < state.term_index


# -- silence ------------------------------------------------------------------------------------------------------


def silent(state: State, event: e.Silent, now: float) -> Facts:
    """The link broke. A node this term has not heard from is waited for anyway."""
    node = state.node(event.node)
    if node.state in nodes.HEARD or node.strays:
        yield f.NodeSuspected(event.node)


def silence_due(state: State, node: NodeId, now: float) -> Facts:
    """Silent for too long: its work goes on elsewhere, unless it would rather wait."""
    yield f.NodeLost(node)
    for identity in list(state.members_on.get(node, {})):
        member = state.members.get(identity)
        if member is None or member.state not in members.PRESENT:
            continue
        waits = state.tasks[identity.task].spec.on_node_lost is OnNodeLost.WAIT
        if not waits or member.state is MemberState.ENDING:
            yield from member_decisions.lost(state, member, f"node {node} is lost", now)
    yield from _leases_lost(state, node, now)


def _leases_lost(state: State, node: NodeId, now: float) -> Facts:
    """Leases on a lost node whose member is not waiting there for it to return."""
    for lease_id in list(state.leases_on.get(node, {})):
        lease = state.leases.get(lease_id)
        if lease is None:
            continue
        holder = state.members.get(lease.members[0])
        if holder is None or holder.state not in members.PRESENT or lease.state is LeaseState.RECLAIMING:
            yield f.LeaseEnded(lease_id, LeaseEnd.LOST)
            yield from allocations.settle(state, lease.task, now)


def give_up(state: State, node: nodes.Node, detail: str, now: float) -> Facts:
    """The node will never return: whatever is on it is lost, also what would have waited, and it is forgotten."""
    if node.state in nodes.HEARD or node.strays:
        yield f.NodeSuspected(node.node)
    if node.state is not NodeState.LOST:
        yield f.NodeLost(node.node)
    for identity in list(state.members_on.get(node.node, {})):
        member = state.members.get(identity)
        if member is not None and member.state in members.PRESENT:
            yield from member_decisions.lost(state, member, detail, now)
    yield from _leases_lost(state, node.node, now)
    if not (state.members_on.get(node.node) or state.leases_on.get(node.node)):
        yield f.NodeRemoved(node.node)


def residents_due(state: State, node: NodeId, now: float) -> Facts:
    """A suspect node's resident members (notebook replicas) are replaced long before the node is given up."""
    yield f.ResidentsLost(node)
    for identity in list(state.members_on.get(node, {})):
        member = state.members.get(identity)
        if member is not None and member.state in members.PRESENT and _is_resident(state, member):
            yield from member_decisions.lost(state, member, f"node {node} is silent", now)


def _is_resident(state: State, member: Member) -> bool:
    task = state.tasks[member.member.task]
    role = task.role(member.member.role)
    replaced = role.on_death is OnDeath.RESPAWN and task.spec.on_node_lost is OnNodeLost.RESTART
    return replaced and role.subscribes is not None and member.placement is not None


# -- what operators ask -------------------------------------------------------------------------------------------


def drain(state: State, event: e.DrainNode, now: float) -> Facts:
    """Nothing new comes here; what can leave is asked to."""
    node = state.node(event.node)
    if node.wish is NodeWish.DRAIN:
        return
    yield f.NodeWished(event.node, NodeWish.DRAIN)
    for identity in list(state.members_on.get(event.node, {})):
        member = state.members.get(identity)
        if member is None or member.state not in members.PRESENT:
            continue
        task = state.tasks[identity.task]
        if task.role(identity.role).on_death is OnDeath.RESPAWN:
            yield from member_decisions.ask_leave(state, member, PreemptReason.DRAINED, now)
        elif task.spec.preemptible:
            yield from allocations.ask_leave(state, identity.task, PreemptReason.DRAINED, now)


def open_node(state: State, event: e.OpenNode, now: float) -> Facts:
    node = state.node(event.node)
    machine = state.machines.get(MachineId(event.node))
    if machine is not None and machine.state is MachineState.STOPPING:
        raise Conflict(
            f"its machine is being stopped ({machine.reason})",
            object=f"node {event.node}",
            next_step="Wait for another machine; the pool launches one when work needs it.",
        )
    if node.wish is not NodeWish.OPEN:
        yield f.NodeWished(event.node, NodeWish.OPEN)


def disable_slots(state: State, event: e.DisableSlots, now: float) -> Facts:
    node = state.node(event.node)
    known = {slot.index for slot in node.capacity.slots}
    unknown = [slot for slot in event.slots if slot not in known]
    if unknown:
        raise BadRequest(
            f"it has no slot {unknown[0]}",
            object=f"node {event.node}",
            next_step=f"Its slots are {sorted(known)}.",
        )
    slots = tuple(sorted(dict.fromkeys(event.slots)))
    if slots != node.disabled:
        yield f.SlotsDisabled(event.node, slots)


def remove_node(state: State, event: e.RemoveNode, now: float) -> Facts:
    node = state.node(event.node)
    busy = state.members_on.get(event.node) or state.leases_on.get(event.node)
    if busy or node.state not in (NodeState.LOST, NodeState.DRAINING):
        drained = node.wish is NodeWish.DRAIN
        raise Conflict(
            "work is still placed on it" if busy else f"it is {node.state}",
            object=f"node {event.node}",
            next_step="Wait until it is empty." if drained else f"Drain it first: 'clutch agent drain {event.node}'.",
        )
    yield f.NodeRemoved(event.node)
