"""The library of a master: everything it keeps over one database, and what it does while its master leads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import structlog

from clutch.master.access.database import Database
from clutch.master.access.keys import MasterKeys
from clutch.master.effects import Effect
from clutch.master.loop import Clock
from clutch.master.settings import MasterSettings
from clutch.wire.errors import ClutchError
from clutch.workloads.experiment.library.database import open_database
from clutch.workloads.experiment.library.delivering import KIND, Deliverer, Sender
from clutch.workloads.experiment.library.hooks import Webhooks
from clutch.workloads.experiment.library.models import Models
from clutch.workloads.experiment.library.pinning import Holds, Pins
from clutch.workloads.experiment.library.templates import Check, Templates

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
        self.deliverer = Deliverer(self.webhooks, clock, sender)
        self._log = structlog.get_logger("library")

    def serve(self, experiments: Pins) -> None:
        """Whose checkpoints are registered. Said once, when there are experiments."""
        self.holds.serve(experiments)

    async def layers(self, workspace: str, template: str = "") -> list[dict[str, Any]]:
        """What a configuration of this workspace is laid over, the nearest first."""
        return await self.templates.layers(workspace, template)

    def effects(self) -> Mapping[str, Effect]:
        """How items of the outbox that are the library's are performed."""
        return {KIND: self.deliverer.effect()}

    async def lead(self) -> None:
        """What only the leading master does, until it is cancelled: let go of checkpoints that were not let go yet,
        and seal with the newest key."""
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
    return Library(await open_database(settings.data, settings.db), clock, keys, check, sender)
