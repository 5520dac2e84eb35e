"""The journal as a feed: facts in words, from any row on, and as they become so.

The latest facts are kept in memory; a reader that is behind them reads the journal, at its own pace. Nothing is ever
queued for a reader, so a slow one costs nothing but its own time, and its cursor is all there is to know of it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Sequence
from typing import cast

import msgspec

from clutch.backends.journal.base import FullJournal
from clutch.core.recorded import Recorded, from_row
from clutch.core.story import subjects, tell
from clutch.master.history import History
from clutch.master.loop import Loop
from clutch.wire.api import EventView
from clutch.wire.errors import NotFound
from clutch.wire.facts import TaskSubmitted
from clutch.wire.views import TaskView

RECENT = 10_000
READ_ROWS = 1_000
SCAN_ROWS = 20_000
"""So many rows are looked at for one page; a filter that fits few gives a short page with a cursor."""
PLACES_MAX = 20_000


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which facts. ``visible`` None: all, those of the whole cluster too."""

    visible: tuple[str, ...] | None
    kinds: tuple[str, ...] = ()
    task: str = ""

    def fits(self, recorded: Recorded, workspace: str) -> bool:
        if self.visible is not None and workspace not in self.visible:
            return False
        if self.kinds and str(recorded.fact.__struct_config__.tag) not in self.kinds:
            return False
        return not self.task or self.task in subjects(recorded.fact)


class EventPage(msgspec.Struct, frozen=True):
    """Facts in order; ``seen`` is the last row that was looked at, ``more`` whether there are rows behind it."""

    items: tuple[EventView, ...]
    seen: int
    more: bool


class EventFeed:
    """One for all readers. ``heard`` is the loop's listener."""

    def __init__(self, journal: FullJournal, loop: Loop) -> None:
        self._journal = journal
        self._loop = loop
        self._recent: deque[Recorded] = deque(maxlen=RECENT)
        self._news = asyncio.Event()
        self._places: OrderedDict[str, str] = OrderedDict()
        """Workspaces by task."""

    def heard(self, recorded: Sequence[Recorded]) -> None:
        """These are durable now."""
        self._recent.extend(recorded)
        for entry in recorded:
            if isinstance(entry.fact, TaskSubmitted):
                self._remember(entry.fact.task, entry.fact.spec.workspace)
        self._news.set()
        self._news = asyncio.Event()

    @property
    def last(self) -> int:
        """The index of the last durable fact this feed has heard of; before the first, of the journal's end."""
        return self._recent[-1].index if self._recent else self._loop.state.index

    # -- reading -------------------------------------------------------------------------------------------------

    async def page(self, wanted: EventFilter, after: int, limit: int) -> EventPage:
        """Up to ``limit`` facts behind row ``after``; from the first remembered row if that one is forgotten."""
        items: list[EventView] = []
        scanned = 0
        while scanned < SCAN_ROWS:
            recorded = await self._behind(after)
            if not recorded:
                return EventPage(tuple(items), after, False)
            scanned += len(recorded)
            for entry in recorded:
                view = await self._view(entry, wanted)
                after = entry.index
                if view is not None:
                    items.append(view)
                    if len(items) == limit:
                        return EventPage(tuple(items), after, True)
        return EventPage(tuple(items), after, True)

    async def follow(self, wanted: EventFilter, after: int) -> AsyncIterator[EventPage]:
        """Pages from row ``after`` on, none of them empty but those that move the cursor; never ends by itself."""
        while True:
            news = self._news
            page = await self.page(wanted, after, READ_ROWS)
            if page.items or page.seen - after >= SCAN_ROWS:
                yield page
            after = page.seen
            if not page.more:
                await news.wait()

    async def _behind(self, after: int) -> list[Recorded]:
        """The next facts, from memory if they are there."""
        if self._recent and self._recent[0].index <= after + 1:
            start = after + 1 - self._recent[0].index
            return [self._recent[i] for i in range(start, min(start + READ_ROWS, len(self._recent)))]
        try:
            rows = await self._journal.read(after, READ_ROWS)
        except NotFound:
            first = await History(self._journal, self._loop.state.index).first()
            rows = await self._journal.read(first, READ_ROWS) if first > after else []
        return [from_row(row) for row in rows]

    # -- one fact ------------------------------------------------------------------------------------------------

    async def _view(self, entry: Recorded, wanted: EventFilter) -> EventView | None:
        about = subjects(entry.fact)
        workspace = await self._workspace(entry)
        if not wanted.fits(entry, workspace):
            return None
        return EventView(
            index=entry.index,
            at=entry.at,
            cause=entry.cause,
            kind=str(entry.fact.__struct_config__.tag),
            object=about[0] if about else "",
            text=tell(entry.fact),
            workspace=workspace,
        )

    async def _workspace(self, entry: Recorded) -> str:
        """The workspace of the task a fact is about; empty for what is the whole cluster's."""
        if isinstance(entry.fact, TaskSubmitted):
            return entry.fact.spec.workspace
        task = _task_of(entry)
        if not task:
            return ""
        known = self._places.get(task)
        if known is None:
            live = self._loop.state.tasks.get(task)  # type: ignore[call-overload]  # a task's id is a plain str here
            if live is not None:
                known = str(live.spec.workspace)
            else:
                view = cast(TaskView | None, await self._journal.view(TaskView.table, task))
                known = view.workspace if view is not None else ""
            self._remember(task, known)
        return known

    def _remember(self, task: str, workspace: str) -> None:
        self._places[task] = workspace
        if len(self._places) > PLACES_MAX:
            self._places.popitem(last=False)


def _task_of(entry: Recorded) -> str:
    fact = entry.fact
    task = getattr(fact, "task", "")
    if isinstance(task, str) and task:
        return task
    member = getattr(fact, "member", None)
    if member is not None:
        return str(member.task)
    lease = getattr(fact, "lease", "")
    return lease.partition("/")[0] if "/" in lease else ""
