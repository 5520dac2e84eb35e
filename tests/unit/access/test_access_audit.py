"""The way of audit entries to their store: never waiting, bounded, and honest about what was lost."""

import asyncio

import pytest

from clutch.master.access.audit import Audit, Lane
from clutch.wire.access import AuditEntry
from clutch.wire.errors import Unavailable


class RefusingAudit(Audit):
    """Keeps entries in a list; may be away, or wait at a gate."""

    def __init__(self) -> None:
        self.kept: list[AuditEntry] = []
        self.away = False
        self.gate: asyncio.Event | None = None
        self.began = asyncio.Event()
        self.wanted = 0
        self.arrived = asyncio.Event()

    async def add(self, entries: list[AuditEntry]) -> None:
        self.began.set()
        if self.away:
            raise Unavailable("away", object="store")
        self.kept += entries
        if len(self.kept) >= self.wanted:
            self.arrived.set()
        if self.gate is not None:  # it is written, and the answer is on its way
            await self.gate.wait()


def entry(at: float) -> AuditEntry:
    return AuditEntry(at=at, who="user:ada", action="act", status=200)


async def test_entries_arrive_in_order_while_it_runs() -> None:
    store = RefusingAudit()
    store.wanted = 1500
    lane = Lane(store)
    running = asyncio.create_task(lane.run())
    for number in range(1500):
        lane.note(entry(number))
    async with asyncio.timeout(20):
        await store.arrived.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert [e.at for e in store.kept] == [float(number) for number in range(1500)]


async def test_what_came_during_a_write_is_written_too_and_a_cancelled_write_is_not_repeated() -> None:
    store = RefusingAudit()
    store.gate = asyncio.Event()
    lane = Lane(store)
    lane.note(entry(1))
    running = asyncio.create_task(lane.run())
    await store.began.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    lane.note(entry(2))
    closing = asyncio.create_task(lane.close())
    await asyncio.sleep(0)
    store.gate.set()
    await closing
    assert [e.at for e in store.kept] == [1.0, 2.0]


async def test_a_full_queue_leaves_a_gap_that_says_so() -> None:
    store = RefusingAudit()
    store.away = True
    lane = Lane(store, queue_max=3)
    for number in range(10):
        lane.note(entry(number))
    assert lane.waiting == 3
    with pytest.raises(Unavailable):
        await lane.flush()
    store.away = False
    lane.note(entry(10))  # still full: the store has taken nothing yet
    await lane.close()
    assert [e.at for e in store.kept[:3]] == [0.0, 1.0, 2.0]
    (gap,) = store.kept[3:]
    assert gap.action == "audit_gap" and "8 entries were lost between 3.000 and 10.000" in gap.detail
    lane.note(entry(11))
    await lane.close()
    assert [e.action for e in store.kept[4:]] == ["act"]


async def test_an_end_that_cannot_write_says_so() -> None:
    store = RefusingAudit()
    store.away = True
    lane = Lane(store)
    lane.note(entry(1))
    with pytest.raises(Unavailable):
        await lane.close()
