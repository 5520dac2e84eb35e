"""Accounting over a real store: told, cut off, restarted, overtaken; and always the same sums as the state itself."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from clutch.backends.journal.memory import MemoryJournal
from clutch.core.fold import apply
from clutch.core.member import PRESENT
from clutch.core.recorded import Recorded, to_row
from clutch.core.state import State
from clutch.master.access.accumulator import Account, Accumulator
from clutch.master.access.database import SqliteDatabase
from clutch.master.access.usage import Usage
from clutch.master.access.usage_store import UsageFilter, UsageRows
from clutch.testing.access_suite import refused
from clutch.testing.sim.cluster import Cluster
from clutch.testing.sim.plan import make_plan
from clutch.testing.sim.run import live
from clutch.testing.stage import POOL, Stage
from clutch.wire import events as e
from clutch.wire.errors import NotFound, Stale, Unavailable
from clutch.wire.ids import MemberId, NodeId, TaskId
from clutch.wire.journal import Row
from clutch.wire.link import NodeUse, SlotUse
from clutch.wire.messages import Exit
from clutch.wire.resources import Resources
from clutch.wire.specs import Members, Quota, RoleSpec, TaskSpec


def _held(state: State) -> dict[Account, int]:
    """The slots that are held according to the state, by whom they are accounted to."""
    found: dict[Account, int] = {}
    holders = [(m.member.task, m.placement) for m in state.members.values() if m.state in PRESENT]
    holders += [(lease.task, lease.placement) for lease in state.leases.values()]
    for task, placement in holders:
        if placement is not None and placement.slots:
            spec = state.tasks[task].spec
            account = Account(spec.owner, spec.workspace, spec.project, spec.pool)
            found[account] = found.get(account, 0) + len(placement.slots)
    return found


@pytest.mark.parametrize("seed", [3, 11, 27])
def test_the_accounts_hold_what_the_state_holds_after_every_fact(seed: int) -> None:
    """Over a day with crashes, lost nodes, preemption, cells and take-overs."""
    cluster = Cluster(make_plan(seed))
    try:
        live(cluster)
    finally:
        cluster.close()
    state, accounts = State(cluster.truth.state.controllers), Accumulator()
    busy = 0
    for recorded in cluster.truth.history:
        apply(state, recorded)
        accounts.take(recorded)
        held = _held(state)
        assert accounts.held == held, f"after {recorded}"
        busy += bool(held)
    assert busy > 50 and not accounts.held and not accounts.tasks


class History(MemoryJournal):
    """The rows of a stage, as a journal has them."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.forgotten = 0
        self.reads = 0
        self.was_read = asyncio.Event()

    async def read(self, after: int, limit: int = 10_000) -> list[Row]:
        self.reads += 1
        self.was_read.set()
        if after < self.forgotten:
            raise NotFound("forgotten", object="journal")
        return [to_row(recorded) for recorded in self.stage.history if recorded.index > after][:limit]


class RefusingRows(UsageRows):
    """A store that can be away, or break the connection just after it has committed."""

    away = False
    breaks = False
    saved: asyncio.Event | None = None

    async def save(self, *given: object) -> None:
        if self.away:
            raise Unavailable("away", object="store")
        await super().save(*given)  # type: ignore[arg-type]
        if self.saved is not None:
            self.saved.set()
        if self.breaks:
            raise Unavailable("the connection broke", object="store")


class Bureau:
    """A stage, its journal, and who accounts for it."""

    def __init__(self, database: SqliteDatabase) -> None:
        self.stage = Stage()
        self.stage.add_node("n", 4)
        self.journal = History(self.stage)
        self.rows = RefusingRows(database)
        self.uses: list[NodeUse] = []
        self.usage = self.start()

    def start(self) -> Usage:
        """A master that has taken over."""
        return Usage(self.rows, self.journal, self, self.state, lambda: self.uses, flush_s=0.01)

    def now(self) -> float:
        return self.stage.now

    async def state(self) -> State:
        return self.stage.state

    def submit(self, task: str, slots: int) -> None:
        role = RoleSpec("main", Members(1, Resources(slots=slots)))
        spec = TaskSpec(kind="command", name=task, pool=POOL, roles=(role,), owner="ada", project="maps")
        self.stage.do(e.Submit(task=TaskId(task), spec=spec))

    def end(self, task: str) -> None:
        self.stage.exit(MemberId(TaskId(task), "main", 0), Exit(0))

    async def held(self) -> float:
        rows = await self.rows.page(UsageFilter(), "", 100)
        return sum(row.slot_seconds_held for row in rows)


@pytest.fixture
async def bureau(tmp_path: Path) -> AsyncIterator[Bureau]:
    database = await SqliteDatabase.open(tmp_path / "access.db")
    yield Bureau(database)
    await database.close()


def _since(stage: Stage, index: int) -> list[Recorded]:
    return [recorded for recorded in stage.history if recorded.index > index]


async def test_what_is_heard_is_accounted_without_reading_again(bureau: Bureau) -> None:
    await bureau.usage.flush()
    reads = bureau.journal.reads
    bureau.submit("t", 3)
    bureau.usage.hear(_since(bureau.stage, bureau.usage.index))
    bureau.stage.now += 100
    await bureau.usage.flush()
    assert await bureau.held() == 300.0 and bureau.journal.reads == reads
    (row,) = await bureau.rows.page(UsageFilter(), "", 10)
    assert (row.user, row.workspace, row.project, row.pool, row.tasks) == ("ada", "default", "maps", POOL, 1)


async def test_a_gap_is_read_from_the_journal(bureau: Bureau) -> None:
    await bureau.usage.flush()
    bureau.submit("t", 2)
    bureau.stage.now += 50
    missed = bureau.stage.state.index
    bureau.end("t")
    bureau.usage.hear(_since(bureau.stage, missed))  # the grant was never heard
    await bureau.usage.flush()
    assert await bureau.held() == 100.0


async def test_a_restart_neither_loses_nor_doubles(bureau: Bureau) -> None:
    bureau.submit("t", 4)
    bureau.stage.now += 10
    await bureau.usage.flush()
    bureau.stage.now += 10  # nobody accounts
    bureau.end("t")
    bureau.stage.now += 1000
    for _ in range(3):
        await bureau.start().flush()
    assert await bureau.held() == 80.0
    (row,) = await bureau.rows.page(UsageFilter(), "", 10)
    assert row.tasks == 1


async def test_a_store_that_was_away_gets_it_later(bureau: Bureau) -> None:
    await bureau.usage.flush()
    bureau.rows.away = True
    bureau.submit("t", 1)
    bureau.stage.now += 10
    for _ in range(3):
        await refused(Unavailable, bureau.usage.flush())
        bureau.usage.hear(_since(bureau.stage, bureau.usage.index))
    bureau.rows.away = False
    bureau.stage.now += 10
    await bureau.usage.flush()
    assert await bureau.held() == 20.0


async def test_a_commit_nobody_heard_of_is_not_doubled(bureau: Bureau) -> None:
    bureau.submit("t", 1)
    bureau.stage.now += 10
    bureau.rows.breaks = True
    await refused(Unavailable, bureau.usage.flush())
    bureau.rows.breaks = False
    await refused(Stale, bureau.usage.flush())
    bureau.stage.now += 5
    await bureau.usage.flush()
    assert await bureau.held() == 15.0


async def test_of_two_writers_one_gives_way(bureau: Bureau) -> None:
    bureau.submit("t", 1)
    await bureau.usage.flush()
    other = bureau.start()
    bureau.stage.now += 10
    await other.flush()
    await refused(Stale, bureau.usage.flush())
    bureau.stage.now += 10
    await bureau.usage.flush()
    await refused(Stale, other.flush())
    assert await bureau.held() == 20.0


async def test_forgotten_rows_are_made_up_from_what_lives(bureau: Bureau) -> None:
    bureau.submit("t", 2)
    bureau.stage.now += 50
    bureau.stage.do(e.SetQuota(quota=Quota("user:ada", 9)))  # the last thing that is known to have happened
    bureau.stage.now += 50
    bureau.journal.forgotten = bureau.stage.state.index
    await bureau.usage.flush()
    bureau.stage.now += 10
    await bureau.usage.flush()
    bureau.end("t")
    bureau.journal.forgotten = 0
    bureau.usage.hear(_since(bureau.stage, bureau.usage.index))
    bureau.stage.now += 10
    await bureau.usage.flush()
    (row,) = await bureau.rows.page(UsageFilter(), "", 10)
    assert (row.slot_seconds_held, row.tasks) == (2 * 60.0, 1), "from there on, not from its start"


async def test_what_agents_measure_is_used(bureau: Bureau) -> None:
    bureau.submit("t", 2)
    busy = (SlotUse(0, 50), SlotUse(1, 100), SlotUse(2, 100))
    for at in (0.0, 10.0, 10.0):
        bureau.uses = [NodeUse(NodeId("n"), at, slots=busy)]
        await bureau.usage.flush()
        bureau.stage.now += 10
    (row,) = await bureau.rows.page(UsageFilter(), "", 10)
    assert row.slot_seconds_used == 15.0


async def test_it_runs_while_this_master_leads(bureau: Bureau) -> None:
    serving = asyncio.Event()
    running = asyncio.create_task(bureau.usage.run(serving))
    await asyncio.sleep(0)
    assert bureau.journal.reads == 0
    bureau.submit("t", 1)
    bureau.rows.away = True
    serving.set()
    async with asyncio.timeout(20):
        await bureau.journal.was_read.wait()
        bureau.stage.now += 30
        bureau.rows.saved = asyncio.Event()
        bureau.rows.away = False
        await bureau.rows.saved.wait()
    assert await bureau.held() == 30.0
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
