"""The live state of a cluster: the fold of the journal, and the questions one may ask it.

It holds what lives; what has ended is only in SQL. Entities are frozen values in dictionaries whose order is the order
of the facts that made them, so iterating is deterministic. Ledgers and deadlines are indexes over the entities: only
``fold`` changes any of this, and a state loaded from a snapshot builds the same indexes again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from clutch.core import lease as leases
from clutch.core import member as members
from clutch.core import task as tasks
from clutch.core.allocation import Allocation
from clutch.core.controller import Controller
from clutch.core.deadlines import Deadlines
from clutch.core.lease import Lease
from clutch.core.machines import Machine, Setbacks
from clutch.core.member import Member
from clutch.core.node import Node
from clutch.core.scheduling.ledger import Ledger
from clutch.core.scheduling.quota import QuotaBook
from clutch.core.task import Task
from clutch.wire.errors import NotFound
from clutch.wire.ids import LeaseId, MemberId, NodeId, PoolName, RequestId, TaskId, Term
from clutch.wire.machines import MachineId
from clutch.wire.resources import Capacity, Resources
from clutch.wire.schedule import Interactive, Part, Request
from clutch.wire.specs import Members, PoolSpec, Quota

KEYS_REMEMBERED = 10_000
"""How many submit keys are kept; a repeat after so many other submissions is a new task."""

MACHINES_REMEMBERED = 1_000
"""How many machines that are gone are kept by name, so that a late word of their agents does not bring them back."""


class Workload(msgspec.Struct, frozen=True):
    """A controller at work: its kind and its own state."""

    controller: str
    kind: str
    own: Any
    alarm: float = 0.0


class State:
    """Everything that is so. Read it freely; only ``core.fold`` writes."""

    def __init__(self, controllers: Mapping[str, Controller]) -> None:
        self.controllers = controllers
        self.index = 0
        """Of the last fact folded."""
        self.at = 0.0
        """When that fact was decided: time never runs backwards from here."""
        self.generation = 0
        self.term: Term = 0
        self.term_index = 0
        """Where this term began: no order given before it can still be accepted by an agent that reports to it."""
        self.orders = 0
        self.pools: dict[PoolName, PoolSpec] = {}
        self.quotas: dict[str, Quota] = {}
        self.nodes: dict[NodeId, Node] = {}
        self.machines: dict[MachineId, Machine] = {}
        self.setbacks: dict[PoolName, Setbacks] = {}
        """Pools whose last launch failed."""
        self.gone_machines: dict[MachineId, int] = {}
        """The last ones to go, with the index of the fact that says so."""
        self.tasks: dict[TaskId, Task] = {}
        self.allocations: dict[TaskId, Allocation] = {}
        self.members: dict[MemberId, Member] = {}
        self.leases: dict[LeaseId, Lease] = {}
        self.workloads: dict[str, Workload] = {}
        self.keys: dict[str, TaskId] = {}
        # Indexes, derived from the above
        self.quota_book = QuotaBook()
        self.ledgers: dict[PoolName, Ledger] = {}
        self.deadlines = Deadlines()
        self.members_on: dict[NodeId, dict[MemberId, None]] = {}
        self.leases_on: dict[NodeId, dict[LeaseId, None]] = {}
        self.leases_of: dict[TaskId, dict[LeaseId, None]] = {}
        self.waiting_members: dict[RequestId, MemberId] = {}
        self.touched: Touched = Touched()

    # -- looking things up: an unknown name is the caller's error ------------------------------------------------

    def task(self, task: TaskId) -> Task:
        found = self.tasks.get(task)
        if found is None:
            raise NotFound("no live task has this id", object=f"task {task}", next_step="List tasks with 'clutch ps'.")
        return found

    def node(self, node: NodeId) -> Node:
        found = self.nodes.get(node)
        if found is None:
            raise NotFound(
                "no node has this name", object=f"node {node}", next_step="List nodes with 'clutch agent list'."
            )
        return found

    def lease(self, lease: LeaseId) -> Lease:
        found = self.leases.get(lease)
        if found is None:
            raise NotFound("no live lease has this id", object=f"lease {lease}", next_step="Ask for a new one.")
        return found

    def pool(self, pool: PoolName) -> PoolSpec:
        found = self.pools.get(pool)
        if found is None:
            known = ", ".join(self.pools) or "none yet"
            raise NotFound("no pool has this name", object=f"pool {pool}", next_step=f"Pools: {known}.")
        return found

    def workload(self, controller: str) -> Workload:
        found = self.workloads.get(controller)
        if found is None:
            raise NotFound("nothing with this id is live", object=f"workload {controller}")
        return found

    def members_of(self, task: TaskId) -> Iterator[Member]:
        """The members of a task's live allocation, in rank order of each role."""
        allocation = self.allocations.get(task)
        return (self.members[m] for m in allocation.members) if allocation else iter(())

    def ledger_of(self, task: TaskId) -> Ledger:
        return self.ledgers[self.tasks[task].spec.pool]

    def on_the_books(self, node: Node, reported: Capacity) -> tuple[Capacity, tuple[int, ...]]:
        """What a node has as far as the books go: what it reports, and the slots missing from it that are held."""
        there = {slot.index for slot in reported.slots}
        held = [self.members[member].placement for member in self.members_on.get(node.node, {})]
        held += [self.leases[lease].placement for lease in self.leases_on.get(node.node, {})]
        missing = {slot for placement in held if placement is not None for slot in placement.slots} - there
        kept = tuple(slot for slot in node.capacity.slots if slot.index in missing)
        capacity = msgspec.structs.replace(reported, slots=(*reported.slots, *kept)) if kept else reported
        return capacity, tuple(sorted(missing))

    # -- what waits: requests as the scheduler sees them ---------------------------------------------------------

    def member_request(self, member: Member) -> Request:
        """One member alone waits for a place: its role grows, or it must start again."""
        task = self.tasks[member.member.task]
        role = task.role(member.member.role)
        assert isinstance(role.shape, Members)
        peers = (self.members[m] for m in self.allocations[task.task].members if m.role == role.name)
        part = Part(
            role=role.name,
            shape=Members(count=1, each=role.shape.each),
            spread=role.spread,
            subscribes=role.subscribes,
            first_rank=member.member.rank,
            avoid=tuple(p.placement.node for p in peers if p.placement is not None and p.state in members.PRESENT),
        )
        return tasks.request_for(task, members.request_id(member.member), (part,))

    def lease_request(self, lease: Lease) -> Request:
        """A cell waits for slots on the node of one of its replicas, or has them there."""
        task = self.tasks[lease.task]
        present = (m for m in self.members_of(task.task) if m.member in lease.members and m.state in members.PRESENT)
        nodes = [m.placement for m in present] if lease.placement is None else [lease.placement]
        part = Part(role="cell", shape=Members(count=1, each=Resources(slots=lease.slots, kind=lease.kind)))
        request = tasks.request_for(task, leases.request_id(lease.lease), (part,))
        return msgspec.structs.replace(
            request,
            order=lease.order,
            preemptible=False,
            interactive=Interactive(
                nodes=tuple(dict.fromkeys(p.node for p in nodes if p is not None)),
                wait_limit_s=lease.wait_limit_s,
            ),
        )


class Touched:
    """Which things changed since the last look, in order; and the last word on what has ended."""

    def __init__(self) -> None:
        self.tasks: dict[TaskId, None] = {}
        self.nodes: dict[NodeId, None] = {}
        self.leases: dict[LeaseId, None] = {}
        self.pools: dict[PoolName, None] = {}
        """Where something changed that the scheduler should know."""
        self.ended_tasks: dict[TaskId, Task] = {}
        self.ended_allocations: dict[tuple[TaskId, int], tuple[Allocation, tuple[Member, ...]]] = {}
        self.ended_leases: dict[LeaseId, Lease] = {}
        self.removed_nodes: dict[NodeId, None] = {}
        self.machines: dict[MachineId, None] = {}
        self.ended_machines: dict[MachineId, Machine] = {}
        self.notes: dict[str, list[bytes]] = {}
        """What workloads noted."""
        self.ended_workloads: dict[str, Workload] = {}
