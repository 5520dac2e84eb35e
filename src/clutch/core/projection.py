"""The views that a batch changed: one flat row for each thing touched, from its present or last state."""

from __future__ import annotations

from clutch.core import member as members
from clutch.core.allocation import Allocation
from clutch.core.lease import Lease
from clutch.core.machines import Machine
from clutch.core.member import Member
from clutch.core.node import Node
from clutch.core.state import State, Touched
from clutch.core.task import Task
from clutch.wire.journal import Gone
from clutch.wire.messages import Exit, ExitCause
from clutch.wire.views import AllocationView, LeaseView, MachineView, NodeView, TaskView, View


def project(state: State, touched: Touched) -> tuple[View | Gone, ...]:
    """Rows to write in the same transaction as the facts that touched them."""
    found: list[View | Gone] = []
    for task in touched.tasks:
        if task in state.tasks:
            found.append(task_view(state.tasks[task], _slots(list(state.members_of(task)))))
        if task in state.allocations:
            found.append(allocation_view(state.allocations[task], list(state.members_of(task))))
    found += [allocation_view(allocation, list(gone)) for allocation, gone in touched.ended_allocations.values()]
    found += [task_view(task, 0) for task in touched.ended_tasks.values()]
    found += [node_view(state, state.nodes[node]) for node in touched.nodes if node in state.nodes]
    found += [Gone(NodeView.table, node) for node in touched.removed_nodes if node not in state.nodes]
    found += [lease_view(state.leases[lease]) for lease in touched.leases if lease in state.leases]
    found += [lease_view(lease) for lease in touched.ended_leases.values()]
    found += [machine_view(state.machines[name]) for name in touched.machines if name in state.machines]
    found += [machine_view(machine) for name, machine in touched.ended_machines.items() if name not in state.machines]
    for controller, notes in touched.notes.items():
        workload = state.workloads.get(controller) or touched.ended_workloads[controller]
        found += state.controllers[workload.kind].rows(workload.own, notes)
    return tuple(found)


def _slots(of: list[Member]) -> int:
    return sum(len(m.placement.slots) for m in of if m.placement is not None and m.state in members.PRESENT)


def task_view(task: Task, slots: int) -> TaskView:
    return TaskView(
        key=task.task,
        kind=task.spec.kind,
        name=task.spec.name,
        pool=task.spec.pool,
        owner=task.spec.owner,
        workspace=task.spec.workspace,
        project=task.spec.project,
        state=task.state,
        reason=task.reason or "",
        detail=task.detail or task.trouble,
        priority=task.priority or task.spec.priority,
        epoch=task.epoch,
        restarts=task.failures,
        slots=slots,
        submitted_at=task.submitted_at,
        ended_at=task.ended_at,
    )


def deciding(of: list[Member]) -> Exit | None:
    """The exit that says how it went: of the first member that failed by itself, or else of its chief."""
    exits = [member.exit for member in of if member.exit is not None]
    failed = [exit for exit in exits if exit.code != 0 and exit.cause is not ExitCause.ENDED]
    return next(iter(failed or exits), None)


def allocation_view(allocation: Allocation, of: list[Member]) -> AllocationView:
    return AllocationView(
        key=f"{allocation.task}:{allocation.epoch}",
        task=allocation.task,
        epoch=allocation.epoch,
        state=allocation.state,
        slots=_slots(of),
        nodes=",".join(dict.fromkeys(m.placement.node for m in of if m.placement is not None)),
        exit=allocation.verdict or "",
        began_at=allocation.began_at,
        ended_at=allocation.ended_at,
        exit_code="" if (exit := deciding(of)) is None else str(exit.code),
        detail=allocation.detail,
    )


def node_view(state: State, node: Node) -> NodeView:
    held = _slots([state.members[m] for m in state.members_on.get(node.node, {})])
    for lease in state.leases_on.get(node.node, {}):
        held += state.leases[lease].slots
    return NodeView(
        key=node.node,
        pool=node.pool,
        state=node.state,
        reason=", ".join(node.strays),
        slots=len(node.capacity.slots),
        slots_held=held,
        millicpus=node.capacity.millicpus,
        memory_bytes=node.capacity.memory_bytes,
        changed_at=node.since,
    )


def lease_view(lease: Lease) -> LeaseView:
    return LeaseView(
        key=lease.lease,
        task=lease.task,
        member=str(lease.members[0]) if lease.placement is not None else "",
        node=lease.placement.node if lease.placement is not None else "",
        slots=",".join(map(str, lease.placement.slots)) if lease.placement is not None else "",
        number=lease.number,
        state=lease.how or lease.state,
        asked_at=lease.asked_at,
        granted_at=lease.granted_at,
    )


def machine_view(machine: Machine) -> MachineView:
    return MachineView(
        key=machine.machine,
        pool=machine.pool,
        state=machine.state,
        reason=machine.reason or "",
        detail=machine.detail,
        instance=machine.instance,
        address=machine.address,
        asked_at=machine.asked_at,
        changed_at=machine.since,
        idle_since=machine.idle_since or 0.0,
    )
