"""Proof that this master still leads, for answers that its loop does not give."""

from __future__ import annotations

import asyncio

from clutch.master.loop import Loop
from clutch.wire.errors import NotLeader, Stale


class Lead:
    """Many ask at once; one renewal that began after they asked answers all of them."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def confirm(self) -> None:
        """Returns if this master led at some moment after the call; ``NotLeader`` if another has taken over."""
        if self._next is None:
            self._next = asyncio.create_task(self._renew(self._running))
        try:
            await asyncio.shield(self._next)
        except Stale as error:
            raise NotLeader(
                "another master has taken over", object="master", next_step="Ask at another address of the cluster."
            ) from error

    async def _renew(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        await self._loop.journal.renew(self._loop.settings.lead_s)
