"""The journal in memory: its hooks, its frames, and that it never looks at the real world."""

import asyncio
from random import Random

import pytest

from clutch.backends.journal.memory import MemoryJournal, MemoryStore
from clutch.testing.journal_suite import make_rows, node, numbered_batch, read_all, refused, task
from clutch.wire.errors import Corrupt, DiskFull, Stale
from clutch.wire.journal import Batch, Gone, OutboxItem, Snapshot


class Watch:
    """Records when a batch passes, waits or raises as told."""

    def __init__(self, before: BaseException | None = None, after: BaseException | None = None) -> None:
        self.seen: list[tuple[str, int]] = []
        self.store: MemoryStore | None = None
        self.gate: asyncio.Event | None = None
        self._before, self._after = before, after

    async def before_commit(self, batch: Batch) -> None:
        assert self.store is not None
        self.seen.append(("before", self.store.last_index))
        if self.gate is not None:
            await self.gate.wait()
        if self._before:
            raise self._before

    async def after_commit(self, batch: Batch) -> None:
        assert self.store is not None
        self.seen.append(("after", self.store.last_index))
        if self._after:
            raise self._after


class Crash(BaseException):
    pass


def with_hook(hook: Watch) -> MemoryStore:
    hook.store = MemoryStore(lambda: 0.0, hook)
    return hook.store


async def test_the_hook_stands_on_both_sides_of_the_commit() -> None:
    hook = Watch()
    journal = MemoryJournal(with_hook(hook))
    lead = await journal.lead("a", 1.0)
    await journal.append(Batch(make_rows(lead, 1, 3)))
    assert hook.seen == [("before", 0), ("after", 3)]


async def test_a_refusal_before_the_commit_leaves_nothing() -> None:
    store = with_hook(Watch(before=DiskFull("full", object="disk")))
    journal = MemoryJournal(store)
    lead = await journal.lead("a", 1.0)
    await refused(DiskFull, journal.append(numbered_batch(lead, 1, 3)))
    assert (store.last_index, store.commits) == (0, 0)
    assert await journal.pending(9) == []


async def test_a_crash_after_the_commit_leaves_everything() -> None:
    store = with_hook(Watch(after=Crash()))
    journal = MemoryJournal(store)
    lead = await journal.lead("a", 0.0)
    with pytest.raises(Crash):
        await journal.append(numbered_batch(lead, 1, 3))
    successor = MemoryJournal(store)
    assert (await successor.lead("b", 1.0)).last_index == 3
    assert await successor.view("tasks", "counter") == task("counter", epoch=3)


async def test_a_write_delayed_past_the_next_leader_is_refused() -> None:
    """The old leader's batch is on its way to the disk while another takes over."""
    hook = Watch()
    hook.gate = asyncio.Event()
    store = with_hook(hook)
    old, new = MemoryJournal(store), MemoryJournal(store, hook=_Nothing())
    late = asyncio.create_task(old.append(numbered_batch(await old.lead("a", 0.0), 1, 3)))
    await asyncio.sleep(0)
    assert hook.seen == [("before", 0)]
    lead = await new.lead("b", 1.0)
    await new.append(numbered_batch(lead, 1, 2))
    hook.gate.set()
    await refused(Stale, late)
    assert [row.term for row in await new.read(0)] == [2, 2]


class _Nothing:
    async def before_commit(self, batch: Batch) -> None: ...

    async def after_commit(self, batch: Batch) -> None: ...


async def filled() -> MemoryStore:
    store = MemoryStore(lambda: 5.0)
    journal = MemoryJournal(store)
    lead = await journal.lead("a", 7.0)
    for first in range(1, 101, 10):
        await journal.append(numbered_batch(lead, first, 10))
    await journal.append(Batch((), (node("n1"), Gone("tasks", "t10")), (OutboxItem("x", "k", 0.0, b""),), ("o10",)))
    await journal.save_snapshot(Snapshot(50, 1, b"fifty"))
    return store


async def everything(store: MemoryStore) -> list[object]:
    journal = MemoryJournal(store)
    return [
        (store.generation, store.term, store.holder, store.expires_at, store.last_checksum),
        await read_all(journal, store.base_index),
        await journal.load_snapshot(),
        await journal.page("tasks", {}, "key", "", 999),
        await journal.page("nodes", {}, "key", "", 999),
        await journal.pending(999),
    ]


async def test_the_platter_survives_as_bytes() -> None:
    store = await filled()
    copy = MemoryStore.from_bytes(store.serialise(), lambda: 5.0)
    assert await everything(copy) == await everything(store)
    journal = MemoryJournal(store)
    await journal.lead("a", 7.0)
    await journal.forget(31)
    assert await everything(MemoryStore.from_bytes(store.serialise(), lambda: 5.0)) == await everything(store)


async def test_a_cut_anywhere_leaves_whole_batches() -> None:
    store = await filled()
    size = len(store.serialise())
    lengths = set()
    for cut in range(0, size, 37):
        torn = store.torn(cut)
        rows = await read_all(MemoryJournal(torn), torn.base_index)
        assert len(rows) % 10 == 0
        counter = await MemoryJournal(torn).view("tasks", "counter")
        assert (getattr(counter, "epoch", 0)) == len(rows)
        lengths.add(len(rows))
    assert lengths == set(range(0, 101, 10))


async def test_a_rotten_bit_in_the_middle_is_corrupt() -> None:
    data = (await filled()).serialise()
    chance = Random(1)
    for _ in range(50):
        place = chance.randrange(8, len(data) - 500)
        rotten = data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
        try:
            store = MemoryStore.from_bytes(rotten, lambda: 0.0)
        except Corrupt:
            continue
        # A rotten length swallows the rest, as a torn tail does: what is left is still whole batches.
        assert store.last_index % 10 == 0
        assert store.last_index < 100


async def test_it_never_suspends_without_a_hook() -> None:
    """The simulator counts on it: a call is one step."""
    journal = MemoryJournal(MemoryStore(lambda: 0.0))

    def step(call: object) -> object:
        try:
            call.send(None)  # type: ignore[attr-defined]
        except StopIteration as done:
            return done.value
        raise AssertionError("it suspended")

    lead = step(journal.lead("a", 1.0))
    assert step(journal.append(numbered_batch(lead, 1, 5))) == 5  # type: ignore[arg-type]
    assert len(step(journal.read(0))) == 5  # type: ignore[arg-type]
    step(journal.save_snapshot(Snapshot(5, 1, b"")))
    assert step(journal.load_snapshot()) == Snapshot(5, 1, b"")
    assert step(journal.forget(3)) == 2
    step(journal.renew(1.0))
    step(journal.resign())
