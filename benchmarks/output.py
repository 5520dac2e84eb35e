"""How fast output becomes durable and is read, beside a plain file that is synced, on the same disk in the same run.

    python benchmarks/output.py [--megabytes 1000] [--store sqlite postgres] [--pieces 64000]

Four connections print at once. A line is what a training script logs, about 70 bytes. Every write is acknowledged after
its commit; the bare limit writes the same bytes to a file and calls fdatasync as often. Memory is what is resident
above what was before. Then the last 100 lines, many lines, a text that is not there, and a regular expression; and how
late the event loop comes meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from clutch.master.output.lane import OutputLane
from clutch.master.output.opening import open_output
from clutch.testing.postgres import any_server, fresh_database
from clutch.wire.ids import Fence, MemberId, TaskId
from clutch.wire.link import OutputDone, OutputPiece
from clutch.wire.output import OutputQuery

TASK = TaskId("benchmark")
FENCE = Fence(1, 1, 1)
MEMBERS = [MemberId(TASK, "main", rank) for rank in range(4)]
WRITE_BYTES = 2**20
BARS = {"lines/s": 50_000, "tail ms": 50.0}


def lines(first: int, size: int) -> tuple[bytes, int]:
    """About so many bytes of lines that differ, and their number."""
    found: list[bytes] = []
    total, n = 0, first
    while total < size:
        loss = (n * 2_654_435_761 % 2**32) / 2**32
        found.append(
            b"2026-11-15 11:%02d:%02d,%03d INFO trainer step %d loss %.6f\n" % (n // 60 % 60, n % 60, n % 1000, n, loss)
        )
        total += len(found[-1])
        n += 1
    return b"".join(found), len(found)


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


async def watch(seen: list[tuple[float, float]]) -> None:
    """Resident memory now and then, and how late the event loop comes back from a nap of 5 ms."""
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        await asyncio.sleep(0.005)
        seen.append((resident_mb(), 1e3 * (loop.time() - began - 0.005)))


def bare(folder: Path, total: int) -> float:
    """MB/s of a plain file, synced after each write."""
    block, _ = lines(0, WRITE_BYTES)
    file = os.open(folder / "bare", os.O_CREAT | os.O_WRONLY)
    began, done = time.perf_counter(), 0
    while done < min(total, 200_000_000):
        os.write(file, block)
        os.fdatasync(file)
        done += len(block)
    os.close(file)
    return done / (time.perf_counter() - began) / 1e6


async def print_lines(lane: OutputLane, member: MemberId, total: int, piece_bytes: int) -> tuple[int, int]:
    """Bytes and lines that one member printed; the same few megabytes again and again, cut into pieces."""
    blocks = [lines(member.rank * 10**6 + n * 10**5, WRITE_BYTES) for n in range(4)]
    offset, count, turn = 0, 0, 0
    while offset < total:
        block, number = blocks[turn % len(blocks)]
        starts = range(0, len(block), piece_bytes)
        now = time.time()
        frames = [OutputPiece(member, FENCE, "stdout", offset + s, now, block[s : s + piece_bytes]) for s in starts]
        (reached,) = await lane.write(frames)
        offset, count, turn = reached.stdout, count + number, turn + 1
    await lane.write([OutputDone(member, FENCE, offset, 0)])
    return offset, count


async def measure(lane: OutputLane, total: int, piece_bytes: int, bare_mb: float) -> None:
    before, began = resident_mb(), time.perf_counter()
    seen: list[tuple[float, float]] = []
    watching = asyncio.create_task(watch(seen))
    printed = await asyncio.gather(*(print_lines(lane, member, total // 4, piece_bytes) for member in MEMBERS))
    took = time.perf_counter() - began
    early = max(mb for mb, _ in seen[: len(seen) // 10 + 1])
    size, count = sum(one[0] for one in printed), sum(one[1] for one in printed)
    print(f"  write   {size / took / 1e6:8.1f} MB/s {count / took:12,.0f} lines/s   (bar {BARS['lines/s']:,})")
    print(f"          {size / took / 1e6 / bare_mb:8.2f} of a plain file synced as often ({bare_mb:.0f} MB/s)")
    peak = max(mb for mb, _ in seen)
    print(f"  memory  {peak - before:8.0f} MB above the start, {peak - early:.0f} MB above that of the first tenth")
    for words, query in (
        ("tail 100", OutputQuery(task=TASK, tail=100)),
        ("tail 100 of a rank", OutputQuery(task=TASK, tail=100, ranks=(2,))),
    ):
        times = []
        for _ in range(5):
            began = time.perf_counter()
            found = [line async for line in lane.lines(query)]
            times.append(1e3 * (time.perf_counter() - began))
        assert len(found) == 100
        print(f"  {words:20} {sorted(times)[2]:6.1f} ms median, {max(times):.1f} worst   (bar {BARS['tail ms']:.0f})")
    seen.clear()
    for words, query in (("read 200,000 lines", OutputQuery(task=TASK, head=200_000, limit=10_000)),):
        began = time.perf_counter()
        count = len([None async for _ in lane.lines(query)])
        print(f"  {words:22} {count / (time.perf_counter() - began):8,.0f} lines/s")
    for words, query in (
        ("search text", OutputQuery(task=TASK, text="no such text")),
        ("search text, any case", OutputQuery(task=TASK, text="No Such Text", ignore_case=True)),
        ("search regex", OutputQuery(task=TASK, regex=r"loss 7\.\d+")),
    ):
        began = time.perf_counter()
        assert not [line async for line in lane.lines(query)]
        print(f"  {words:22} {size / (time.perf_counter() - began) / 1e6:8.1f} MB/s")
    watching.cancel()
    late = sorted(ms for _, ms in seen)
    print(f"  the loop, meanwhile    {late[len(late) // 2]:.1f} ms late in the middle, {late[-1]:.1f} ms at worst")


@asynccontextmanager
async def address_of(store: str, folder: Path) -> AsyncIterator[str]:
    if store == "sqlite":
        yield str(folder / "output.db")
        return
    with any_server() as server:
        async with fresh_database(server, "benchmark_output") as database:
            yield database


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1_000)
    parser.add_argument("--store", nargs="*", default=["sqlite", "postgres"])
    parser.add_argument("--pieces", nargs="*", type=int, default=[64_000, 70])
    given = parser.parse_args()
    for store in given.store:
        for piece_bytes in given.pieces:
            total = given.megabytes * 10**6 if piece_bytes > 1_000 else given.megabytes * 10**5
            with tempfile.TemporaryDirectory() as folder:
                bare_mb = bare(Path(folder), total)
                print(f"{store}, pieces of {piece_bytes} bytes, {total / 1e6:.0f} MB")
                async with (
                    address_of(store, Path(folder)) as address,
                    open_output(address, lambda task: False) as lane,
                ):
                    await measure(lane, total, piece_bytes, bare_mb)


if __name__ == "__main__":
    asyncio.run(main())
