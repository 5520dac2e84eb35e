"""What every journal must do when the disk is full, the power is cut, or a copy is no good."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from clutch.backends.journal.base import FullJournal
from clutch.testing.journal_ground import (
    TTL_S,
    CrashingGround,
    FullGround,
    Ground,
    make_rows,
    numbered_batch,
    read_all,
    refused,
    task,
)
from clutch.wire.errors import Conflict, Corrupt, DiskFull, NotFound
from clutch.wire.journal import Batch, Chunk, Snapshot
from clutch.wire.views import TaskView


async def check_copy_fills_an_empty_journal_once(ground: Ground) -> None:
    journal = await ground.open()
    lead = await journal.lead("a", TTL_S)
    for first in (1, 11, 21):
        await journal.append(numbered_batch(lead, first, 10))
    async with journal.export() as (origin, pieces):
        chunks = [chunk async for chunk in pieces]
    assert (origin.generation, origin.term, origin.last_index) == (1, 1, 30)
    await refused(Conflict, journal.adopt(origin, chunks))
    assert len(await journal.read(0)) == 30


async def check_copy_that_is_no_chain_is_refused(ground: Ground) -> None:
    """A copy is taken from a journal in memory, as any other would do."""
    from clutch.backends.journal.memory import MemoryJournal, MemoryStore

    source = MemoryJournal(MemoryStore(lambda: 0.0))
    lead = await source.lead("a", 60.0)
    for first in (1, 11, 21):
        await source.append(numbered_batch(lead, first, 10))
    await source.save_snapshot(Snapshot(25, 7, b"state" * 500_000))
    await source.forget(6)
    async with source.export() as (origin, pieces):
        chunks = [chunk async for chunk in pieces]
    target = await ground.open()
    raised = replace(origin, generation=origin.generation + 1)
    await refused(Corrupt, target.adopt(raised, [c for c in chunks if not c.rows]))
    await refused(Corrupt, target.adopt(replace(raised, last_checksum=origin.last_checksum ^ 1), chunks))

    def breaks_off() -> Iterable[Chunk]:
        yield from chunks[:-1]
        raise Corrupt("the file is cut short", object="file")

    await refused(Corrupt, target.adopt(raised, breaks_off()))
    assert await target.read(0) == []
    assert await target.load_snapshot() is None
    assert await target.page("tasks", {}, "key", "", 10) == []

    await target.adopt(raised, iter(chunks))
    assert await target.read(5) == await source.read(5)
    await refused(NotFound, target.read(0))
    assert await target.load_snapshot() == await source.load_snapshot()
    assert await target.page("tasks", {}, "key", "", 10) == await source.page("tasks", {}, "key", "", 10)
    assert await target.pending(10) == await source.pending(10)
    took = await target.lead("b", 60.0)
    assert (took.generation, took.term, took.last_index) == (2, 2, 30)
    assert await target.append(numbered_batch(took, 31, 10)) == 40
    assert len(await (await ground.open()).read(5)) == 35
    await refused(Conflict, target.adopt(raised, chunks))


async def check_full_disk_changes_nothing(ground: FullGround) -> None:
    """Fill the disk, be refused with nothing half-written, and go on when there is room again."""
    journal = await ground.open()
    lead = await journal.lead("a", 600.0)
    assert await journal.read(0) == []  # as every master has: a full PostgreSQL may refuse connections that are new
    first = 1
    while first < 4_000:
        rows = make_rows(lead, first, 10, size=8_000)
        views = (task("counter", epoch=first + 9),)
        try:
            await journal.append(Batch(rows, views))
        except DiskFull as error:
            assert error.object
            assert error.next_step
            break
        first += 10
    else:
        raise AssertionError("the disk never got full; the test proves nothing")
    assert first > 1, "nothing fitted at all"
    assert await journal.read(first - 1) == []
    counter = await journal.view("tasks", "counter")
    assert isinstance(counter, TaskView)
    assert counter.epoch == first - 1, "half of the refused batch is visible"
    assert len(await read_all(journal, limit=500)) == first - 1
    await ground.free_space()
    journal = await ground.open()
    lead = await journal.lead("a", 600.0)
    assert lead.last_index == first - 1
    rows = make_rows(lead, first, 10, size=8_000)
    assert await journal.append(Batch(rows, (task("counter", epoch=first + 9),))) == first + 9
    assert tuple(await journal.read(first - 1)) == rows


async def check_torn_tail(ground: CrashingGround) -> None:
    """Whatever was acknowledged is there; the batch that was not is wholly there or wholly absent."""
    size = 20
    acknowledged = await ground.crash_while_appending(size)
    assert acknowledged > 0, "nothing was acknowledged before the crash; the test proves nothing"
    journal = await ground.open()
    rows = await read_all(journal)
    last = rows[-1].index
    assert last in (acknowledged, acknowledged + size), f"{acknowledged} acknowledged, {last} found"
    await _check_numbered(journal, last, size)
    await ground.outlive(TTL_S)
    lead = await journal.lead("next", 60.0)
    assert lead.last_index == last
    assert await journal.append(numbered_batch(lead, last + 1, size)) == last + size
    assert len(await read_all(journal)) == last + size


async def _check_numbered(journal: FullJournal, last: int, size: int) -> None:
    """Views and outbox say the same as the rows."""
    assert last % size == 0, "half a batch is there"
    counter = await journal.view("tasks", "counter")
    assert isinstance(counter, TaskView)
    assert counter.epoch == last
    tokens = {item.token for item in await journal.pending(10_000)}
    expected = range(size, last + 1, size)
    assert tokens == {f"o{n}" for n in expected}
    missing = [n for n in expected if await journal.view("tasks", f"t{n}") is None]
    assert not missing
