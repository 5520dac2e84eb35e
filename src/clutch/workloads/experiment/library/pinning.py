"""How the library holds checkpoints: what it intends is written down with the change that wants it, then said.

A version and its checkpoint's hold are in two places that no one transaction covers. So the intent is a row: a version
is seen only when experiments have heard that its checkpoint is held, and a hold is let go for certain when the version
is gone, whatever dies in between.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import structlog
from sqlalchemy import Connection, delete, select, update

from clutch.master.access.database import Database
from clutch.master.access.sql import is_row, put
from clutch.wire.errors import ClutchError, Conflict, NotFound, TimedOut, Unavailable
from clutch.wire.experiment_views import CheckpointRow
from clutch.wire.experiments import CheckpointState
from clutch.workloads.experiment.library.tables import pins, versions

T = TypeVar("T")
PIN_S = 30.0
AT_ONCE = 1000


class Pins(Protocol):
    """What the library needs of experiments."""

    async def pin(self, checkpoints: tuple[str, ...], by: str, hold: bool) -> None:
        """``by`` holds these checkpoints from now on, or no longer does. Saying it twice is saying it once."""
        ...

    async def checkpoint(self, checkpoint: str) -> CheckpointRow | None: ...

    async def needs(self, checkpoint: str, holder: str) -> bool:
        """Whether the holder is an experiment that is not over and begins from this checkpoint."""
        ...


def holder_of(workspace: str, model: str, number: int) -> str:
    """Who holds a checkpoint that is this version."""
    return f"model:{workspace}/{model}/{number}"


class Holds:
    """The library's word about checkpoints. Everything about them happens one after the other, under ``lock``."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._experiments: Pins | None = None
        self.lock = asyncio.Lock()
        self._log = structlog.get_logger("library")

    def serve(self, experiments: Pins) -> None:
        """From now on these are the experiments."""
        self._experiments = experiments

    @property
    def experiments(self) -> Pins:
        if self._experiments is None:
            raise Unavailable("this master has no experiments", object="checkpoints", next_step="Ask the one that has.")
        return self._experiments

    async def look(self, checkpoint: str) -> CheckpointRow:
        """A checkpoint that can be held."""
        row = await self.experiments.checkpoint(checkpoint)
        if row is None:
            raise NotFound(
                "there is no such checkpoint, or you may not see it",
                object=f"checkpoint {checkpoint}",
                next_step="Take the id of one that its experiment lists.",
            )
        return row

    async def hold(self, checkpoint: str, holder: str) -> None:
        await self._say(checkpoint, holder, hold=True)

    async def _say(self, checkpoint: str, holder: str, *, hold: bool) -> None:
        try:
            async with asyncio.timeout(PIN_S):
                await self.experiments.pin((checkpoint,), holder, hold)
        except TimeoutError:
            raise TimedOut(f"no answer within {PIN_S:g} s", object=f"checkpoint {checkpoint}") from None

    async def holding(self, checkpoint: str, holder: str, do: Callable[[], Awaitable[T]]) -> T:
        """Do what needs the checkpoint held, with it held. Where that fails or is cut short, ``settle`` lets it go."""
        async with self.lock:
            await self._intend(checkpoint, holder)
            await self.hold(checkpoint, holder)
            found = await do()
            await self._database.write(lambda connection: is_said(connection, checkpoint, holder))
            return found

    async def needing(self, checkpoints: Sequence[str], holder: str, do: Callable[[], Awaitable[T]]) -> T:
        """Do what may need these checkpoints held, for an experiment, with them held; what it does not need then is
        let go. Where that fails or is cut short, ``settle`` does."""
        async with self.lock:
            for checkpoint in checkpoints:
                await self._intend(checkpoint, holder)
                await self.hold(checkpoint, holder)
            found = await do()
            for checkpoint in checkpoints:
                if not await self.experiments.needs(checkpoint, holder):
                    await self._say(checkpoint, holder, hold=False)
                await self._database.write(lambda connection, one=checkpoint: is_said(connection, one, holder))  # type: ignore[misc]
            return found

    async def _intend(self, checkpoint: str, holder: str) -> None:
        await self._database.write(lambda connection: intend(connection, checkpoint, holder, hold=True))

    async def release(self, checkpoint: str, holder: str) -> None:
        """Let go, unless it is wanted again meanwhile."""
        async with self.lock:
            if await self.experiments.needs(checkpoint, holder):
                return
            with contextlib.suppress(NotFound):  # it has gone, and its holders with it
                await self._say(checkpoint, holder, hold=False)

    async def settle(self) -> int:
        """Let go of what nobody wants held any more; how much of that is still to be said.

        A hold that is still intended while nobody is at work belongs to somebody who was cut short: to a registration,
        which never came to be, or to an experiment, which may have.
        """
        async with self.lock:
            found = await self._database.write(_abandon)
            for holder, checkpoint in found:
                try:
                    if not await self.experiments.needs(checkpoint, holder):
                        await self._say(checkpoint, holder, hold=False)
                except NotFound:
                    pass  # it has gone, and its holders with it
                except ClutchError as error:
                    self._log.warning("a checkpoint is not let go yet", checkpoint=checkpoint, error=str(error))
                    continue
                done = delete(pins).where(is_row(pins, holder=holder, checkpoint=checkpoint, hold=False))
                await self._database.write(lambda connection, done=done: connection.execute(done).rowcount)  # type: ignore[misc]
        return await self._database.read(lambda connection: len(connection.execute(select(pins).limit(AT_ONCE)).all()))


def intend(connection: Connection, checkpoint: str, holder: str, *, hold: bool) -> None:
    """Write down what is to be said."""
    put(connection, pins, holder=holder, checkpoint=checkpoint, hold=hold)


def is_said(connection: Connection, checkpoint: str, holder: str) -> None:
    connection.execute(delete(pins).where(is_row(pins, holder=holder, checkpoint=checkpoint)))


def _abandon(connection: Connection) -> list[tuple[str, str]]:
    """Versions that never came to be are gone; what is to be let go."""
    connection.execute(delete(versions).where(versions.c.held.is_(False)))
    connection.execute(update(pins).where(pins.c.hold.is_(True)).values(hold=False))
    due = connection.execute(select(pins.c.holder, pins.c.checkpoint).order_by(pins.c.holder).limit(AT_ONCE))
    return [(row.holder, row.checkpoint) for row in due]


def check_whole(row: CheckpointRow) -> None:
    """``Conflict`` unless all of its files are there."""
    if row.state != CheckpointState.COMMITTED:
        raise Conflict(
            f"it is {row.state}, so its files cannot be counted on",
            object=f"checkpoint {row.key}",
            next_step="Register another checkpoint of its trial.",
        )
