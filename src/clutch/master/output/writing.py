"""The output lane's writer: what agents ship becomes durable, once, in order, many connections in one commit.

Of what has come in it finds what is new, packs it and commits it in one transaction, then answers. How callers wait,
and what they hear when a commit fails, is ``lanes.line``'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import msgspec
from msgspec.structs import replace

from clutch.master.lanes.line import Call, Line, LineBounds, LineWords
from clutch.master.output.base import OutputStore
from clutch.master.output.bell import Bell
from clutch.master.output.building import build, needs_tail
from clutch.master.output.records import SEGMENT_BYTES, Key, Segment, Span, StreamChange, StreamState, checked_key
from clutch.master.output.taking import Frame, Incarnation, News, Taking
from clutch.wire.errors import BrokenInvariant, ClutchError
from clutch.wire.ids import Fence, MemberId
from clutch.wire.link import OutputCommitted, OutputPiece

_FRAME_BYTES = 200
"""What a frame weighs besides its bytes."""


class LaneSettings(msgspec.Struct, frozen=True):
    """The bounds of a lane."""

    commit_max_bytes: int = 8 * 2**20
    """Taken into one commit; one call alone may bring more."""
    waiting_max_bytes: int = 32 * 2**20
    """In the line; who comes then waits for room. No call may be larger than that."""
    known_max: int = 8_192
    """Streams whose state is remembered between commits."""
    inline_max_bytes: int = 32 * 2**10
    """A commit this small is packed on the event loop; a thread would cost more."""
    write_timeout_s: float = 60.0


class _Call(Call[list[OutputCommitted]]):
    """One caller's frames; answered with how far each incarnation in them is."""

    __slots__ = ("frames", "incarnations")

    def __init__(self, frames: Sequence[Frame]) -> None:
        data = sum(len(frame.data) for frame in frames if isinstance(frame, OutputPiece))
        super().__init__("output", data + _FRAME_BYTES * len(frames))
        self.frames = frames
        self.incarnations: dict[Incarnation, None] = {(frame.member, frame.fence): None for frame in frames}


_WORDS = LineWords("output", "bytes", "Send less at a time.", "Open the streams again and send from what is committed.")


class OutputWriter:
    """The writing half of the lane. ``run`` must be running for ``write`` to be answered."""

    def __init__(
        self, store: OutputStore, bell: Bell, clock: Callable[[], float], settings: LaneSettings | None = None
    ) -> None:
        self.store = store
        self.settings = settings or LaneSettings()
        self._bell = bell
        self._clock = clock
        self._known: dict[Key, StreamState] = {}
        bounds = LineBounds(
            self.settings.waiting_max_bytes, self.settings.commit_max_bytes, self.settings.write_timeout_s
        )
        self._line: Line[_Call] = Line(_WORDS, bounds, self._commit, self._known.clear)
        self._packer: ThreadPoolExecutor | None = None

    # -- the doors -----------------------------------------------------------------------------------------------

    async def opened(self, member: MemberId, fence: Fence) -> OutputCommitted:
        """What the store has of an incarnation; the agent sends from there."""
        checked_key(Key(member, fence, "stdout"))
        async with self._line.turn:
            self._known.pop(Key(member, fence, "stdout"), None)  # look it up again: the store knows best
            taking = Taking(await self._states([(member, fence)]))
            return taking.reached((member, fence))

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Nothing is committed inside; for those who change rows in another way."""
        async with self._line.turn:
            try:
                yield
            finally:
                self._known.clear()

    async def write(self, frames: Sequence[Frame]) -> list[OutputCommitted]:
        """How far each incarnation named in the frames is, once all of them are durable.

        ``Conflict`` for a hole or for bytes behind a stream's end: nothing of this call was written.
        """
        if not frames:
            return []
        call = _Call(frames)
        for one in call.incarnations:
            checked_key(Key(*one, "stdout"))
        committed: list[OutputCommitted] = await self._line.ask(call)
        return committed

    # -- the loop ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Commit what comes in, until cancelled."""
        with ThreadPoolExecutor(1, thread_name_prefix="output-packer") as self._packer:
            await self._line.run()

    async def _commit(self, group: list[_Call]) -> None:
        """What is new of these calls in one commit, and their answers."""
        incarnations = {one: None for call in group for one in call.incarnations}
        taking = Taking(await self._states(list(incarnations)))
        for call in group:
            try:
                taking.take(call.frames)
            except ClutchError as error:
                call.refuse(error)
        await self._write(taking.news)
        for call in group:
            call.give([taking.reached(one) for one in call.incarnations])
        self._bell.ring({key.member.task: None for key in taking.news})

    async def _states(self, incarnations: Sequence[Incarnation]) -> dict[Key, StreamState]:
        unknown = [one for one in incarnations if Key(*one, "stdout") not in self._known]
        if unknown:
            if len(self._known) + 2 * len(unknown) > self.settings.known_max:
                self._known.clear()
                unknown = list(incarnations)
            for one in unknown:
                self._known |= {Key(*one, stream): StreamState(*one, stream) for stream in ("stdout", "stderr")}
            try:
                self._known |= {state.key: state for state in await self.store.states(unknown)}
            except BaseException:
                self._known.clear()  # what was not looked up is not known to be empty
                raise
        return self._known

    async def _write(self, news: dict[Key, News]) -> None:
        work: list[tuple[StreamState, News, list[Segment]]] = []
        for key, new in news.items():
            state = self._known[key]
            if new.items or new.done != state.done:
                tail = await self._tail(state) if needs_tail(state, new) else []
                work.append((state, new, tail))
        if not work:
            return
        now = self._clock()

        def changes() -> list[StreamChange]:
            return [build(state, new, tail, now) for state, new, tail in work]

        size = sum(new.size + sum(row.size for row in tail) for _, new, tail in work)
        if size <= self.settings.inline_max_bytes:
            made = changes()
        else:
            made = await asyncio.get_running_loop().run_in_executor(self._packer, changes)
        ids = await self.store.write(made)
        for change, stream in zip(made, ids, strict=True):
            self._known[change.state.key] = replace(change.state, id=stream)

    async def _tail(self, state: StreamState) -> list[Segment]:
        span = Span(state.id, state.tail_start, state.committed, limit_bytes=4 * SEGMENT_BYTES, limit_rows=10_000)
        rows = await self.store.segments(span)
        if not rows or rows[0].start != state.tail_start or rows[-1].end != state.committed:
            raise BrokenInvariant("the tail of a stream has a hole", object=str(state.key))
        return rows
