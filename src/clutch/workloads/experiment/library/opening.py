"""The library of a master: everything it keeps over one database, and what it does while its master leads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import structlog

from clutch.master.access.database import Database, open_database
from clutch.master.access.keys import MasterKeys
from clutch.master.effects import Effect
from clutch.master.loop import Clock
from clutch.master.settings import MasterSettings
from clutch.wire.errors import ClutchError
from clutch.wire.events import Event, SettleEffect
from clutch.wire.experiment_words import RELEASE, Release
from clutch.wire.journal import OutboxItem
from clutch.workloads.experiment.library.delivering import KIND, Deliverer, Sender
from clutch.workloads.experiment.library.hooks import Webhooks
from clutch.workloads.experiment.library.models import Models
from clutch.workloads.experiment.library.pinning import Holds, Pins
from clutch.workloads.experiment.library.tables import CONTENTS
from clutch.workloads.experiment.library.templates import Check, Templates
from clutch.workloads.experiment.library.waiting import Messages

T = TypeVar("T")
SETTLE_S = 30.0


class Library:
    """Models, templates, defaults and webhooks. ``serve`` tells it of the experiments; ``close`` it at the end."""

    def __init__(
        self, database: Database, clock: Clock, keys: MasterKeys, check: Check, sender: Sender | None = None
    ) -> None:
        self._database = database
        self.clock = clock
        self.holds = Holds(database)
        self.models = Models(database, self.holds)
        self.templates = Templates(database, check)
        self.webhooks = Webhooks(database, keys)
        self.messages = Messages(database)
        self.deliverer = Deliverer(self.webhooks, self.messages, clock, sender)
        self._log = structlog.get_logger("library")

    def serve(self, experiments: Pins) -> None:
        """Whose checkpoints are registered. Said once, when there are experiments."""
        self.holds.serve(experiments)

    async def layers(self, workspace: str, template: str = "") -> list[dict[str, Any]]:
        """What a configuration of this workspace is laid over, the nearest first."""
        return await self.templates.layers(workspace, template)

    async def holding(self, checkpoint: str, holder: str, do: Callable[[], Awaitable[T]]) -> T:
        """Do what needs the checkpoint held, with it held, until it is released."""
        return await self.holds.holding(checkpoint, holder, do)

    async def needing(self, checkpoints: Sequence[str], holder: str, do: Callable[[], Awaitable[T]]) -> T:
        """Do what may need these checkpoints held, with them held; those that an experiment needs then stay so, until
        they are released."""
        return await self.holds.needing(checkpoints, holder, do)

    def effects(self) -> Mapping[str, Effect]:
        """How items of the outbox that are the library's are performed."""
        return {KIND: self.deliverer.effect(), RELEASE: Effect(perform=self._release)}

    async def _release(self, item: OutboxItem) -> Event:
        said = msgspec.msgpack.decode(item.payload, type=Release)
        await self.holds.release(said.checkpoint, said.by)
        return SettleEffect(cause="release", token=item.token)

    async def lead(self) -> None:
        """What only the leading master does, until it is cancelled: tell webhooks what waits for them, let go of
        checkpoints that were not let go yet, and seal with the newest key."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.deliverer.run())
            group.create_task(self._tidy())

    async def _tidy(self) -> None:
        while True:
            try:
                await self.holds.settle()
                await self.webhooks.reseal()
            except ClutchError as error:
                self._log.warning("the library cannot be tidied", error=str(error))
            await asyncio.sleep(SETTLE_S)

    async def close(self) -> None:
        await self.deliverer.sender.close()
        await self._database.close()


async def open_library(
    settings: MasterSettings, clock: Clock, keys: MasterKeys, check: Check, *, sender: Sender | None = None
) -> Library:
    """The library of a master. ``keys`` are its access's (``access.keys``); ``check`` looks at configurations."""
    database = await open_database(settings.data, settings.db, CONTENTS)
    return Library(database, clock, keys, check, sender)
