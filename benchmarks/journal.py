"""How fast the journal appends and starts, beside what the same disk and server can do at best.

    python benchmarks/journal.py [--seconds 3] [--older 1000000] [--newer 50000]

Events per second are durable: every batch has been committed and synced before the next begins. A tenth of the events
also change a view. The bare limits are measured in the same run: a loop of write and fdatasync of as many bytes, and
the same rows given to the bare driver (executemany, COPY) with a commit per batch.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import asyncpg

from clutch.backends.journal.base import FullJournal
from clutch.backends.journal.opening import open_journal
from clutch.testing.journal_ground import task
from clutch.testing.postgres import any_server, fresh_database
from clutch.wire.journal import Batch, Row, Snapshot

PAYLOAD = os.urandom(160)
LIVE_TASKS = 5_000
SNAPSHOT_BYTES = 20_000_000
BARS = {"events/s": 20_000, "start s": 2.0}


def batches(term: int, first: int, size: int) -> Iterator[Batch]:
    while True:
        rows = tuple(
            Row(n, term, 1.7e9 + n, "agent:n3", "MemberStarted", 1, PAYLOAD) for n in range(first, first + size)
        )
        views = tuple(task(f"t{n % LIVE_TASKS}", epoch=n, state="running") for n in range(first, first + size, 10))
        yield Batch(rows, views)
        first += size


def paced(seconds: float, size: int, once: Callable[[], None]) -> float:
    """Events per second of a plain call that makes one batch durable."""
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        once()
        count += size
    return count / (time.perf_counter() - began)


async def paced_async(seconds: float, size: int, once: Callable[[], Awaitable[object]]) -> float:
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        await once()
        count += size
    return count / (time.perf_counter() - began)


def bare_sync(folder: Path, seconds: float, size: int) -> float:
    block = PAYLOAD * size
    file = os.open(folder / "bare", os.O_CREAT | os.O_WRONLY)

    def once() -> None:
        os.write(file, block)
        os.fdatasync(file)

    try:
        return paced(seconds, size, once)
    finally:
        os.close(file)


def bare_sqlite(folder: Path, seconds: float, size: int) -> float:
    connection = sqlite3.connect(folder / f"bare{size}.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b INT, c REAL, d TEXT, e TEXT, f INT, g BLOB, h INT)")
    first = 1

    def once() -> None:
        nonlocal first
        rows = [(n, 1, 1.0, "agent:n3", "MemberStarted", 1, PAYLOAD, n) for n in range(first, first + size)]
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        connection.execute("COMMIT")
        first += size

    try:
        return paced(seconds, size, once)
    finally:
        connection.close()


async def bare_postgres(address: str, seconds: float, size: int) -> float:
    connection = await asyncpg.connect(address)
    await connection.execute(
        "CREATE TABLE bare (a bigint PRIMARY KEY, b bigint, c float8, d text, e text, f bigint, g bytea, h bigint)"
    )
    first = 1

    async def once() -> None:
        nonlocal first
        rows = [(n, 1, 1.0, "agent:n3", "MemberStarted", 1, PAYLOAD, n) for n in range(first, first + size)]
        await connection.copy_records_to_table("bare", records=rows)
        first += size

    try:
        return await paced_async(seconds, size, once)
    finally:
        await connection.execute("DROP TABLE bare")
        await connection.close()


async def appends(journal: FullJournal, seconds: float, size: int) -> float:
    lead = await journal.lead("benchmark", 3_600.0)
    supply = batches(lead.term, lead.last_index + 1, size)
    return await paced_async(seconds, size, lambda: journal.append(next(supply)))


async def started(address: str, older: int, newer: int) -> tuple[float, float]:
    """Seconds to open the journal, and to load the snapshot and read what is behind it, checked."""
    journal = await open_journal(address)
    lead = await journal.lead("benchmark", 3_600.0)
    missing = older - lead.last_index
    for batch in batches(lead.term, lead.last_index + 1, 5_000):
        if missing <= 0:
            break
        missing -= await journal.append(batch) and 5_000
    last = (await journal.lead("benchmark", 3_600.0)).last_index
    await journal.save_snapshot(Snapshot(last, 1, os.urandom(SNAPSHOT_BYTES)))
    lead = await journal.lead("benchmark", 3_600.0)
    supply = batches(lead.term, last + 1, 1_000)
    for _ in range(newer // 1_000):
        await journal.append(next(supply))
    await journal.close()

    began = time.perf_counter()
    journal = await open_journal(address)
    opened = time.perf_counter() - began
    began = time.perf_counter()
    snapshot = await journal.load_snapshot()
    assert snapshot is not None
    after, count = snapshot.index, 0
    while rows := await journal.read(after):
        after, count = rows[-1].index, count + len(rows)
    took = time.perf_counter() - began
    assert count == newer // 1_000 * 1_000, count
    await journal.close()
    return opened, took


def verdict(value: float, bar: str) -> str:
    good = value >= BARS[bar] if bar == "events/s" else value < BARS[bar]
    return "meets the bar" if good else "MISSES THE BAR"


async def measure(kind: str, address: str, folder: Path, args: argparse.Namespace) -> None:
    print(f"\n{kind}")
    for size in (100, 500):
        journal = await open_journal(address)
        ours = await appends(journal, args.seconds, size)
        await journal.close()
        disk = bare_sync(folder, 1.0, size)
        if kind == "sqlite":
            driver = bare_sqlite(folder, 1.0, size)
        else:
            driver = await bare_postgres(address, 1.0, size)
        print(
            f"  batches of {size}: {ours:>9,.0f} events/s ({verdict(ours, 'events/s')}); "
            f"{ours / driver:.2f} of the bare driver's {driver:,.0f}, {ours / disk:.2f} of bare fdatasync's {disk:,.0f}"
        )
    opened, took = await started(address, args.older, args.newer)
    print(
        f"  start behind a snapshot of {SNAPSHOT_BYTES / 1e6:.0f} MB, {args.older:,} older rows, {args.newer:,} newer: "
        f"open {opened:.2f} s, snapshot and checked rows {took:.2f} s ({verdict(opened + took, 'start s')})"
    )


async def main(args: argparse.Namespace, server: str) -> None:
    with tempfile.TemporaryDirectory(prefix="clutch-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        await measure("sqlite", f"sqlite:///{folder}/journal.db", folder, args)
        async with fresh_database(server, "clutch_benchmark") as address:
            await measure("postgres", address, folder, args)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--older", type=int, default=1_000_000)
    parser.add_argument("--newer", type=int, default=50_000)
    with any_server() as found:
        asyncio.run(main(parser.parse_args(), found))
