"""What every journal must do, as checks that try to break it.

A ``Ground`` is the storage under one journal as a test sees it: it opens the journal again and again, lets time pass on
the store's clock, and does real harm to what is stored. Each check takes a fresh ground and asserts. ``CHECKS`` is all
of them; a test runner runs each against each ground. Nothing here needs a particular runner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Any, Protocol

from msgspec.structs import replace

from clutch.backends.journal.base import FullJournal, Journal, Maintenance, Outbox, Views
from clutch.wire.errors import (
    BadRequest,
    BrokenInvariant,
    ClutchError,
    Conflict,
    Corrupt,
    DiskFull,
    NotFound,
    Stale,
    Unavailable,
)
from clutch.wire.journal import Batch, Chunk, Gone, Leadership, OutboxItem, Row, Snapshot
from clutch.wire.views import NodeView, TaskView

TTL_S = 0.3


class Ground(Protocol):
    """Storage for one journal. Everything it opens is closed by whoever made the ground."""

    async def open(self) -> FullJournal: ...

    async def outlive(self, ttl_s: float) -> None:
        """Let this much time pass on the store's clock."""
        ...

    async def damage_row(self, index: int) -> None:
        """Change one bit of a stored row."""
        ...

    async def lose_rows(self, first: int, last: int) -> None:
        """Remove stored rows behind the journal's back."""
        ...

    async def damage_snapshot(self, age: int) -> None:
        """Change one bit of a stored snapshot: the newest is 0, the one before it 1."""
        ...


class FullGround(Ground, Protocol):
    """Storage on a disk that is small enough to fill."""

    async def free_space(self) -> None:
        """Make room again."""
        ...


class CrashingGround(Ground, Protocol):
    """Storage whose writer can be cut off in the middle of a write."""

    async def crash_while_appending(self, batch_rows: int) -> int:
        """Append numbered batches (see ``numbered_batch``) until the power is cut; the last acknowledged index."""
        ...


Check = Callable[[Ground], Awaitable[None]]


async def refused(kind: type[ClutchError], call: Awaitable[Any]) -> ClutchError:
    """The error, which must be of this very kind and say cause and object."""
    try:
        await call
    except ClutchError as error:
        assert type(error) is kind, f"expected {kind.__name__}, got {error!r}: {error}"
        assert error.cause
        assert error.object, f"{error!r} does not say what it is about"
        return error
    raise AssertionError(f"expected {kind.__name__}, nothing was raised")


def make_rows(lead: Leadership, first: int, count: int, size: int = 32) -> tuple[Row, ...]:
    """Rows whose payload no store can compress, the same ones each time."""
    return tuple(
        Row(n, lead.term, 1_000.0 + n / 8, "test", "Happened", 1, Random(n).randbytes(size))
        for n in range(first, first + count)
    )


def task(key: str, **changes: Any) -> TaskView:
    plain = TaskView(
        key=key, kind="trial", name=key, pool="default", owner="ann", workspace="w", state="waiting", reason="",
        detail="", priority=50, epoch=0, restarts=0, slots=1, submitted_at=0.0, ended_at=0.0,
    )  # fmt: skip
    return replace(plain, **changes)


def node(key: str) -> NodeView:
    return NodeView(
        key=key, pool="default", state="ready", reason="", slots=8, slots_held=0, millicpus=64_000,
        memory_bytes=2**40, changed_at=1.5,
    )  # fmt: skip


def numbered_batch(lead: Leadership, first: int, count: int) -> Batch:
    """A batch whose parts all say its last index, so that a half-applied one shows."""
    last = first + count - 1
    rows = make_rows(lead, first, count, size=256)
    views = (task("counter", epoch=last), task(f"t{last}"))
    return Batch(rows, views, (OutboxItem(f"o{last}", "webhook", float(last), b""),))


async def read_all(journal: Journal, after: int = 0, limit: int = 10_000) -> list[Row]:
    rows: list[Row] = []
    while found := await journal.read(after, limit):
        rows += found
        after = found[-1].index
    return rows


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


async def check_views_follow_the_last_word(ground: Ground) -> None:
    journal = await ground.open()
    lead = await journal.lead("a", 60.0)
    await journal.append(Batch(make_rows(lead, 1, 1), (task("t1"), task("t1", state="running"), node("n1"))))
    assert await journal.view("tasks", "t1") == task("t1", state="running")
    assert await journal.view("nodes", "n1") == node("n1")
    assert await journal.view("tasks", "n1") is None
    await journal.append(Batch((), (Gone("tasks", "t1"), task("t1", state="back"), task("t2"), Gone("tasks", "t2"))))
    assert await journal.view("tasks", "t1") == task("t1", state="back")
    assert await journal.view("tasks", "t2") is None
    await journal.append(Batch((), (Gone("tasks", "t1"), Gone("tasks", "never"))))
    assert await journal.view("tasks", "t1") is None
    odd = task("ключ'\"; DROP TABLE tasks; --", name="🦜 %s $1 ?", priority=-(2**63), submitted_at=1e308)
    await journal.append(Batch((), (odd,)))
    assert await journal.view("tasks", odd.key) == odd
    assert await journal.page("tasks", {"name": odd.name, "priority": odd.priority}, "key", "", 5) == [odd]
    error = await refused(BadRequest, journal.view("users", "x"))
    assert "tasks" in error.next_step


async def check_pages_are_stable(ground: Ground) -> None:
    journal = await ground.open()
    lead = await journal.lead("a", 60.0)
    names = ["Zoë", "ada", "Ada", "éva", "eve", "漢", "🦜", "z", "", "a b"]
    views = [task(f"t{n:03}", owner=names[n % 10], priority=n % 3, submitted_at=float(n % 7)) for n in range(200)]
    await journal.append(Batch(make_rows(lead, 1, 1), tuple(views)))

    async def walk(where: dict[str, str | int], order_by: str, limit: int) -> list[str]:
        keys: list[str] = []
        while page := await journal.page("tasks", where, order_by, keys[-1] if keys else "", limit):
            assert len(page) <= limit
            keys += [view.key for view in page]
        return keys

    for column in ("key", "owner", "priority", "submitted_at"):
        expected = [v.key for v in sorted(views, key=lambda v: (getattr(v, column), v.key))]
        assert await walk({}, column, 7) == expected, column
        assert await walk({}, f"-{column}", 33) == expected[::-1], column
    few = [v.key for v in views if v.owner == "Ada" and v.priority == 1]
    assert await walk({"owner": "Ada", "priority": 1}, "key", 3) == few
    assert await walk({"owner": "nobody"}, "key", 3) == []

    page = await journal.page("tasks", {}, "submitted_at", "", 50)
    early = tuple(task(f"early{n}", submitted_at=-1.0) for n in range(5))
    await journal.append(Batch((), early))
    rest = await journal.page("tasks", {}, "submitted_at", page[-1].key, 1_000)
    expected = [v.key for v in sorted(views, key=lambda v: (v.submitted_at, v.key))]
    assert [v.key for v in (*page, *rest)] == expected, "rows put before the page moved it"
    await journal.append(Batch((), (Gone("tasks", page[-1].key),)))
    await refused(NotFound, journal.page("tasks", {}, "submitted_at", page[-1].key, 5))
    assert len(await journal.page("tasks", {}, "key", page[-1].key, 5)) == 5, "the key alone is place enough"


async def check_bad_questions_are_refused(ground: Ground) -> None:
    journal = await ground.open()
    questions: list[tuple[str, dict[str, Any], str, int, str]] = [
        ("tasks", {"colour": "red"}, "key", 5, "colour"),
        ("tasks", {}, "colour", 5, "colour"),
        ("tasks", {}, "--key", 5, "-key"),
        ("tasks", {}, "", 5, ""),
        ("tasks", {'owner" OR 1=1 --': "x"}, "key", 5, 'owner" OR 1=1 --'),
        ("tasks", {"priority": "high"}, "key", 5, "priority"),
        ("tasks", {"owner": 5}, "key", 5, "owner"),
        ("tasks", {"owner": "nul\0"}, "key", 5, "owner"),
        ("tasks", {"priority": 2**70}, "key", 5, "priority"),
        ("tasks", {}, "key", 0, "limit"),
        ("tasks", {}, "key", 10_001, "limit"),
        ("users", {}, "key", 5, ""),
    ]
    for table, where, order_by, limit, path in questions:
        error = await refused(BadRequest, journal.page(table, where, order_by, "", limit))
        assert error.path == path, (where, order_by, error)
    error = await refused(BadRequest, journal.page("tasks", {"colour": "red"}, "key", "", 5))
    assert "owner" in error.next_step, "known columns are listed"


async def check_outbox_is_idempotent(ground: Ground) -> None:
    journal = await ground.open()
    lead = await journal.lead("a", 60.0)

    def item(token: str, due_at: float, payload: bytes = b"") -> OutboxItem:
        return OutboxItem(token, "webhook", due_at, payload)

    await journal.append(Batch(make_rows(lead, 1, 1), (), (item("b", 2.0), item("a", 2.0), item("c", 1.0))))
    await journal.append(Batch((), (), (item("b", 2.0), item("b", 2.0))))
    assert [i.token for i in await journal.pending(10)] == ["c", "a", "b"]
    assert [i.token for i in await journal.pending(2)] == ["c", "a"]
    await journal.append(Batch((), (), (item("c", 9.0, b"again"),)))
    assert await journal.pending(10) == [item("a", 2.0), item("b", 2.0), item("c", 9.0, b"again")]
    await journal.append(Batch((), (), (item("d", 0.0),), delivered=("a", "d", "never")))
    assert [i.token for i in await journal.pending(10)] == ["b", "c"]
    await journal.append(Batch((), delivered=("a", "b", "c")))
    assert await (await ground.open()).pending(10) == []


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
    lead = await journal.lead("a", TTL_S)
    await journal.append(numbered_batch(lead, 1, 10))
    await journal.save_snapshot(Snapshot(10, 1, b"ten"))
    await journal.close()
    again = await ground.open()
    assert [row.index for row in await again.read(0)] == list(range(1, 11))
    assert await again.load_snapshot() == Snapshot(10, 1, b"ten")
    await refused(Unavailable, again.lead("b", TTL_S))
    await ground.outlive(TTL_S)
    took = await again.lead("b", TTL_S)
    assert (took.term, took.last_index) == (2, 10)
    assert await again.append(numbered_batch(took, 11, 10)) == 20
    assert len(await again.read(0)) == 20, "the chain goes on across terms"


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
