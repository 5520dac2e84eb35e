"""The task a user of ``AsyncClient`` holds: to wait for, to read, to end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Unpack

from clutch.sdk import calls
from clutch.sdk.output import Filters, Follower, first_page, next_page, output_query, parse_page
from clutch.sdk.reading import LOOK_FIRST_S, LOOK_MAX_S
from clutch.wire.api import TaskDetail, WhyTask
from clutch.wire.errors import TimedOut, Unavailable
from clutch.wire.metrics import Series
from clutch.wire.outcomes import TaskState
from clutch.wire.output import OutputLine

if TYPE_CHECKING:
    from clutch.sdk.async_client import AsyncClient


class AsyncTask:
    """One task of a cluster, by its id."""

    def __init__(self, client: AsyncClient, id: str, name: str = "") -> None:
        self.client = client
        self.id = id
        self.name = name

    def __repr__(self) -> str:
        return f"AsyncTask({self.id!r}, name={self.name!r})"

    async def detail(self) -> TaskDetail:
        """Everything the master says about it now."""
        return await self.client.perform(calls.get_task(self.id))

    async def why(self) -> WhyTask:
        """Where it stands and how it came to that."""
        return await self.client.perform(calls.why_task(self.id))

    async def metrics(self, **fields: Any) -> tuple[Series, ...]:
        """What it reported, as series: ``group``, ``name``, ``points`` (0: as many as the master gives)."""
        return (await self.client.perform(calls.task_metrics(self.id, **fields))).items

    async def wait(self, timeout_s: float | None = None) -> TaskDetail:
        """Itself, ended. ``TimedOut`` when that takes longer than ``timeout_s``."""
        detail, pause = None, LOOK_FIRST_S
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    detail = await self.detail()
                    if detail.task.state == TaskState.ENDED:
                        return detail
                    await asyncio.sleep(pause)
                    pause = min(pause * 1.5, LOOK_MAX_S)
        except TimeoutError:
            state = detail.task.state if detail is not None else "unknown: no answer came"
            step = f"Wait longer, or ask 'clutch why {self.id}'."
            raise TimedOut(f"it is still {state}", object=f"task {self.id}", next_step=step) from None

    async def output(self, *, follow: bool = False, **filters: Unpack[Filters]) -> AsyncIterator[OutputLine]:
        """Its lines, oldest first. With ``follow``, those to come too, until it has ended; a master that goes away
        meanwhile is waited for, and no line is lost or given twice."""
        query = output_query(self.id, **filters)
        if follow:
            async for line in self.follow(Follower(query)):
                yield line
            return
        query, last = first_page(query), list[OutputLine]()
        while True:
            page = await self.client.perform(calls.read_output(query))
            if query.tail:
                last[:0] = page.lines  # the end comes first
            for line in () if query.tail else page.lines:
                yield line
            if not page.more:
                break
            query = next_page(query, page)
        for line in last:
            yield line

    async def follow(self, follower: Follower) -> AsyncIterator[OutputLine]:
        """Lines as they come, from where a follower stands; see ``Task.follow``."""
        pause = LOOK_FIRST_S
        while not follower.finished:
            try:
                for line in follower.rest():
                    yield line
                async for said in self.client.lines(calls.follow_output(follower.query())):
                    pause = LOOK_FIRST_S
                    if said:
                        follower.hear(parse_page(said))
                    for line in follower.rest():
                        yield line
                await self._after(follower)
            except Unavailable:
                await asyncio.sleep(pause)
                pause = min(pause * 2, LOOK_MAX_S)

    async def _after(self, follower: Follower) -> None:
        follower.stream_ended((await self.detail()).task.state == TaskState.ENDED)

    async def stop(self) -> None:
        """Asks it to leave; after its window it is ended."""
        await self.client.perform(calls.move_task(self.id, "stop"))

    async def kill(self) -> None:
        """Ends it at once."""
        await self.client.perform(calls.move_task(self.id, "kill"))

    async def pause(self) -> None:
        """Asks it to leave and to wait for ``resume``."""
        await self.client.perform(calls.move_task(self.id, "pause"))

    async def resume(self) -> None:
        await self.client.perform(calls.move_task(self.id, "resume"))
