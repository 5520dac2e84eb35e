"""The outbox made real: what waits in it is performed, at least once, and its result comes back as an event.

An item is in the journal since the transaction that decided it, and leaves it in the transaction that folds its result:
the event that ``perform`` returns leads to facts which mark the item delivered. A master that dies in between leaves
the item where it is, and the next one performs it again; its token makes that harmless.

Items of one subject (a machine, an address) are performed one after the other, everything else side by side up to a
bound. What fails is tried again, more and more seldom. A caller's mistake, and what has failed for too long, is given
up if its kind says what giving up means, and is tried for ever otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from clutch.backends.journal.base import Outbox
from clutch.wire.errors import BrokenInvariant, ClutchError, TimedOut, UserError
from clutch.wire.events import Event
from clutch.wire.journal import OutboxItem

PENDING_MAX = 10_000


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """How items of one kind are performed."""

    perform: Callable[[OutboxItem], Awaitable[Event]]
    """Does it and returns the event that tells its result. Must bear being called again for the same item."""
    give_up: Callable[[OutboxItem, ClutchError], Event] | None = None
    """The event that tells that it failed for good; None: it is never given up."""
    give_up_s: float = 600.0
    """After so long, from when the item was due. A user's error is given up at once."""
    attempt_s: float = 120.0
    """One try takes at most so long."""
    subject: Callable[[OutboxItem], str] = lambda item: item.token
    """Items of one subject never run side by side."""


class PerformerSettings(msgspec.Struct, frozen=True):
    at_once: int = 16
    retry_s: float = 1.0
    """Before the second try; each later one waits twice as long as the one before."""
    retry_max_s: float = 60.0
    look_s: float = 5.0
    """At least so often the outbox is looked at, whoever may have forgotten to say that something is in it."""


class Clock(Protocol):
    def now(self) -> float: ...


class Asked(Protocol):
    """What the performer needs of a master's loop."""

    clock: Clock
    serving: asyncio.Event
    owing: asyncio.Event

    async def ask(self, event: Event) -> Any: ...


class Tries:
    """How an item has gone so far in this process. Soft: another master begins anew."""

    __slots__ = ("again_at", "count", "error")

    def __init__(self) -> None:
        self.count = 0
        self.again_at = 0.0
        self.error: ClutchError | None = None


class Performer:
    """Performs what waits, while its master leads."""

    def __init__(
        self,
        loop: Asked,
        journal: Outbox,
        effects: Mapping[str, Effect],
        settings: PerformerSettings | None = None,
    ) -> None:
        self.loop = loop
        self.journal = journal
        self.effects = effects
        self.settings = settings or PerformerSettings()
        self.tries: dict[str, Tries] = {}
        """By token; for those who ask why something is not done yet."""
        self._busy: dict[str, None] = {}
        """Subjects that are being worked on."""

    async def run(self) -> None:
        """Perform for ever. Cancel it with the loop that it belongs to."""
        await self.loop.serving.wait()
        async with asyncio.TaskGroup() as group:
            while True:
                self.loop.owing.clear()
                wait_s = await self._look(group)
                try:
                    async with asyncio.timeout(wait_s):
                        await self.loop.owing.wait()
                except TimeoutError:
                    pass

    async def _look(self, group: asyncio.TaskGroup) -> float:
        """Begin whatever may begin, and say for how long to wait for the rest."""
        pending = await self.journal.pending(PENDING_MAX)
        waiting = {item.token for item in pending}
        self.tries = {token: tries for token, tries in self.tries.items() if token in waiting}
        wait_s = self.settings.look_s
        for item in pending:
            effect = self.effects.get(item.kind)
            if effect is None:  # another release's: it waits for one that knows it
                continue
            subject = effect.subject(item)
            due_s = self._due_in(item)
            if due_s > 0.0:
                wait_s = min(wait_s, due_s)
            elif subject not in self._busy and len(self._busy) < self.settings.at_once:
                self._busy[subject] = None
                group.create_task(self._one(effect, item, subject))
        return wait_s

    def _due_in(self, item: OutboxItem) -> float:
        tries = self.tries.get(item.token)
        resting_s = tries.again_at - asyncio.get_running_loop().time() if tries else 0.0
        return max(resting_s, item.due_at - self.loop.clock.now() if not tries else 0.0)

    async def _one(self, effect: Effect, item: OutboxItem, subject: str) -> None:
        try:
            await self._perform(effect, item)
        finally:
            del self._busy[subject]
            self.loop.owing.set()  # somebody may have waited for this one to end

    async def _perform(self, effect: Effect, item: OutboxItem) -> None:
        try:
            async with asyncio.timeout(effect.attempt_s):
                event = await effect.perform(item)
            await self.loop.ask(event)
            return
        except TimeoutError:
            error: ClutchError = TimedOut(
                f"no answer within {effect.attempt_s:g} s", object=item.token, next_step="It is tried again."
            )
        except ClutchError as refused:
            error = refused
        except Exception as escaped:  # a way to the outside that breaks must not take the master with it
            error = BrokenInvariant(f"{type(escaped).__name__}: {escaped}", object=item.token)
        await self._failed(effect, item, error)

    async def _failed(self, effect: Effect, item: OutboxItem, error: ClutchError) -> None:
        over = self.loop.clock.now() - item.due_at >= effect.give_up_s
        if effect.give_up is not None and (over or isinstance(error, UserError)):
            try:
                await self.loop.ask(effect.give_up(item, error))
                return
            except ClutchError as refused:
                error = refused
        tries = self.tries.setdefault(item.token, Tries())
        tries.count += 1
        tries.error = error
        rest_s = min(self.settings.retry_max_s, self.settings.retry_s * 2.0 ** min(tries.count - 1, 30))
        tries.again_at = asyncio.get_running_loop().time() + rest_s
