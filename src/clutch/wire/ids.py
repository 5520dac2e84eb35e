"""Names of things, and the numbers that fence them.

An id is chosen by whoever asks (the API, a controller, a test), never inside a decision: ids are arguments.
A number (epoch, incarnation, lease number, term) is chosen by a decision and only ever grows.
"""

from __future__ import annotations

from typing import NewType

import msgspec

TaskId = NewType("TaskId", str)
NodeId = NewType("NodeId", str)
PoolName = NewType("PoolName", str)
LeaseId = NewType("LeaseId", str)
RequestId = NewType("RequestId", str)
Cause = NewType("Cause", str)
"""What brought an event about, in words a user may read: ``api:submit``, ``agent:n3``, ``timer``."""

Epoch = int
"""Which run of a task: 1 for the first allocation, one more for each after it."""
Incarnation = int
"""Which start of a member: 1 for the first, one more for each respawn inside the same epoch."""
Term = int
"""Which mastership: one more for each take-over."""


class MemberId(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One process group of a task's allocation: its role and its rank in that role."""

    task: TaskId
    role: str
    rank: int

    def __str__(self) -> str:
        return f"{self.task}/{self.role}.{self.rank}"


class Fence(msgspec.Struct, frozen=True, order=True, array_like=True):
    """The right to write for a member. A receiver keeps the highest it has seen and refuses lower ones.

    ``generation`` is raised by restoring a backup, so nothing started before the restore can write after it.
    """

    generation: int
    epoch: Epoch
    incarnation: Incarnation

    def __str__(self) -> str:
        return f"g{self.generation}e{self.epoch}i{self.incarnation}"
