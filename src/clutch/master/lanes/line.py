"""The line before a lane's writer: what callers bring becomes durable, once, in order, many callers in one commit.

Whoever writes waits in a bounded line; one task takes as many as fit into a commit, commits them at once and answers.
Memory is bounded by the line and one commit. A commit that fails is an error for those who waited for it, and the line
goes on: they send again what is not acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import msgspec

from clutch.wire.errors import ClutchError, Stale, TimedOut, TooLarge, Unavailable

_STALE_TRIES = 3
Answer = TypeVar("Answer")


class LineBounds(msgspec.Struct, frozen=True):
    """In the unit of the calls' sizes."""

    waiting_max: int
    """In the line; who comes then waits for room. No call may be larger than that."""
    commit_max: int
    """Taken into one commit; one call alone may bring more."""
    timeout_s: float


class LineWords(msgspec.Struct, frozen=True):
    """What callers are told."""

    lane: str
    unit: str
    smaller: str
    """What to do when a call is too large,"""
    again: str
    """and what when it took too long."""


class Call(Generic[Answer]):
    """What one caller brings, how large it is, and the caller."""

    __slots__ = ("answer", "name", "size")

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    @property
    def is_over(self) -> bool:
        """It was answered or refused, or nobody waits for it any more."""
        return self.answer.done()

    def give(self, answer: Answer) -> None:
        if not self.is_over:
            self.answer.set_result(answer)

    def refuse(self, error: BaseException) -> None:
        if not self.is_over:
            self.answer.set_exception(error)


OneCall = TypeVar("OneCall", bound=Call[Any])


class Line(Generic[OneCall]):
    """``run`` must be running for ``ask`` to be answered.

    ``commit`` makes a group durable and answers its calls, or raises; ``forget`` drops what the lane remembers of the
    store, because it is not what is there.
    """

    def __init__(
        self,
        words: LineWords,
        bounds: LineBounds,
        commit: Callable[[list[OneCall]], Awaitable[None]],
        forget: Callable[[], None],
    ) -> None:
        self._words = words
        self._bounds = bounds
        self._commit = commit
        self._forget = forget
        self._waiting: list[OneCall] = []
        self.waiting_size = 0
        """Of those in the line and in the commit under way."""
        self.turn = asyncio.Lock()
        """Held while a group is committed; hold it to change the store in another way."""
        self._arrived = asyncio.Event()
        self._room = asyncio.Condition()
        self._ended = False

    async def ask(self, call: OneCall) -> Any:
        """What the call is answered, once all it brought is durable."""
        words, bounds = self._words, self._bounds
        if call.size > bounds.waiting_max:
            raise TooLarge(
                f"{call.size} {words.unit} in one write, at most {bounds.waiting_max}",
                object=call.name,
                next_step=words.smaller,
            )
        try:
            async with asyncio.timeout(bounds.timeout_s):
                await self._enter(call)
                return await call.answer
        except TimeoutError:
            raise TimedOut(
                f"it was not durable within {bounds.timeout_s:.0f} s",
                object=call.name,
                next_step=words.again,
            ) from None

    async def _enter(self, call: OneCall) -> None:
        async with self._room:
            await self._room.wait_for(lambda: self._ended or self.waiting_size + call.size <= self._bounds.waiting_max)
            if self._ended:
                raise self._has_ended()
            self._waiting.append(call)
            self.waiting_size += call.size
            self._arrived.set()

    async def run(self) -> None:
        """Commit what comes in, until cancelled."""
        group: list[OneCall] = []
        try:
            while True:
                await self._arrived.wait()
                group = self._next_group()
                async with self.turn:
                    await self._serve(group)
                async with self._room:
                    self.waiting_size -= sum(call.size for call in group)
                    self._room.notify_all()
        finally:
            self._ended = True
            for call in (*group, *self._waiting):
                call.refuse(self._has_ended())

    def _next_group(self) -> list[OneCall]:
        size, count = 0, 0
        for call in self._waiting:
            if count and size + call.size > self._bounds.commit_max:
                break
            size += call.size
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        if not self._waiting:
            self._arrived.clear()
        return group

    async def _serve(self, group: list[OneCall]) -> None:
        """Commit one group. Whatever goes wrong is told to those who wait for it."""
        for _ in range(_STALE_TRIES):
            try:
                await self._commit([call for call in group if not call.is_over])
                return
            except Stale:
                self._forget()  # another master wrote: see what it wrote and go on behind it
            except ClutchError as error:
                self._forget()  # whether it was written is not always known
                if len(group) == 1:
                    group[0].refuse(error)
                for call in group if len(group) > 1 else ():
                    await self._serve([call])  # one caller's trouble is not everybody's
                return
        for call in group:
            call.refuse(
                Unavailable(
                    f"another master writes the same {self._words.lane}",
                    object=self._words.lane,
                    next_step="Reconnect.",
                )
            )

    def _has_ended(self) -> Unavailable:
        return Unavailable(
            f"the {self._words.lane} lane has ended",
            object=self._words.lane,
            next_step="Reconnect to the present master.",
        )
