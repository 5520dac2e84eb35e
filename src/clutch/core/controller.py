"""The contract of a workload's brain: what an experiment, a notebook service or an RL program must answer.

A controller is pure. The core tells it what happened to its tasks; it answers with wishes. A wish is carried out by
the core as facts of its own, so a controller never sees a slot, a node or another workload. What it must remember it
says as a ``Note``: notes are journaled, and ``apply`` folds them into its own state at once and at every start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, Protocol

import msgspec

from clutch.wire.ids import Epoch, MemberId, NodeId, TaskId
from clutch.wire.journal import Gone
from clutch.wire.outcomes import EndReason, Verdict
from clutch.wire.schedule import PreemptReason
from clutch.wire.specs import TaskSpec
from clutch.wire.views import View

# -- what it is told ----------------------------------------------------------------------------------------------


class Opened(msgspec.Struct, frozen=True, tag=True):
    """It begins. ``spec`` was checked by ``open``."""


class TaskEnded(msgspec.Struct, frozen=True, tag=True):
    task: TaskId
    reason: EndReason
    detail: str = ""


class RunBegan(msgspec.Struct, frozen=True, tag=True):
    """A task of its has been given resources; its members start."""

    task: TaskId
    epoch: Epoch
    nodes: tuple[NodeId, ...] = ()


class RunEnded(msgspec.Struct, frozen=True, tag=True):
    """An allocation of one of its tasks is over. ``asked`` is why it had been asked to leave, if it had.

    The task ends (``TaskEnded`` comes next), waits in the queue again, or is paused.
    """

    task: TaskId
    epoch: Epoch
    verdict: Verdict
    asked: PreemptReason | None = None
    detail: str = ""
    failures: int = 0
    """How often the task's own program has failed by now."""


class CheckpointSaved(msgspec.Struct, frozen=True, tag=True):
    """A task of its has committed a checkpoint, from which a later start resumes."""

    task: TaskId
    epoch: Epoch
    checkpoint: str
    step: int
    size_bytes: int = 0
    storage: str = ""


class MemberGone(msgspec.Struct, frozen=True, tag=True):
    """A member of one of its tasks is gone and will be replaced."""

    member: MemberId
    detail: str = ""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A task or a size it wished for was refused at the door (no such pool, over quota...); it will not come."""

    task: TaskId
    detail: str


class Told(msgspec.Struct, frozen=True, tag=True):
    """Somebody has something to say to it: its user, or a lane that committed a value it waits for.

    What it cannot do it refuses by raising, before its first wish: whoever told it hears that.
    """

    payload: bytes


class Woken(msgspec.Struct, frozen=True, tag=True):
    """The alarm it set has gone off."""


Happening = Opened | TaskEnded | RunBegan | RunEnded | CheckpointSaved | Refused | MemberGone | Told | Woken

# -- what it may wish ---------------------------------------------------------------------------------------------


class Create(msgspec.Struct, frozen=True, tag=True):
    """A task. ``task`` is the controller's choice and must be new: derive it from its own id and a counter."""

    task: TaskId
    spec: TaskSpec


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Let a task checkpoint and leave, then end it."""

    task: TaskId
    reason: PreemptReason = PreemptReason.STOPPED


class Pause(msgspec.Struct, frozen=True, tag=True):
    """Let a task checkpoint and leave; it holds nothing until it is resumed."""

    task: TaskId


class Resume(msgspec.Struct, frozen=True, tag=True):
    """Queue a paused task again."""

    task: TaskId


class Kill(msgspec.Struct, frozen=True, tag=True):
    """End a task now."""

    task: TaskId


class SetPriority(msgspec.Struct, frozen=True, tag=True):
    task: TaskId
    priority: int


class SetMaxSlots(msgspec.Struct, frozen=True, tag=True):
    """The most slots that the tasks of its group hold together, from now on; 0: any. ``leave``: they hold too many, and
    this one saves itself and waits again."""

    task: TaskId
    max_slots: int
    leave: bool = False


class ForbidRestarts(msgspec.Struct, frozen=True, tag=True):
    """The next failure of this task's program is its last."""

    task: TaskId


class Exclude(msgspec.Struct, frozen=True, tag=True):
    """Never place this task on that node again."""

    task: TaskId
    node: NodeId


class Owe(msgspec.Struct, frozen=True, tag=True):
    """Something must happen outside, at least once, whatever becomes of this workload: a webhook, say.

    ``kind`` names who performs it (``master/effects``); ``token`` is chosen here and never used again.
    """

    token: str
    kind: str
    payload: bytes
    due_at: float = 0.0


class SetCount(msgspec.Struct, frozen=True, tag=True):
    """Resize a role of a task while it runs."""

    task: TaskId
    role: str
    count: int


class Note(msgspec.Struct, frozen=True, tag=True):
    """Remember this."""

    payload: bytes


class Wake(msgspec.Struct, frozen=True, tag=True):
    """Wake me at this time; a later wish replaces an earlier one, 0 clears it."""

    at: float


class Close(msgspec.Struct, frozen=True, tag=True):
    """The workload is over; it is told nothing more."""

    detail: str = ""


Wish = (
    Create | Stop | Pause | Resume | Kill | SetPriority | SetMaxSlots | ForbidRestarts | Exclude | SetCount
    | Owe | Note | Wake | Close
)  # fmt: skip


class Controller(Protocol):
    """A workload's brain. ``own`` is whatever ``open`` returned and ``apply`` made of it since; treat it as a value."""

    kind: str

    def open(self, controller: str, spec: bytes) -> Any:
        """The state it begins with. Raises ``BadRequest`` when the spec is not one of its kind."""
        ...

    def decide(self, own: Any, happening: Happening, now: float, rng: Random) -> Iterable[Wish]:
        """What it wants now. Wishes are carried out in order; ``own`` stays what it was when it was asked."""
        ...

    def apply(self, own: Any, note: bytes) -> Any:
        """Its state after one of its notes. Total; knows no clock and no chance."""
        ...

    def rows(self, own: Any, notes: Sequence[bytes]) -> Iterable[View | Gone]:
        """The rows of its views that these notes, already applied, have changed. Pure, like ``apply``."""
        ...

    def dump(self, own: Any) -> bytes:
        """Its state as bytes, for a snapshot."""
        ...

    def load(self, payload: bytes) -> Any: ...
