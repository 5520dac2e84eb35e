"""P1 to P5, checked where they could break: at each commit, each acknowledgement, each start, each kill.

A broken promise ends the simulation with what happened and to whom; the runner adds the seed and the story.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clutch.core import member as members
from clutch.core.recorded import Recorded
from clutch.core.state import State
from clutch.testing.sim.processes import checkpoint_step
from clutch.wire import facts as f
from clutch.wire.ids import Fence, MemberId, NodeId, TaskId
from clutch.wire.messages import WantedLease, WantedMember
from clutch.wire.outcomes import LeaseState, MemberState, TaskState, TaskWish, Verdict

if TYPE_CHECKING:
    from clutch.testing.sim.cluster import Cluster


class PromiseBroken(Exception):
    def __init__(self, promise: str, what: str, subject: str) -> None:
        super().__init__(f"{promise} is broken: {what}")
        self.promise = promise
        self.subject = subject


class Promises:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.truth = cluster.truth
        self.checks = 0
        self.broken: PromiseBroken | None = None

    def break_(self, promise: str, what: str, subject: str) -> None:
        """Keep the first one: it is raised by the runner, outside of everybody's error handling."""
        if self.broken is None:
            self.broken = PromiseBroken(promise, what, subject)

    # -- P1: what was acknowledged is durable ---------------------------------------------------------------------

    def submit_acknowledged(self, task: TaskId) -> None:
        self.checks += 1
        if task not in self.truth.submitted:
            self.break_("P1", f"the submission of {task} was acknowledged and is not in the journal", task)

    def wish_acknowledged(self, task: TaskId, wish: TaskWish) -> None:
        self.checks += 1
        harsher = list(TaskWish)[list(TaskWish).index(wish) :]
        if task not in self.truth.ended and not any((task, heard) in self.truth.wished for heard in harsher):
            self.break_("P1", f"that {task} should {wish} was acknowledged and is not in the journal", task)

    def checkpoint_acknowledged(self, task: TaskId, step: int) -> None:
        self.checks += 1
        steps = self.cluster.acknowledged_steps
        steps[task] = max(step, steps.get(task, 0))
        if self.truth.steps.get(task, 0) < step:
            self.break_("P1", f"checkpoint {step} of {task} was acknowledged and is not in the journal", task)

    # -- at each commit -------------------------------------------------------------------------------------------

    def deciding(self, recorded: Recorded) -> None:
        """A fact is about to become true: is it allowed in the state before it?"""
        self.checks += 1
        self.cluster.machine_promises.deciding(recorded)
        self.cluster.experiment_promises.deciding(recorded)
        self.cluster.gangs.deciding(recorded)
        state = self.truth.state
        match recorded.fact:
            case f.CheckpointCommitted(task, _, checkpoint, step):
                chief = next((m for m in state.members_of(task) if checkpoint.startswith(_writer(state, m))), None)
                if chief is None or chief.state not in members.PRESENT:
                    self.break_("P2", f"checkpoint {checkpoint} of {task} was written by a fenced incarnation", task)
                elif step < self.truth.steps.get(task, 0):
                    self.break_("P4", f"{task} fell back from step {self.truth.steps[task]} to {step}", task)
            case f.AllocationEnding(task, _, Verdict.EVICTED):
                leave = state.allocations[task].leave
                somebody = any(m.state in members.PRESENT for m in state.members_of(task))
                if leave is not None and somebody and recorded.at < leave.deadline:
                    self.break_("P4", f"{task} was evicted {leave.deadline - recorded.at:.1f} s early", task)
            case f.TaskMoved(task) if state.tasks[task].state is TaskState.RESTING and not state.tasks[task].setback:
                self.break_("law 11", f"{task} has rested, and nobody could tell why", task)
            case f.MemberRested(member) if not state.members[member].setback:
                self.break_("law 11", f"{member} has rested, and nobody could tell why", member.task)
            case f.LeaseReclaimed(lease):
                if recorded.cause == "scheduler" and state.leases[lease].state is LeaseState.HELD:
                    self.break_("P4", f"lease {lease} was taken from a running cell", lease)

    def committed(self) -> None:
        """Every component of the resource vector is conserved."""
        self.checks += 1
        for ledger in self.truth.state.ledgers.values():
            ledger.check()
        self.cluster.machine_promises.committed()

    # -- on the machines ------------------------------------------------------------------------------------------

    def slot_taken(self, node: NodeId, slot: int, who: str, found: dict[int, str]) -> None:
        self.checks += 1
        if slot in found:
            self.break_("P3", f"slot {slot} of {node} is in use by {found[slot]} and by {who}", who.split("/")[0])
        found[slot] = who

    def starting(self, node: NodeId, wanted: WantedMember) -> None:
        """Only what was durably granted starts, and from the last committed checkpoint."""
        self.checks += 1
        if (wanted.member, wanted.fence) not in self.truth.granted:
            self.break_("P1", f"{wanted.member} {wanted.fence} starts on {node}: never granted", wanted.member.task)
        task = self.truth.state.tasks.get(wanted.member.task)
        if task is not None and wanted.fence.epoch == task.epoch and wanted.member.role == "main":
            resumes, saved = checkpoint_step(wanted.checkpoint), task.step
            began = self.truth.state.allocations[task.task].began_at if task.state is TaskState.RUNNING else None
            if resumes < saved and began is not None and not self._saved_since(task.task, began):
                self.break_("P4", f"{wanted.member} resumes from step {resumes}, {saved} was committed", task.task)

    def _saved_since(self, task: TaskId, at: float) -> bool:
        """Whether this very epoch has saved something already (a restarted agent asks for the start again)."""
        recent = self.truth.history[-200:]
        return any(isinstance(r.fact, f.CheckpointCommitted) and r.fact.task == task and r.at >= at for r in recent)

    def handing(self, node: NodeId, lease: WantedLease) -> None:
        self.checks += 1
        if (lease.lease, lease.number) not in self.truth.leased:
            self.break_(
                "P1", f"lease {lease.lease} #{lease.number} is handed over on {node}: never granted", lease.lease
            )

    def ending(self, node: NodeId, member: MemberId, fence: Fence, stray: bool) -> None:
        """P5: nothing is killed but what the durable state wants gone."""
        self.checks += 1
        state = self.truth.state
        current = state.members.get(member)
        if current is None or current.fence(state.generation) != fence or current.state not in members.PRESENT:
            return
        if current.placement is not None and current.placement.node != node:
            return
        if current.state is not MemberState.ENDING:
            allocation = state.allocations[member.task].state
            self.break_("P5", f"{member} {fence} is killed on {node} while it should run ({allocation})", member.task)

    # -- at the end -----------------------------------------------------------------------------------------------

    def settled(self) -> None:
        """All faults are mended and all work was asked to end: nothing may be left waiting, running or held."""
        state = self.truth.state
        for task in state.tasks.values():
            allocation = state.allocations.get(task.task)
            where = f"{task.state}, allocation {allocation.state if allocation else 'none'}"
            self.break_("P3", f"{task.task} has not ended after everything was mended ({where})", task.task)
        for ledger in state.ledgers.values():
            if ledger.holdings:
                held = next(iter(ledger.holdings))
                self.break_("P3", f"{held} still holds resources in pool {ledger.pool.name}", held)
        for machine in self.cluster.machines.values():
            for occupant in machine.in_use().values():
                self.break_("P3", f"{occupant} still occupies a slot of {machine.node}", occupant.split("/")[0])
        for name, step in self.cluster.acknowledged_steps.items():
            if self.truth.steps.get(name, 0) < step:
                self.break_("P1", f"checkpoint {step} of {name} was acknowledged and is gone", name)
        for name in self.cluster.acknowledged_tasks:
            if name not in self.truth.submitted:
                self.break_("P1", f"{name} was acknowledged and is gone", name)
        self.cluster.experiment_promises.settled()
        self.cluster.machine_promises.settled()


def _writer(state: State, member: members.Member) -> str:
    """How the names of a simulated member's checkpoints begin."""
    return f"{member.fence(state.generation)}:"
