"""What every journal must do, as checks that try to break it.

Each check takes a fresh ``Ground`` and asserts. ``CHECKS`` is all that any ground can stand; ``check_full_disk...`` and
``check_torn_tail`` need grounds that can be filled or crashed. A test runner runs each against each ground; nothing
here needs a particular runner.
"""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from clutch.backends.journal.base import FullJournal, Maintenance, Outbox, Views
from clutch.testing.journal_ground import (
    TTL_S,
    Check,
    CrashingGround,
    FullGround,
    Ground,
    make_rows,
    node,
    numbered_batch,
    read_all,
    refused,
    task,
)
from clutch.testing.journal_suite_faults import (
    check_copy_fills_an_empty_journal_once,
    check_copy_that_is_no_chain_is_refused,
    check_full_disk_changes_nothing,
    check_torn_tail,
)
from clutch.testing.journal_suite_views import (
    check_bad_questions_are_refused,
    check_outbox_is_idempotent,
    check_pages_are_stable,
    check_views_follow_the_last_word,
)
from clutch.wire.errors import (
    BadRequest,
    BrokenInvariant,
    ClutchError,
    Corrupt,
    NotFound,
    Stale,
    Unavailable,
)
from clutch.wire.journal import Batch, Chunk, Gone, Leadership, OutboxItem, Row, Snapshot
from clutch.wire.views import TaskView

__all__ = [
    "CHECKS",
    "TTL_S",
    "Check",
    "CrashingGround",
    "FullGround",
    "Ground",
    "check_full_disk_changes_nothing",
    "check_torn_tail",
    "make_rows",
    "node",
    "numbered_batch",
    "read_all",
    "refused",
    "task",
]


async def check_gives_back_what_it_was_given(ground: Ground) -> None:
    journal = await ground.open()
    for ability in (Views, Outbox, Maintenance):
        assert isinstance(journal, ability)
    lead = await journal.lead("a", TTL_S)
    assert (lead.generation, lead.term, lead.holder, lead.last_index) == (1, 1, "a", 0)
    assert await journal.read(0) == []
    rows = (
        Row(1, 1, 0.0, "", "", 0, b""),
        Row(2, 1, 1e-300, "api:submit", "TaskSubmitted", 1, b"\x00\xff" * 10),
        Row(3, 1, 1_763_000_000.123456, "Größe 漢字 🦜 'quoted\" |pipe|", "Ünïcode", 2**40, b"|"),
        Row(4, 1, -1.5, "\u0301\u200d\ufeff\n\t\x7f", "k", -1, bytes(range(256))),
        Row(5, 1, 5, "an integer time", "k", 1, b"5"),
        Row(6, 1, -0.0, "two zeroes", "k", 1, b"6"),
        Row(7, 1, 1.0, "large", "k", 1, b"0123456789abcdef" * (5 << 16)),
    )
    assert await journal.append(Batch(rows[:4])) == 4
    assert await journal.append(Batch(rows[4:])) == 7
    assert tuple(await journal.read(0)) == rows
    assert tuple(await journal.read(2, 3)) == rows[2:5]
    assert await journal.read(7) == []
    assert await journal.read(99) == []
    other = await ground.open()
    assert tuple(await other.read(0)) == rows


async def check_batch_is_all_or_nothing(ground: Ground) -> None:
    journal = await ground.open()
    lead = await journal.lead("a", TTL_S)
    await journal.append(Batch(make_rows(lead, 1, 3), (task("t1"),), (OutboxItem("o1", "k", 1.0, b""),)))
    good = make_rows(lead, 4, 2)
    waiting = (OutboxItem("o2", "k", 1.0, b""),)
    bad_batches: list[tuple[type[ClutchError], Batch]] = [
        (BadRequest, Batch(good, (task("t2"), task("t3", name="nul \0 inside")), waiting)),
        (BadRequest, Batch(good, (task("t2"), task("t3", detail="\ud800")), waiting)),
        (BadRequest, Batch(good, (task("t2"), task("t3", priority=2**63)), waiting)),
        (BadRequest, Batch(good, (task("t2"), task("t3", ended_at=float("nan"))), waiting)),
        (BadRequest, Batch(good, (task("t2"), Gone("no_such_view", "t1")), waiting)),
        (BadRequest, Batch((good[0], replace(good[1], cause="\0")), (task("t2"),), waiting)),
        (BadRequest, Batch(good, (task("t2"),), (*waiting, OutboxItem("o\0", "k", 1.0, b"")))),
        (BrokenInvariant, Batch(make_rows(lead, 5, 2), (task("t2"),), waiting)),
        (BrokenInvariant, Batch(make_rows(lead, 3, 2), (task("t2"),), waiting)),
        (BrokenInvariant, Batch((good[1], good[0]), (task("t2"),), waiting)),
        (BrokenInvariant, Batch((good[0], replace(good[1], term=lead.term + 1)), (task("t2"),), waiting)),
    ]
    for kind, batch in bad_batches:
        await refused(kind, journal.append(batch))
        assert len(await journal.read(0)) == 3
        assert await journal.view("tasks", "t2") is None
        assert [item.token for item in await journal.pending(10)] == ["o1"]
    assert await journal.append(Batch(good, (task("t2"),), waiting)) == 5
    assert await journal.append(Batch((), (task("t3"),))) == 5, "views may change without a fact"
    assert await journal.append(Batch(())) == 5
    assert await journal.view("tasks", "t3") == task("t3")


async def check_one_leads_at_a_time(ground: Ground) -> None:
    first, second = await ground.open(), await ground.open()
    lead = await first.lead("a", 60.0)
    error = await refused(Unavailable, second.lead("b", 60.0))
    assert "a leads" in error.cause
    await refused(Stale, second.append(Batch(make_rows(lead, 1, 1))))
    await refused(Stale, second.renew(60.0))
    await second.resign()
    assert await first.append(Batch(make_rows(lead, 1, 2))) == 2, "a stranger's resign took the lead away"
    await first.resign()
    await refused(Stale, first.append(Batch(make_rows(lead, 3, 1))))
    await first.resign()
    took = await second.lead("b", 60.0)
    assert (took.term, took.last_index) == (2, 2)
    again = await (await ground.open()).lead("b", TTL_S)
    assert again.term == 3, "the same name takes over at once"
    await refused(Stale, second.append(Batch(make_rows(took, 3, 1))))
    await ground.outlive(TTL_S)
    third = await ground.open()
    assert (await third.lead("c", 60.0)).term == 4
    assert len(await third.read(0)) == 2


async def check_paused_leader_wakes_up_stale(ground: Ground) -> None:
    old, new = await ground.open(), await ground.open()
    was = await old.lead("a", TTL_S)
    await old.append(Batch(make_rows(was, 1, 5)))
    await ground.outlive(TTL_S)
    now = await new.lead("b", 60.0)
    await new.append(Batch(make_rows(now, 6, 1), (task("t1", state="running"),)))
    late = Batch(make_rows(was, 6, 1), (task("t1", state="lost"),), (OutboxItem("o1", "k", 1.0, b""),))
    await refused(Stale, old.append(late))
    await refused(Stale, old.append(Batch((), (Gone("tasks", "t1"),))))
    await refused(Stale, old.renew(60.0))
    await refused(Stale, old.save_snapshot(Snapshot(5, 1, b"old")))
    await refused(Stale, old.forget(3))
    assert await new.load_snapshot() is None
    assert await new.view("tasks", "t1") == task("t1", state="running")
    assert await new.pending(10) == []
    assert [row.term for row in await new.read(0)] == [1] * 5 + [2]
    await old.resign()
    await new.append(Batch(make_rows(now, 7, 1)))
    await refused(Unavailable, old.lead("a", TTL_S))


async def check_expired_leader_goes_on_until_replaced(ground: Ground) -> None:
    journal = await ground.open()
    lead = await journal.lead("a", TTL_S)
    await ground.outlive(TTL_S)
    assert await journal.append(Batch(make_rows(lead, 1, 1))) == 1
    await journal.renew(60.0)
    await refused(Unavailable, (await ground.open()).lead("b", 60.0))


async def check_racing_standbys_get_one_leader(ground: Ground) -> None:
    standbys = [await ground.open() for _ in range(4)]
    tries = [journal.lead(f"m{n}", 60.0) for n, journal in enumerate(standbys)]
    results = await asyncio.gather(*tries, return_exceptions=True)
    won = [result for result in results if isinstance(result, Leadership)]
    assert len(won) == 1
    assert won[0].term == 1
    assert sum(isinstance(result, Unavailable) for result in results) == 3, results


async def check_damaged_rows_are_named(ground: Ground) -> None:
    journal = await ground.open()
    lead = await journal.lead("a", 60.0)
    await journal.append(Batch(make_rows(lead, 1, 20)))
    await ground.damage_row(12)
    error = await refused(Corrupt, journal.read(0))
    assert "12" in error.object
    assert error.next_step
    assert len(await journal.read(0, 11)) == 11, "rows before the damage are still read"
    error = await refused(Corrupt, journal.read(11))
    assert "12" in error.object
    assert len(await journal.read(12)) == 8, "the chain goes on from the stored checksum"


async def check_missing_rows_are_named(ground: Ground) -> None:
    journal = await ground.open()
    lead = await journal.lead("a", 60.0)
    await journal.append(Batch(make_rows(lead, 1, 20)))
    await ground.lose_rows(18, 20)
    assert "18" in (await refused(Corrupt, journal.read(0))).object
    assert "18" in (await refused(Corrupt, journal.read(17))).object
    assert len(await journal.read(0, 17)) == 17
    await ground.lose_rows(7, 9)
    assert "7" in (await refused(Corrupt, journal.read(0))).object
    assert "8" in (await refused(Corrupt, journal.read(8))).object, "its anchor is gone"


async def check_snapshots_fall_back(ground: Ground) -> None:
    journal = await ground.open()
    lead = await journal.lead("a", 60.0)
    await journal.append(Batch(make_rows(lead, 1, 30)))
    assert await journal.load_snapshot() is None
    await refused(BrokenInvariant, journal.save_snapshot(Snapshot(31, 1, b"")))
    large = bytes(range(256)) * 10_000
    for index, payload in ((0, b""), (10, b"ten"), (20, large)):
        await journal.save_snapshot(Snapshot(index, 3, payload))
        assert await journal.load_snapshot() == Snapshot(index, 3, payload)
    assert await (await ground.open()).load_snapshot() == Snapshot(20, 3, large)
    await ground.damage_snapshot(0)
    assert await journal.load_snapshot() == Snapshot(10, 3, b"ten")
    await journal.save_snapshot(Snapshot(30, 3, large))
    assert await journal.load_snapshot() == Snapshot(30, 3, large), "a damaged older one is in nobody's way"
    await ground.damage_snapshot(0)
    assert await journal.load_snapshot() is None, "all rows are there: start from the first"
    assert len(await journal.read(0)) == 30


async def check_forgets_only_what_a_snapshot_covers(ground: Ground) -> None:
    journal = await ground.open()
    lead = await journal.lead("a", 60.0)
    await journal.append(Batch(make_rows(lead, 1, 40)))
    assert await journal.forget(30) == 0
    await journal.save_snapshot(Snapshot(10, 1, b"ten"))
    await journal.save_snapshot(Snapshot(20, 1, b"twenty"))
    assert await journal.forget(10) == 9
    assert [row.index for row in await journal.read(9, 2)] == [10, 11]
    await ground.damage_snapshot(0)
    assert await journal.load_snapshot() == Snapshot(10, 1, b"ten")
    await journal.save_snapshot(Snapshot(20, 1, b"again"))
    assert await journal.forget(35) == 11, "rows behind the snapshot stay"
    assert await journal.forget(35) == 0
    await refused(NotFound, journal.read(0))
    await refused(NotFound, journal.read(19))
    assert [row.index for row in await journal.read(20)] == list(range(21, 41))
    reopened = await ground.open()
    took = await reopened.lead("a", 60.0)
    assert took.last_index == 40
    assert await reopened.append(Batch(make_rows(took, 41, 1))) == 41
    assert len(await reopened.read(20)) == 21
    await reopened.save_snapshot(Snapshot(41, 1, b"all"))
    assert await reopened.forget(42) == 21, "a journal may hold no rows at all"
    assert await reopened.read(41) == []
    assert await reopened.append(Batch(make_rows(took, 42, 1))) == 42
    assert [row.index for row in await (await ground.open()).read(41)] == [42]
    await ground.damage_snapshot(0)
    await refused(Corrupt, reopened.load_snapshot())


async def check_readers_see_whole_batches(ground: Ground) -> None:
    journal, other = await ground.open(), await ground.open()
    lead = await journal.lead("a", 60.0)
    done = asyncio.Event()
    seen: list[int] = []

    async def write() -> None:
        for n in range(60):
            await journal.append(numbered_batch(lead, n * 10 + 1, 10))
            await asyncio.sleep(0)
        done.set()

    async def look(reader: FullJournal) -> None:
        while not done.is_set():
            await asyncio.sleep(0)  # a journal in memory never suspends by itself
            rows = await reader.read(0)
            seen.append(len(rows))
            assert len(rows) % 10 == 0, "half a batch is visible"
            counter = await reader.view("tasks", "counter")
            assert (counter.epoch if isinstance(counter, TaskView) else 0) >= len(rows)
            async with reader.export() as (origin, chunks):
                assert await _is_of_one_moment(origin.last_index, [chunk async for chunk in chunks])

    await asyncio.gather(write(), look(journal), look(other), look(other))
    assert len(set(seen)) > 3, f"the readers never overlapped with the writer: {seen}"
    assert len(await other.read(0)) == 600


async def _is_of_one_moment(last: int, chunks: list[Chunk]) -> bool:
    rows = [row for chunk in chunks for row in chunk.rows]
    views = {view.key: view for chunk in chunks for view in chunk.views}
    outbox = [item for chunk in chunks for item in chunk.outbox]
    counter = views.get("counter")
    assert len(rows) == last
    assert len(outbox) == last // 10
    assert len(views) == (last // 10 + 1 if last else 0)
    assert (counter.epoch if isinstance(counter, TaskView) else 0) == last
    return True


async def check_reopened_it_goes_on(ground: Ground) -> None:
    journal = await ground.open()
    lead = await journal.lead("a", 60.0)
    await journal.append(numbered_batch(lead, 1, 10))
    await journal.save_snapshot(Snapshot(10, 1, b"ten"))
    await journal.close()
    again = await ground.open()
    assert [row.index for row in await again.read(0)] == list(range(1, 11))
    assert await again.load_snapshot() == Snapshot(10, 1, b"ten")
    await refused(Unavailable, again.lead("b", 60.0))
    took = await again.lead("a", TTL_S)
    assert (took.term, took.last_index) == (2, 10)
    await again.close()
    await ground.outlive(TTL_S)
    other = await ground.open()
    third = await other.lead("b", 60.0)
    assert (third.term, third.last_index) == (3, 10)
    assert await other.append(numbered_batch(third, 11, 10)) == 20
    assert len(await other.read(0)) == 20, "the chain goes on across terms"


async def check_hundred_thousand_rows(ground: Ground) -> None:
    journal = await ground.open()
    lead = await journal.lead("a", 600.0)
    for first in range(1, 100_001, 5_000):
        views = tuple(task(f"t{n:06}", submitted_at=float(-n)) for n in range(first, first + 5_000, 10))
        await journal.append(Batch(make_rows(lead, first, 5_000), views))
    rows = await read_all(journal)
    assert [row.index for row in rows] == list(range(1, 100_001))
    assert rows[77_776] == make_rows(lead, 77_777, 1)[0]
    assert [row.index for row in await journal.read(99_990, 4)] == [99_991, 99_992, 99_993, 99_994]
    keys: list[str] = []
    while page := await journal.page("tasks", {"owner": "ann"}, "submitted_at", keys[-1] if keys else "", 1_500):
        keys += [view.key for view in page]
    assert keys == [f"t{n:06}" for n in range(99_991, 0, -10)]


CHECKS: tuple[Check, ...] = (
    check_gives_back_what_it_was_given,
    check_batch_is_all_or_nothing,
    check_one_leads_at_a_time,
    check_paused_leader_wakes_up_stale,
    check_expired_leader_goes_on_until_replaced,
    check_racing_standbys_get_one_leader,
    check_damaged_rows_are_named,
    check_missing_rows_are_named,
    check_snapshots_fall_back,
    check_forgets_only_what_a_snapshot_covers,
    check_views_follow_the_last_word,
    check_pages_are_stable,
    check_bad_questions_are_refused,
    check_outbox_is_idempotent,
    check_readers_see_whole_batches,
    check_reopened_it_goes_on,
    check_hundred_thousand_rows,
    check_copy_fills_an_empty_journal_once,
    check_copy_that_is_no_chain_is_refused,
)
