"""etcd and PySyncObj under the load of ``consensus.py``, run by the interpreter of the peers' own environment.

    python consensus_peers.py etcd|pysyncobj FOLDER     prints one JSON object

Three processes on loopback each, all started and ended here. etcd syncs its log before it acknowledges; PySyncObj keeps
a journal file that it never syncs, so its figures are those of a system that promises less.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from clutch.testing.ports import free_ports

SMALL, LARGE = 1024, 1 << 20


def percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "p50_ms": 1e3 * statistics.median(ordered),
        "p99_ms": 1e3 * ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
    }


async def etcd(folder: Path) -> dict[str, float]:
    import aetcd

    found = free_ports(6)
    urls = [(f"http://127.0.0.1:{found[2 * i]}", f"http://127.0.0.1:{found[2 * i + 1]}") for i in range(3)]
    cluster = ",".join(f"n{i}={peer}" for i, (_, peer) in enumerate(urls))
    binary = Path(sys.executable).with_name("etcd")
    members = []
    for i, (client, peer) in enumerate(urls):
        command = [str(binary), "--name", f"n{i}", "--data-dir", str(folder / f"n{i}"), "--initial-cluster", cluster]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
        command += ["--initial-advertise-peer-urls", peer, "--log-level", "error"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        members.append(subprocess.Popen(command, **quiet))  # noqa: ASYNC220
    try:
        clients = [aetcd.Client(port=found[2 * i], timeout=30) for i in range(3)]
        for _ in range(200):
            try:
                await clients[0].put(b"ready", b"1")
                break
            except Exception:
                await asyncio.sleep(0.1)
        leader = 0
        for i, client in enumerate(clients):
            status = await client.status()
            if str(getattr(status.leader, "name", "")) == f"n{i}":
                leader = i
        client = clients[leader]
        small, large = os.urandom(SMALL), os.urandom(LARGE)
        taken = []
        for number in range(1300):
            began = time.perf_counter()
            await client.put(b"k%d" % number, small)
            taken.append(time.perf_counter() - began)
        result = percentiles(taken[300:])
        result["pipelined_per_s"] = await pipelined(lambda n: client.put(b"p%d" % n, small), 6000, 64)
        per_s = await pipelined(lambda n: client.put(b"l%d" % n, large), 100, 8)
        result["large_mb_per_s"] = per_s * LARGE / 1e6
        members[leader].kill()
        began = time.perf_counter()
        other = clients[(leader + 1) % 3]
        while True:
            try:
                await asyncio.wait_for(other.put(b"after", b"1"), 1.0)
                break
            except Exception:
                await asyncio.sleep(0.005)
        result["fail_over_s"] = time.perf_counter() - began
        return result
    finally:
        for member in members:
            member.kill()
            member.wait()


async def pipelined(put: object, count: int, inflight: int) -> float:
    assert callable(put)
    gate = asyncio.Semaphore(inflight)

    async def one(number: int) -> None:
        async with gate:
            await put(number)

    began = time.perf_counter()
    await asyncio.gather(*(one(n) for n in range(count)))
    return count / (time.perf_counter() - began)


MEMBER = """
import sys, time
from pysyncobj import SyncObj, SyncObjConf, replicated

class Kept(SyncObj):
    def __init__(self, me, others, journal):
        self.count = 0
        super().__init__(me, others, SyncObjConf(dynamicMembershipChange=False, journalFile=journal))
    @replicated
    def put(self, data):
        self.count += 1
        return self.count

me, others, journal = sys.argv[1], sys.argv[2].split(","), sys.argv[3]
kept = Kept(me, others, journal)
if len(sys.argv) > 4:
    import json, os, statistics, threading
    while not kept.isReady() or kept._getLeader() is None:
        time.sleep(0.05)
    small, large = os.urandom(1024), os.urandom(1 << 20)
    def timed(data, timeout=30):
        began = time.perf_counter()
        kept.put(data, sync=True, timeout=timeout)
        return time.perf_counter() - began
    taken = sorted(timed(small) for _ in range(60))
    done = threading.Event()
    left = [2000]
    def arrived(*_):
        left[0] -= 1
        if left[0] <= 0:
            done.set()
    began = time.perf_counter()
    for _ in range(2000):
        kept.put(small, callback=arrived)
    done.wait(60)
    rate = (2000 - max(0, left[0])) / (time.perf_counter() - began)
    began, ok = time.perf_counter(), 0
    for _ in range(5):
        try:
            timed(large, 10)
            ok += 1
        except Exception:
            pass
    spent = time.perf_counter() - began
    print(json.dumps({"p50_ms": 1e3 * statistics.median(taken), "p99_ms": 1e3 * taken[-1],
        "pipelined_per_s": rate, "large_mb_per_s": ok * 1.048576 / spent, "large_failed_of_5": 5 - ok}), flush=True)
    os._exit(0)
while True:
    time.sleep(1)
"""


def pysyncobj(folder: Path) -> dict[str, float]:
    found = [f"127.0.0.1:{p}" for p in free_ports(3)]
    folder.mkdir(parents=True, exist_ok=True)
    members = []
    for i in range(3):
        others = ",".join(a for a in found if a != found[i])
        command = [sys.executable, "-c", MEMBER, found[i], others, str(folder / f"j{i}")]
        if i == 2:
            command.append("measure")
        members.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
    try:
        output, _ = members[2].communicate(timeout=150)
        return dict(json.loads(output.decode().strip().splitlines()[-1]))
    finally:
        for member in members:
            member.kill()
            member.wait()


def main() -> None:
    which, folder = sys.argv[1], Path(sys.argv[2])
    print(json.dumps(asyncio.run(etcd(folder)) if which == "etcd" else pysyncobj(folder)))


if __name__ == "__main__":
    main()
