"""The stage with the words of these tests: trials, sessions and programs, and what happens to them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from clutch.core.freezing import freeze
from clutch.testing.stage import POOL, Stage
from clutch.wire import events as e
from clutch.wire.errors import ClutchError
from clutch.wire.facts import Fact
from clutch.wire.ids import Fence, LeaseId, MemberId, NodeId, TaskId
from clutch.wire.messages import Exit, ExitCause
from clutch.wire.outcomes import AllocationState, MemberState, TaskState
from clutch.wire.resources import CUDA, Resources
from clutch.wire.specs import Members, OnDeath, RoleSpec, Shape, Spread, Subscription, TaskSpec


def trial_spec(name: str, slots: int = 1, *, ranks: int = 1, shape: Shape | None = None, **more: Any) -> TaskSpec:
    role = RoleSpec(
        "main", shape or Members(ranks, Resources(slots=slots)), count_max=more.pop("count_max", 0), count_min=0
    )
    return TaskSpec(**{"kind": "trial", "name": name, "pool": POOL, "roles": (role,), **more})


def session_spec(
    name: str, replicas: int = 3, *, slots: int = 2, spread: Spread = Spread.HARD, **more: Any
) -> TaskSpec:
    role = RoleSpec(
        "replica",
        Members(replicas, Resources(millicpus=1000)),
        spread=spread,
        subscribes=Subscription(slots, CUDA),
        on_death=OnDeath.RESPAWN,
    )
    return TaskSpec(**{"kind": "notebook", "name": name, "pool": POOL, "roles": (role,), **more})


def program_spec(name: str, actors: int = 2, *, trainer_slots: int = 1, **more: Any) -> TaskSpec:
    roles = (
        RoleSpec("trainer", Members(1, Resources(slots=trainer_slots))),
        RoleSpec(
            "actor",
            Members(actors, Resources(millicpus=1000)),
            on_death=OnDeath.RESPAWN,
            count_min=more.pop("count_min", 1),
            count_max=8,
        ),
    )
    return TaskSpec(**{"kind": "rl", "name": name, "pool": POOL, "roles": roles, **more})


def workers_spec(name: str, workers: int = 2, **more: Any) -> TaskSpec:
    """One role whose members live one by one, and nobody leads."""
    role = RoleSpec("worker", Members(workers, Resources(slots=1)), on_death=OnDeath.RESPAWN, count_min=1, count_max=8)
    return TaskSpec(**{"kind": "rl", "name": name, "pool": POOL, "roles": (role,), **more})


def names(facts: Iterable[Fact]) -> list[str]:
    return [type(fact).__name__ for fact in facts]


class House(Stage):
    """A stage whose sentences are short."""

    def nodes(self, *slots: int) -> House:
        for number, each in enumerate(slots):
            self.add_node(f"n{number}", each)
        return self

    def submit(self, spec: TaskSpec, **more: Any) -> TaskId:
        task = TaskId(spec.name)
        self.do(e.Submit(cause="api", task=task, spec=spec, **more))
        return task

    def running(self, spec: TaskSpec) -> TaskId:
        """Submit it, let it be placed, and let every member come up."""
        task = self.submit(spec)
        self.up(task)
        assert self.state.allocations[task].state is AllocationState.RUNNING
        return task

    def up(self, task: TaskId) -> None:
        for member in list(self.state.members_of(task)):
            if member.state in (MemberState.PLACED, MemberState.STARTING):
                self.run(member.member)

    def m(self, task: TaskId, role: str = "main", rank: int = 0) -> MemberId:
        return MemberId(task, role, rank)

    def member(self, task: TaskId, role: str = "main", rank: int = 0) -> Any:
        return self.state.members[MemberId(task, role, rank)]

    def fence(self, task: TaskId, role: str = "main", rank: int = 0) -> Fence:
        fence: Fence = self.member(task, role, rank).fence(self.state.generation)
        return fence

    def node_of(self, task: TaskId, role: str = "main", rank: int = 0) -> NodeId:
        placement = self.member(task, role, rank).placement
        assert placement is not None
        node: NodeId = placement.node
        return node

    def leaves(self, task: TaskId, role: str = "main", rank: int = 0, code: int = 0, **exit: Any) -> list[Fact]:
        return self.exit(MemberId(task, role, rank), Exit(code, **exit))

    def breaks(self, task: TaskId, role: str = "main", rank: int = 0) -> list[Fact]:
        """The machine's fault, not the program's."""
        return self.leaves(task, role, rank, code=1, cause=ExitCause.MACHINE)

    def word(self, kind: type[e.Event], task: TaskId, role: str = "main", rank: int = 0, **more: Any) -> list[Fact]:
        """Something a member says."""
        member = MemberId(task, role, rank)
        fence = more.pop("fence", None) or self.fence(task, role, rank)
        return self.do(kind(cause="program", task=task, member=member, fence=fence, **more))

    def ack(self, task: TaskId, role: str = "main", rank: int = 0) -> list[Fact]:
        return self.word(e.AckLeave, task, role, rank)

    def cut(self, node: str) -> list[Fact]:
        """The link breaks and the master notices."""
        self.machines[NodeId(node)].linked = False
        return self.do(e.Silent(cause="timer", node=NodeId(node)))

    def mend(self, node: str) -> list[Fact]:
        self.machines[NodeId(node)].linked = True
        return self.hear(node)

    def ask_lease(
        self, task: TaskId, cell: int, slots: int = 1, *, ranks: tuple[int, ...] = (0,), **more: Any
    ) -> LeaseId:
        lease = LeaseId(f"{task}/{cell}")
        members = tuple(MemberId(task, "replica", rank) for rank in ranks)
        more = {"kind": CUDA, **more}
        self.do(e.AskLease(cause="gateway", lease=lease, task=task, cell=cell, members=members, slots=slots, **more))
        return lease

    def refused(self, event: e.Event, kind: type[ClutchError]) -> ClutchError:
        """The error that refuses an event, which must leave everything as it was."""
        before = freeze(self.state).payload
        with pytest.raises(kind) as caught:
            self.tell(event)
        assert type(caught.value) is kind
        assert freeze(self.state).payload == before
        return caught.value

    def state_of(self, task: TaskId) -> TaskState:
        return self.state.tasks[task].state if task in self.state.tasks else TaskState.ENDED

    def ended_as(self, task: TaskId) -> str:
        """Why a task ended, from the last fact about it."""
        found = [r.fact.reason for r in self.history if type(r.fact).__name__ == "TaskEnded" and r.fact.task == task]
        assert len(found) == 1, found
        return str(found[0])

    def detail_of(self, task: TaskId) -> str:
        """What was said when a task ended."""
        (found,) = (r.fact for r in self.history if type(r.fact).__name__ == "TaskEnded" and r.fact.task == task)
        return str(found.detail)

    def sound(self) -> None:
        """Every ledger recounts to itself, and the rows fold to what lives."""
        for ledger in self.state.ledgers.values():
            ledger.check()
        assert freeze(self.refold()).payload == freeze(self.state).payload
