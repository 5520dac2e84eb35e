"""Metrics that a member left behind, sent by its agent: stored under their own fence, and counted while they may.

An exited member cannot speak for itself any more, and its allocation waits until what it had spooled is stored.
Whoever decides upon validations hears them first, so an allocation does not end before its last validation was heard.
Metrics of an epoch that is over are stored all the same, and nobody decides upon them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec
import structlog

from clutch.master.loop import Loop
from clutch.master.metrics_lane.lane import MetricsLane
from clutch.wire.errors import ClutchError
from clutch.wire.events import ReachLanes
from clutch.wire.ids import Fence, MemberId
from clutch.wire.metrics import MetricBatch, MetricsCommitted

REMEMBERED_MAX = 100_000

_decode = msgspec.json.Decoder(MetricBatch).decode

After = Callable[[MemberId, Fence, tuple[MetricBatch, ...]], Awaitable[None]]


class LeftMetrics:
    """``after`` are the same who hear what living members say."""

    def __init__(self, loop: Loop, lane: MetricsLane, after: Sequence[After]) -> None:
        self._loop = loop
        self._lane = lane
        self._after = after
        self._heard: dict[tuple[MemberId, Fence], int] = {}
        self._log = structlog.get_logger("clutch.master.link")

    def reached(self, member: MemberId, fence: Fence) -> int:
        """Up to where what it left is stored and was heard by all who decide upon it."""
        return self._heard.get((member, fence), 0)

    async def opened(self, member: MemberId, fence: Fence) -> MetricsCommitted:
        """What the store has of an incarnation."""
        return await self._lane.opened(member, fence)

    async def take(self, member: MemberId, fence: Fence, lines: bytes) -> MetricsCommitted:
        """Returns when these batches are durable, heard, and the loop knows. What can never be stored is refused in the
        answer: it is a user's file, and its agent has other members to serve."""
        try:
            batches = tuple(_decode(line) for line in lines.split(b"\n") if line)
            sequence = await self._lane.write(member, fence, batches)
        except (msgspec.MsgspecError, UnicodeDecodeError) as wrong:
            return await self._refused(member, fence, f"it is no batch of metrics: {wrong}")
        except ClutchError as error:
            if error.blame != "user":
                raise
            return await self._refused(member, fence, str(error))
        if self._counts(member, fence):
            await self._tell(member, fence, batches)
        await self._loop.ask(
            ReachLanes(cause=f"lanes:{member}", member=member, fence=fence, metrics_sequence=sequence, output_offset=0)
        )
        self._remember(member, fence, sequence)
        return MetricsCommitted(member, fence, sequence)

    async def _refused(self, member: MemberId, fence: Fence, reason: str) -> MetricsCommitted:
        return msgspec.structs.replace(await self._lane.opened(member, fence), refused=reason)

    def _counts(self, member: MemberId, fence: Fence) -> bool:
        """Whether its epoch is the one that goes on, or has not ended yet."""
        state = self._loop.state
        allocation = state.allocations.get(member.task)
        return allocation is not None and (state.generation, allocation.epoch) == (fence.generation, fence.epoch)

    async def _tell(self, member: MemberId, fence: Fence, batches: tuple[MetricBatch, ...]) -> None:
        for after in self._after:
            try:
                await after(member, fence, batches)
            except ClutchError as error:
                if error.blame != "user":
                    raise
                self._log.warning("metrics that nobody can use", member=str(member), error=str(error))

    def _remember(self, member: MemberId, fence: Fence, sequence: int) -> None:
        self._heard.pop((member, fence), None)
        self._heard[member, fence] = sequence
        if len(self._heard) > REMEMBERED_MAX:
            del self._heard[next(iter(self._heard))]
