"""The writer's bounds and its behaviour when stores, callers or disks misbehave."""

import asyncio
import resource
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clutch.master.output.lane import OutputLane
from clutch.master.output.memory import MemoryOutputStore
from clutch.master.output.opening import beside, open_output, open_store
from clutch.master.output.records import StreamChange
from clutch.master.output.sqlite import SqliteOutputStore
from clutch.master.output.writing import LaneSettings
from clutch.testing.output_suite import FENCE, MEMBER, NOW, lane_on, piece, raw, refused, texts
from clutch.wire.errors import BadRequest, Conflict, Corrupt, DiskFull, TimedOut, TooLarge, TooNew, Unavailable
from clutch.wire.ids import MemberId, TaskId
from clutch.wire.link import OutputDone, OutputPiece
from clutch.wire.output import OutputQuery


class GatedStore(MemoryOutputStore):
    """Commits only when let; counts commits, and the bytes that were asked for at once."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.commits = 0

    async def write(self, changes: Sequence[StreamChange]) -> list[int]:
        await self.gate.wait()
        self.commits += 1
        return await super().write(changes)


class RefusingStore(MemoryOutputStore):
    """Fails when a commit touches this rank, and whenever it is told to."""

    rank = -1
    error: Exception | None = None
    after = False

    async def write(self, changes: Sequence[StreamChange]) -> list[int]:
        if any(change.state.member.rank == self.rank for change in changes):
            raise Corrupt("this rank's rows are unreadable", object="store")
        if self.error is not None:
            error, self.error = self.error, None
            if self.after:
                await super().write(changes)
            raise error
        return await super().write(changes)


async def test_many_calls_become_few_commits() -> None:
    store = GatedStore()
    async with lane_on(store) as lane:
        calls = [asyncio.create_task(lane.write([piece(0, b"x\n", rank=rank)])) for rank in range(50)]
        await asyncio.sleep(0)
        store.gate.set()
        await asyncio.gather(*calls)
    assert store.commits <= 2


async def test_who_comes_too_much_waits_for_room() -> None:
    store = GatedStore()
    lane = OutputLane(
        store, lambda task: False, lambda: NOW, writing=LaneSettings(waiting_max_bytes=100_000, commit_max_bytes=50_000)
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(lane.run())
        calls = [group.create_task(lane.write([piece(0, bytes(30_000), rank=rank)])) for rank in range(10)]
        for _ in range(20):
            await asyncio.sleep(0)
        assert lane._writer._line.waiting_size <= 100_000, "the line is bounded"
        store.gate.set()
        assert [one[0].stdout for one in await asyncio.gather(*calls)] == [30_000] * 10
        await refused(TooLarge, lane.write([piece(0, bytes(100_001))]))
        running.cancel()
    await lane.close_reader()


async def test_a_caller_that_leaves_harms_nobody() -> None:
    store = GatedStore()
    async with lane_on(store) as lane:
        first = asyncio.create_task(lane.write([piece(0, b"one\n")]))
        await asyncio.sleep(0)
        second = asyncio.create_task(lane.write([piece(0, b"two\n", rank=1)]))
        await asyncio.sleep(0)
        first.cancel()
        second.cancel()
        store.gate.set()
        (reached,) = await lane.write([piece(0, b"three\n", rank=2)])
        assert reached.stdout == 6
        assert (await lane.write([piece(0, b"one\n")]))[0].stdout == 4


async def test_one_streams_trouble_is_not_everybodys() -> None:
    store = RefusingStore()
    store.rank = 3
    async with lane_on(store) as lane:
        calls = [asyncio.create_task(lane.write([piece(0, b"x\n", rank=rank)])) for rank in range(6)]
        done = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one).__name__ for one in done].count("Corrupt") == 1
    assert isinstance(done[3], Corrupt)


@pytest.mark.parametrize("after", [False, True])
async def test_an_unknown_outcome_is_looked_up(after: bool) -> None:
    """The connection breaks while committing: whether it was written or not, nothing is lost or doubled."""
    store = RefusingStore()
    async with lane_on(store) as lane:
        await lane.write([piece(0, b"one\n")])
        store.error, store.after = Unavailable("the connection broke", object="store"), after
        await refused(Unavailable, lane.write([piece(4, b"two\n")]))
        assert (await lane.opened(MEMBER, FENCE)).stdout == (8 if after else 4)
        assert (await lane.write([piece(4, b"two\nthree\n")]))[0].stdout == 14
        assert await raw(lane) == b"one\ntwo\nthree\n"
        store.error, store.after = DiskFull("full", object="store"), False
        await refused(DiskFull, lane.write([piece(14, b"x")]))
        assert (await lane.write([piece(14, b"x")]))[0].stdout == 15, "the lane goes on"


async def test_a_store_that_hangs_is_not_waited_for_for_ever() -> None:
    lane = OutputLane(GatedStore(), lambda task: False, lambda: NOW, writing=LaneSettings(write_timeout_s=0.05))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(lane.run())
        await refused(TimedOut, lane.write([piece(0, b"one\n")]))
        running.cancel()
    await lane.close_reader()


async def test_a_lane_that_has_ended_says_so() -> None:
    store = GatedStore()
    async with lane_on(store) as lane:
        call = asyncio.create_task(lane.write([piece(0, b"one\n")]))
        await asyncio.sleep(0)
    await refused(Unavailable, call)
    await refused(Unavailable, lane.write([piece(0, b"one\n")]))


async def test_more_streams_than_are_remembered() -> None:
    store = MemoryOutputStore()
    lane = OutputLane(store, lambda task: False, lambda: NOW, writing=LaneSettings(known_max=10))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(lane.run())
        for turn in range(3):
            for rank in range(20):
                assert (await lane.write([piece(2 * turn, b"x\n", rank=rank)]))[0].stdout == 2 * turn + 2
        calls = [lane.write([piece(6, b"x\n", rank=rank)]) for rank in range(20)]
        assert all(one[0].stdout == 8 for one in await asyncio.gather(*calls))
        running.cancel()
    await lane.close_reader()


@pytest.mark.parametrize(
    "member", [MemberId(TaskId("t"), "r", -1), MemberId(TaskId("t"), "r", 2**70), MemberId(TaskId("a\0b"), "r", 0)]
)
async def test_names_that_no_store_keeps(member: MemberId) -> None:
    async with lane_on(MemoryOutputStore()) as lane:
        await refused(BadRequest, lane.write([OutputPiece(member, FENCE, "stdout", 0, NOW, b"x")]))
        await refused(BadRequest, lane.opened(member, FENCE))


async def test_times_that_are_none() -> None:
    async with lane_on(MemoryOutputStore()) as lane:
        times = [float("nan"), float("inf"), -5.0, 1e300, NOW]
        await lane.write([piece(2 * n, b"x\n", at) for n, at in enumerate(times)])
        lines = [line async for line in lane.lines(OutputQuery(task=MEMBER.task))]
        assert [line.at for line in lines] == [0.0, 0.0, 0.0, 0.0, NOW]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_pieces_in_any_order_and_any_number_of_times(seed: int) -> None:
    """What an agent may send after any number of reconnects: the bytes are there once and nothing else is."""
    chance = Random(seed)
    data = chance.randbytes(chance.randint(1, 3_000))

    async def check() -> None:
        async with lane_on(MemoryOutputStore()) as lane:
            committed = 0
            while committed < len(data):
                start = max(committed - chance.randint(-20, 200), 0)
                sent = data[start : start + chance.randint(1, 400)]
                try:
                    (reached,) = await lane.write([piece(start, sent)])
                except Conflict:
                    assert start > committed
                    continue
                assert start <= committed
                assert reached.stdout == max(committed, start + len(sent))
                committed = reached.stdout
            await lane.write([OutputDone(MEMBER, FENCE, len(data), 0)])
            assert await raw(lane) == data

    asyncio.run(check())


async def test_a_store_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "output.db"
    await (await SqliteOutputStore.open(path)).close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE output_schema SET version = 99")
    connection.close()
    await refused(TooNew, SqliteOutputStore.open(path))
    other = tmp_path / "other.db"
    connection = sqlite3.connect(other, isolation_level=None)
    connection.execute("CREATE TABLE something (x)")
    connection.close()
    await refused(BadRequest, SqliteOutputStore.open(other))
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"this is not a database, " * 100)
    await refused(Corrupt, SqliteOutputStore.open(garbage))


async def test_open_output_runs_a_lane_beside_the_journal(tmp_path: Path) -> None:
    address = beside(str(tmp_path / "journal.db"), "output")
    assert Path(address).name == "output.db"
    assert beside(f"sqlite:///{tmp_path}/house.db", "output") == str(tmp_path / "house.output.db")
    assert beside("postgresql://h/d", "output") == "postgresql://h/d"
    assert beside("memory:", "output") == "memory:"
    async with open_output(address, lambda task: False) as lane:
        await lane.write([piece(0, b"kept\n")])
    async with open_output(f"sqlite:///{address}", lambda task: False) as lane:
        assert await texts(lane) == ["kept"]
    assert isinstance(await open_store("memory:"), MemoryOutputStore)


@pytest.mark.slow
async def test_a_gigabyte_does_not_grow_the_process(tmp_path: Path) -> None:
    block = b"".join(b"2026-11-15 INFO step %07d loss 0.123456\n" % n for n in range(25_000))
    async with open_output(str(tmp_path / "output.db"), lambda task: False) as lane:
        offset, early = 0, 0
        while offset < 1_000_000_000:
            (reached,) = await lane.write([piece(offset, block)])
            offset = reached.stdout
            if not early and offset > 100_000_000:
                early = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - early
        assert grown_kb < 30_000, f"{grown_kb} kB more after 900 MB more"
        lines = [line.text async for line in lane.lines(OutputQuery(task=MEMBER.task, tail=1))]
        assert lines == ["2026-11-15 INFO step 0024999 loss 0.123456"]
