"""What a metrics store keeps: one row for each incarnation that reports, and chunks that hold its batches in order."""

from __future__ import annotations

import msgspec

from clutch.wire.errors import BadRequest, Stale
from clutch.wire.ids import Epoch, Fence, MemberId

PACK_ROWS = 256
PACK_VALUES = 16_384
"""So many loose rows, or values in them, are packed into one chunk."""
NAMES_MAX = 2_000
"""So many names of one incarnation have their latest value remembered; the rest is found in the chunks."""


class SourceState(msgspec.Struct, frozen=True):
    """How far an incarnation is. ``version`` grows with every change of it, ``id`` is 0 until the store knows it."""

    member: MemberId
    fence: Fence
    id: int = 0
    version: int = 0
    sequence: int = 0
    """Every batch up to this one is durable."""
    loose_start: int = 1
    """The first batch that is not packed yet,"""
    loose_rows: int = 0
    """in so many rows"""
    loose_points: int = 0
    """with so many values."""
    latest: bytes = b""
    """What is remembered of each name, packed."""

    @property
    def incarnation(self) -> tuple[MemberId, Fence]:
        return self.member, self.fence


class Chunk(msgspec.Struct, frozen=True):
    """Batches ``first`` to ``last`` of a source, with points of steps ``low`` to ``high``.

    A loose one has no ``brief`` and its points are rows. A packed one that was read for its reductions has no body.
    """

    first: int
    last: int
    low: int
    high: int
    points: int
    checksum: int
    brief: bytes
    """Reductions of the body, with a checksum of their own."""
    body: bytes


class SourceChange(msgspec.Struct, frozen=True):
    """One source's part of a commit: its new state (one version on), chunks to add and to drop (by their first)."""

    state: SourceState
    puts: tuple[Chunk, ...] = ()
    drops: tuple[int, ...] = ()


class ChunkSpan(msgspec.Struct, frozen=True):
    """Which chunks of a source: from batch ``first`` on, those that touch the steps ``low`` to ``high``."""

    source: int
    first: int = 0
    low: int = -(2**63)
    high: int = 2**63 - 1
    limit: int = 64
    briefs: bool = False
    """The reductions of packed chunks instead of their bodies; else bodies and no reductions."""
    newest: bool = False
    """The last ``limit`` of them instead of the first; in order all the same."""


class TaskMetrics(msgspec.Struct, frozen=True):
    """All sources of a task in the order in which they first reported, and from which step each epoch resumed."""

    sources: tuple[SourceState, ...] = ()
    resumed: dict[Epoch, int] = {}

    def limit(self, epoch: Epoch) -> int | None:
        """Beyond this step, what an epoch reported was superseded by a later one."""
        later = [step for other, step in self.resumed.items() if other > epoch]
        return min(later) if later else None


def moved(state: SourceState) -> Stale:
    return Stale(
        f"the metrics are not at version {state.version - 1} any more",
        object=f"{state.member} {state.fence}",
        next_step="Look again; another master has written.",
    )


def check_incarnation(member: MemberId, fence: Fence) -> None:
    """``BadRequest`` where no store could keep it."""
    numbers = (member.rank, fence.generation, fence.epoch, fence.incarnation)
    names = (member.task, member.role)
    if not all(0 <= number < 2**31 for number in numbers) or not all(
        name.isprintable() and 0 < len(name) <= 500 for name in names
    ):
        raise BadRequest("no store can keep metrics under this name", object=repr(member))
