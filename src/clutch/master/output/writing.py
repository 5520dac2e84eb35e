"""The output lane's writer: what agents ship becomes durable, once, in order, many connections in one commit.

Whoever writes waits in a bounded line; one task takes what has come in, finds what is new of it, packs it and commits
it in one transaction, then answers. Memory is bounded by the line and one commit, whatever tasks print. A commit that
fails is an error for those who waited for it, and the lane goes on: they send again what is not acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import msgspec
from msgspec.structs import replace

from clutch.master.output.base import OutputStore
from clutch.master.output.bell import Bell
from clutch.master.output.building import build, needs_tail
from clutch.master.output.records import SEGMENT_BYTES, Key, Segment, Span, StreamChange, StreamState, checked_key
from clutch.master.output.taking import Frame, Incarnation, News, Taking
from clutch.wire.errors import BrokenInvariant, ClutchError, Stale, TimedOut, TooLarge, Unavailable
from clutch.wire.ids import Fence, MemberId
from clutch.wire.link import OutputCommitted, OutputPiece

_FRAME_BYTES = 200
"""What a frame weighs besides its bytes."""
_STALE_TRIES = 3


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


class _Call:
    """One caller's frames, and the caller."""

    __slots__ = ("answer", "frames", "incarnations", "size")

    def __init__(self, frames: Sequence[Frame], answer: asyncio.Future[list[OutputCommitted]]) -> None:
        self.frames = frames
        self.answer = answer
        self.incarnations: dict[Incarnation, None] = {(frame.member, frame.fence): None for frame in frames}
        data = sum(len(frame.data) for frame in frames if isinstance(frame, OutputPiece))
        self.size = data + _FRAME_BYTES * len(frames)

    def refuse(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


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
        self._waiting: list[_Call] = []
        self._waiting_bytes = 0
        self._arrived = asyncio.Event()
        self._room = asyncio.Condition()
        self._turn = asyncio.Lock()
        self._ended = False

    # -- the doors -----------------------------------------------------------------------------------------------

    async def opened(self, member: MemberId, fence: Fence) -> OutputCommitted:
        """What the store has of an incarnation; the agent sends from there."""
        checked_key(Key(member, fence, "stdout"))
        async with self._turn:
            self._known.pop(Key(member, fence, "stdout"), None)  # look it up again: the store knows best
            taking = Taking(await self._states([(member, fence)]))
            return taking.reached((member, fence))

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Nothing is committed inside; for those who change rows in another way."""
        async with self._turn:
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
        call = _Call(frames, asyncio.get_running_loop().create_future())
        for one in call.incarnations:
            checked_key(Key(*one, "stdout"))
        if call.size > self.settings.waiting_max_bytes:
            raise TooLarge(
                f"{call.size} bytes in one write, at most {self.settings.waiting_max_bytes}",
                object="output",
                next_step="Send less at a time.",
            )
        try:
            async with asyncio.timeout(self.settings.write_timeout_s):
                await self._enter(call)
                return await call.answer
        except TimeoutError:
            raise TimedOut(
                f"the output was not durable within {self.settings.write_timeout_s:.0f} s",
                object="output",
                next_step="Open the streams again and send from what is committed.",
            ) from None

    async def _enter(self, call: _Call) -> None:
        async with self._room:
            await self._room.wait_for(
                lambda: self._ended or self._waiting_bytes + call.size <= self.settings.waiting_max_bytes
            )
            if self._ended:
                raise _has_ended()
            self._waiting.append(call)
            self._waiting_bytes += call.size
            self._arrived.set()

    # -- the loop ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Commit what comes in, until cancelled."""
        with ThreadPoolExecutor(1, thread_name_prefix="output-packer") as packer:
            group: list[_Call] = []
            try:
                while True:
                    await self._arrived.wait()
                    group = self._next_group()
                    async with self._turn:
                        await self._serve(group, packer)
                    async with self._room:
                        self._waiting_bytes -= sum(call.size for call in group)
                        self._room.notify_all()
            finally:
                self._ended = True
                for call in (*group, *self._waiting):
                    call.refuse(_has_ended())

    def _next_group(self) -> list[_Call]:
        size, count = 0, 0
        for call in self._waiting:
            if count and size + call.size > self.settings.commit_max_bytes:
                break
            size += call.size
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        if not self._waiting:
            self._arrived.clear()
        return group

    async def _serve(self, group: list[_Call], packer: ThreadPoolExecutor) -> None:
        """Commit one group. Whatever goes wrong is told to those who wait for it."""
        for _ in range(_STALE_TRIES):
            try:
                taken, taking = await self._take(group)
                await self._commit(taking.news, packer)
            except Stale:
                self._known.clear()  # another master wrote: see what it wrote and go on behind it
                continue
            except ClutchError as error:
                self._known.clear()  # whether it was written is not always known
                if len(group) == 1:
                    group[0].refuse(error)
                for call in group if len(group) > 1 else ():
                    await self._serve([call], packer)  # one stream's trouble is not everybody's
                return
            for call in taken:
                if not call.answer.done():
                    call.answer.set_result([taking.reached(one) for one in call.incarnations])
            self._bell.ring({key.member.task: None for key in taking.news})
            return
        for call in group:
            call.refuse(Unavailable("another master writes the same streams", object="output", next_step="Reconnect."))

    async def _take(self, group: list[_Call]) -> tuple[list[_Call], Taking]:
        incarnations = {one: None for call in group for one in call.incarnations}
        taking = Taking(await self._states(list(incarnations)))
        taken = []
        for call in group:
            if call.answer.done():
                continue  # refused before, or nobody waits for it any more
            try:
                taking.take(call.frames)
                taken.append(call)
            except ClutchError as error:
                call.refuse(error)
        return taken, taking

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

    async def _commit(self, news: dict[Key, News], packer: ThreadPoolExecutor) -> None:
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
            made = await asyncio.get_running_loop().run_in_executor(packer, changes)
        ids = await self.store.write(made)
        for change, stream in zip(made, ids, strict=True):
            self._known[change.state.key] = replace(change.state, id=stream)

    async def _tail(self, state: StreamState) -> list[Segment]:
        span = Span(state.id, state.tail_start, state.committed, limit_bytes=4 * SEGMENT_BYTES, limit_rows=10_000)
        rows = await self.store.segments(span)
        if not rows or rows[0].start != state.tail_start or rows[-1].end != state.committed:
            raise BrokenInvariant("the tail of a stream has a hole", object=str(state.key))
        return rows


def _has_ended() -> Unavailable:
    return Unavailable("the output lane has ended", object="output", next_step="Reconnect to the present master.")
