"""How long a master takes to start: a snapshot, 1,000,000 older rows it must not touch, 50,000 newer ones to fold.

    python benchmarks/start.py [--older 1000000] [--newer 50000] [--postgres URL]

The rows are real facts of a simulated churn of tasks; the fold is the production one. Beside it: the time to only read
those rows, so the ratio says what folding costs on top.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

from clutch.backends.journal.opening import open_journal
from clutch.core.brain import decide
from clutch.core.decisions.scheduling import schedule
from clutch.core.fold import apply
from clutch.core.freezing import freeze
from clutch.core.recorded import Recorded, to_row
from clutch.core.state import State, Touched
from clutch.master.loop import restore
from clutch.wire import events as e
from clutch.wire.facts import Fact
from clutch.wire.ids import Fence, MemberId, NodeId, PoolName, TaskId
from clutch.wire.journal import Batch, Row
from clutch.wire.messages import Exit, MemberStatus, ObservedMember, Report
from clutch.wire.resources import Capacity, Resources, Slot
from clutch.wire.specs import Members, PoolSpec, RoleSpec, TaskSpec

POOL = PoolName("main")
NODES, SLOTS, LIVE = 50, 8, 2_000


class Churn:
    """Tasks that come, run and go on a small cluster: the source of real facts."""

    def __init__(self) -> None:
        self.state = State({})
        self.rows: list[Row] = []
        self.rng = Random(7)
        self.at = 1.0
        self.reports = 0
        self._do(e.BeginTerm(cause="bench", generation=1, term=1))
        self._do(e.PutPool(cause="bench", pool=PoolSpec(name=POOL)))
        slots = tuple(Slot(index, "cuda") for index in range(SLOTS))
        self.capacity = Capacity(slots=slots, millicpus=64_000, memory_bytes=2**40)
        for number in range(NODES):
            self._report(NodeId(f"n{number}"), ())
        self._numbers = iter(range(10**9))

    def _record(self, facts: Iterator[Fact]) -> None:
        for fact in facts:
            recorded = Recorded(self.state.index + 1, 1, self.at, "bench", fact)
            apply(self.state, recorded)
            self.rows.append(to_row(recorded))

    def _do(self, event: e.Event) -> None:
        self.at += 0.001
        self._record(decide(self.state, event, self.at, self.rng))

    def _report(self, node: NodeId, members: tuple[ObservedMember, ...]) -> None:
        self.reports += 1
        report = Report(
            node=node,
            pool=POOL,
            session="s",
            sequence=self.reports,
            generation=1,
            term=1,
            greeting=1,
            wanted_sequence=self.state.index,
            capacity=self.capacity,
            members=members,
        )
        self._do(e.Reported(cause=f"agent:{node}", report=report))

    def turn(self) -> None:
        """Fill the queue, place what fits, run it and let it end."""
        role = RoleSpec(name="main", shape=Members(count=1, each=Resources(slots=1, millicpus=500)))
        while len(self.state.tasks) < LIVE:
            number = next(self._numbers)
            spec = TaskSpec(kind="trial", name=f"t{number}", pool=POOL, roles=(role,), owner=f"u{number % 9}")
            self._do(e.Submit(cause="bench", task=TaskId(f"t{number}"), spec=spec, key=f"k{number}"))
        self._record(schedule(self.state, [POOL], self.at, {}))
        self.state.touched = Touched()
        for node in list(self.state.nodes):
            here = [self.state.members[m] for m in self.state.members_on.get(node, {})]
            running = tuple(_observed(m.member, m.fence(1), MemberStatus.RUNNING) for m in here)
            self._report(node, running)
            self._report(node, tuple(_observed(m.member, m.fence(1), MemberStatus.EXITED) for m in here))


def _observed(member: MemberId, fence: Fence, status: MemberStatus) -> ObservedMember:
    return ObservedMember(member, fence, status, Exit(0) if status is MemberStatus.EXITED else None)


async def measure(url: str, older: int, newer: int) -> None:
    churn = Churn()
    journal = await open_journal(url)
    await journal.lead("bench", 600.0)
    snapshot = None
    written = 0
    while written < older + newer:
        churn.turn()
        rows, churn.rows = churn.rows, []
        for first in range(0, len(rows), 2_000):
            await journal.append(Batch(rows=tuple(rows[first : first + 2_000])))
        written += len(rows)
        if snapshot is None and written >= older:
            snapshot = freeze(churn.state)
            await journal.save_snapshot(snapshot)
    assert snapshot is not None
    await journal.close()

    journal = await open_journal(url)
    began = time.perf_counter()
    found = await journal.load_snapshot()
    index = found.index if found else 0
    count = 0
    while rows_read := await journal.read(index, 10_000):
        count += len(rows_read)
        index = rows_read[-1].index
    reading = time.perf_counter() - began
    began = time.perf_counter()
    state = await restore(journal, {})
    starting = time.perf_counter() - began
    assert state.index == churn.state.index and freeze(state).payload == freeze(churn.state).payload
    await journal.close()
    verdict = "within the bar of 2 s" if starting < 2 else "OVER the bar of 2 s"
    print(f"{url.partition(':')[0]}: {written - count:,} older rows, {count:,} newer, {len(state.tasks):,} live tasks")
    print(f"  start {starting:.2f} s ({verdict}); of that reading {reading:.2f} s, ratio {starting / reading:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--older", type=int, default=1_000_000)
    parser.add_argument("--newer", type=int, default=50_000)
    parser.add_argument("--postgres", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.sqlite"
        asyncio.run(measure(f"sqlite:///{path}", options.older, options.newer))
    if options.postgres:
        asyncio.run(measure(options.postgres, options.older, options.newer))


if __name__ == "__main__":
    main()
