"""What is really so: an independent fold of the journal, kept in step with every commit.

The masters have their own states; this one belongs to nobody who could be wrong. It also remembers what no live state
does: every incarnation that was ever granted, every task that was ever submitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from clutch.core.controller import Controller
from clutch.core.fold import apply
from clutch.core.recorded import Recorded, from_row
from clutch.core.state import State, Touched
from clutch.wire import facts as f
from clutch.wire.ids import Fence, LeaseId, MemberId, TaskId
from clutch.wire.journal import Batch
from clutch.wire.outcomes import EndReason, TaskWish


class Truth:
    def __init__(self, controllers: Mapping[str, Controller]) -> None:
        self.state = State(controllers)
        self.history: list[Recorded] = []
        self.granted: dict[tuple[MemberId, Fence], None] = {}
        self.leased: dict[tuple[LeaseId, int], None] = {}
        self.submitted: dict[TaskId, None] = {}
        self.ended: dict[TaskId, EndReason] = {}
        self.wished: dict[tuple[TaskId, TaskWish], None] = {}
        self.steps: dict[TaskId, int] = {}
        """The highest committed checkpoint step of each task."""
        self.owed: dict[str, None] = {}
        """What workloads owe to the outside and nobody has settled."""

    def commit(self, batch: Batch, before: Callable[[Recorded], None]) -> None:
        """Take in a batch that has just become durable; ``before`` sees each fact in the state it is folded into."""
        news = [from_row(row) for row in batch.rows]
        for recorded in news:
            before(recorded)
            apply(self.state, recorded)
            self._remember(recorded.fact)
        self.history += news
        self.state.touched = Touched()

    def _remember(self, fact: f.Fact) -> None:
        generation = self.state.generation
        match fact:
            case f.TaskSubmitted(task):
                self.submitted[task] = None
            case f.TaskEnded(task, reason):
                self.ended[task] = reason
            case f.TaskWished(task, wish):
                self.wished[task, wish] = None
            case f.AllocationGranted(task, epoch, placed):
                for one in placed:
                    member = MemberId(task, one.placement.role, one.placement.rank)
                    self.granted[member, Fence(generation, epoch, 1)] = None
            case f.MemberGranted(member):
                self.granted[member, self.state.members[member].fence(generation)] = None
            case f.LeaseGranted(lease, _, placed_lease):
                self.leased[lease, placed_lease.lease_number] = None
            case f.EffectOwed(_, token):
                self.owed[token] = None
            case f.EffectSettled(token):
                self.owed.pop(token, None)
            case f.CheckpointCommitted(task, _, _, step):
                self.steps[task] = max(step, self.steps.get(task, 0))
