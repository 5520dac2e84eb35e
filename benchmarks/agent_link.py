"""What an agent and its link cost: output end to end, idle members, the latency of a start. Real processes, loopback.

python benchmarks/agent_link.py [MEGABYTES] [MEMBERS]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "e2e" / "agent"))

from agent_cluster import Cluster, until

LINE = b"%09d " % 0 + b"x" * 89 + b"\n"
LOUD = "import os\nblock = ({line!r} * 650)\nfor _ in range({blocks}): os.write(1, block)"
FLUSHED = "import sys\nfor i in range({lines}): sys.stdout.write('%09d ' % i + 'x' * 89 + '\\n'); sys.stdout.flush()"


async def output(cluster: Cluster, task: str, script: str, size: int) -> None:
    began = time.perf_counter()
    await cluster.master.run(task, sys.executable, "-c", script)
    await cluster.master.ended(task)
    took = time.perf_counter() - began
    carried = (await cluster.master.ask("lane"))["writes"]
    print(f"{task}: {size / 1e6 / took:.0f} MB/s, {size / 100 / took:,.0f} lines/s ({took:.2f} s, {carried} commits)")


async def idle(cluster: Cluster, count: int) -> None:
    began = time.perf_counter()
    for number in range(count):
        await cluster.master.run(f"idle{number}", "sleep", "1000")

    async def all_run() -> bool:
        members = (await cluster.master.ask("state"))["members"]
        return sum(state == "running" for state in members.values()) >= count

    await until(all_run, "not all of them run", 300)
    print(f"{count} members up in {time.perf_counter() - began:.1f} s")
    await asyncio.sleep(5)
    agent = psutil.Process(cluster.agents[0].process.pid)
    assert cluster.master.process is not None
    master = psutil.Process(cluster.master.process.pid)
    before = [sum(process.cpu_times()[:2]) for process in (agent, master)]
    await asyncio.sleep(20)
    used = [sum(process.cpu_times()[:2]) - was for process, was in zip((agent, master), before, strict=True)]
    print(f"{count} idle members: agent {used[0] / 0.2:.1f} % of a core, master {used[1] / 0.2:.1f} %")
    print(f"agent memory: {agent.memory_info().rss / 2**20:.0f} MiB")


async def latency(cluster: Cluster, word: str, count: int) -> None:
    found = [await cluster.master.ask("latency", task=f"{word}{number}") for number in range(count)]
    first = sorted(one["first_byte"] for one in found)
    submit = median(one["submit"] for one in found)
    print(
        f"{word}: submit acknowledged in {submit * 1e3:.1f} ms; "
        f"then first durable byte after {median(first) * 1e3:.0f} ms (p95 {first[int(len(first) * 0.95)] * 1e3:.0f} ms)"
    )


async def main(megabytes: int, members: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with Cluster(Path(folder)) as cluster:
            cluster.agent("n1", artificial=members + 8)
            await cluster.master.node_is("n1", "ready")
            await latency(cluster, "first", 40)
            blocks = megabytes * 10**6 // 65_000
            await output(cluster, "loud", LOUD.format(line=LINE, blocks=blocks), blocks * 65_000)
            await output(cluster, "flushed", FLUSHED.format(lines=300_000), 30_000_000)
            await idle(cluster, members)
            await latency(cluster, "later", 20)


if __name__ == "__main__":
    asyncio.run(main(*(int(word) for word in [*sys.argv[1:], *["500", "200"][len(sys.argv) - 1 :]])))
