"""Accounting at work: the journal's facts and the agents' measurements, added up and written every few seconds.

It is told facts as they become durable (``hear``); when it has missed some, at a start or after the database was away,
it reads them from the journal. How far it got is written with the sums, in one transaction, so a restart neither loses
nor doubles anything. Only the leading master accounts; if two ever try, one notices by the turn's number and loads
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from clutch.backends.journal.base import Journal
from clutch.core.member import PRESENT
from clutch.core.recorded import Recorded, from_row
from clutch.core.state import State
from clutch.master.access.accumulator import Account, Accumulator, Holding, OpenTask
from clutch.master.access.usage_store import UsageRows
from clutch.master.loop import Clock
from clutch.wire.errors import ClutchError, NotFound, Stale
from clutch.wire.link import NodeUse

FLUSH_S = 5.0
READ_ROWS = 5_000


class Usage:
    """Put ``hear`` among the loop's listeners and ``run`` into the master's task group."""

    def __init__(
        self,
        rows: UsageRows,
        journal: Journal,
        clock: Clock,
        state: Callable[[], Awaitable[State]],
        uses: Callable[[], Sequence[NodeUse]],
        flush_s: float = FLUSH_S,
    ) -> None:
        """``state`` is ``Loop.settled``, ``uses`` is ``Monitor.nodes``."""
        self._rows = rows
        self._journal = journal
        self._clock = clock
        self._state = state
        self._uses = uses
        self._flush_s = flush_s
        self._accounts = Accumulator()
        self._turn = -1
        """Of the last write; -1 before the first load."""
        self._following = False
        """Whether nothing lies between what was taken and what is heard next."""
        self._flushing = asyncio.Lock()
        self._log = structlog.get_logger("usage")

    @property
    def index(self) -> int:
        """The last fact that was taken."""
        return self._accounts.index

    def hear(self, recorded: Sequence[Recorded]) -> None:
        """Facts that are durable. What is missed here is read later."""
        if not self._following or not recorded:
            return
        if recorded[0].index > self._accounts.index + 1:
            self._following = False
            return
        for entry in recorded:
            self._accounts.take(entry)

    async def run(self, serving: asyncio.Event) -> None:
        """Account while this master leads, until cancelled."""
        await serving.wait()
        while True:
            try:
                await self.flush()
            except ClutchError as error:
                self._log.warning("usage cannot be written now", error=str(error))
            await asyncio.sleep(self._flush_s)

    async def flush(self) -> None:
        """Take what is new and write it. After an error nothing is lost: it is tried again, or loaded anew."""
        async with self._flushing:
            if self._turn < 0:
                self._following = False
                self._turn, self._accounts = await self._rows.load()
            if not self._following:
                await self._catch_up()
            now = self._clock.now()
            for use in self._uses():
                self._accounts.sample(use, now)
            self._accounts.advance(now)
            changes = self._accounts.collect()
            try:
                await self._rows.save(self._turn, self._accounts.index, self._accounts.charged_at, changes)
            except Stale:
                self._turn = -1
                raise
            except BaseException:
                # Whether it was written nobody knows; if it was, the next try is Stale and loads again
                self._accounts.give_back(changes)
                raise
            self._turn += 1

    async def _catch_up(self) -> None:
        try:
            while rows := await self._journal.read(self._accounts.index, READ_ROWS):
                for row in rows:
                    self._accounts.take(from_row(row))
        except NotFound:
            self._log.warning("rows behind the last account are forgotten; what lives now is accounted from here on")
            self._seed(await self._state())
        self._following = True

    def _seed(self, state: State) -> None:
        tasks = {}
        for task, found in state.tasks.items():
            spec = found.spec
            tasks[task] = OpenTask(Account(spec.owner, spec.workspace, spec.project, spec.pool))
        holdings = {}
        for member in state.members.values():
            if member.placement is not None and member.state in PRESENT:
                place = member.placement
                holdings[f"member {member.member}"] = Holding(member.member.task, place.node, place.slots)
        for lease in state.leases.values():
            if lease.placement is not None:
                holdings[f"lease {lease.lease}"] = Holding(lease.task, lease.placement.node, lease.placement.slots)
        self._accounts.seed(state.index, state.at, tasks, holdings)
