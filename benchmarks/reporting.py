"""What a report costs the training loop: the time of ``run.report`` with a master, without one, and off the cluster.

    python benchmarks/reporting.py [--points 100000]

Beside it: a bare append of the same dict to a list. The loop does a little work between reports, as training does; the
threads that carry the reports away run meanwhile. Also: how long ``import clutch; clutch.init()`` takes beside a bare
Python, and how many points a second arrive in the store when a loop does nothing but report.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import structlog

from clutch.runtime.info import Info, read_info
from clutch.runtime.opening import Given, open_run
from clutch.testing.push_master import push_master
from clutch.wire.ids import TaskId
from clutch.wire.metrics import MetricsQuery

CHILD = """
import json, sys, time
from clutch.runtime.opening import Given, open_run
count = int(sys.argv[1])
with open_run(Given(), lambda: None) as run:
    work = 0.0
    times = []
    began = time.perf_counter()
    for step in range(count):
        for _ in range(200):
            work += 1.0
        at = time.perf_counter()
        run.report(step, loss=work, accuracy=0.5)
        times.append(time.perf_counter() - at)
    looped = time.perf_counter() - began
closed = time.perf_counter() - began - looped
times.sort()
found = {"p50": times[count // 2], "p99": times[count * 99 // 100], "max": times[-1], "close": closed}
print(json.dumps(found))
"""


def show(name: str, found: dict[str, float]) -> None:
    print(
        f"{name:34} p50 {found['p50'] * 1e6:7.2f} us   p99 {found['p99'] * 1e6:7.2f} us   "
        f"worst {found['max'] * 1e3:6.2f} ms   close {found.get('close', 0.0):5.2f} s"
    )


def bare(count: int) -> dict[str, float]:
    kept, times, work = [], [], 0.0
    for step in range(count):
        for _ in range(200):
            work += 1.0
        at = time.perf_counter()
        kept.append({"step": step, "loss": work, "accuracy": 0.5})
        times.append(time.perf_counter() - at)
    times.sort()
    return {"p50": times[count // 2], "p99": times[count * 99 // 100], "max": times[-1]}


def script(environment: dict[str, str], folder: Path, count: int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(count)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("CLUTCH_")}


async def with_master(folder: Path, count: int) -> None:
    async with push_master(folder / "master") as master:
        token = (await master.submit("t"))[0]
        state = await master.loop.settled()
        fence = next(iter(state.members_of(TaskId("t")))).fence(state.generation)
        ours = {"CLUTCH_TASK": "t", "CLUTCH_FENCE": str(fence), "CLUTCH_TOKEN": token, "TMPDIR": str(folder)}
        environment = {**clean(), **ours, "CLUTCH_MASTERS": master.url}
        show("report, a master answers", await asyncio.to_thread(script, environment, folder, count))
        found = await master.services.metrics.series(MetricsQuery(task=TaskId("t"), names=("loss",)))
        stored = sum(series.total for series in found)
        assert stored == count, f"{stored} of {count} are stored"
        nobody = {**environment, "CLUTCH_MASTERS": "http://127.0.0.1:9", "CLUTCH_FLUSH_WITHIN_S": "0.5"}
        nobody |= {"CLUTCH_FENCE": "g9e9i9"}
        show("report, no master answers", await asyncio.to_thread(script, nobody, folder, count))


def fast(folder: Path, count: int) -> None:
    """Off the cluster, a loop that only reports."""
    here = Path.cwd()
    os.chdir(folder)
    try:
        began = time.perf_counter()
        with open_run(Given(name="fast"), lambda: None, Info()) as run:  # type: ignore[arg-type, return-value]
            for step in range(count):
                run.report(step, loss=1.0)
        took = time.perf_counter() - began
    finally:
        os.chdir(here)
    print(f"{'points a second, nothing but reports':34} {count / took:,.0f}")


def start(folder: Path) -> None:
    def best(text: str) -> float:
        def once() -> float:
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", text], env=clean(), cwd=folder, check=True)
            return time.perf_counter() - began

        return min(once() for _ in range(15))

    none, ours = best("pass"), best("import clutch; clutch.init()")
    print(
        f"{'import clutch; clutch.init()':34} {(ours - none) * 1000:.1f} ms over a bare Python ({none * 1000:.1f} ms)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=100_000)
    count = parser.parse_args().points
    assert not read_info().on_cluster, "run this outside of a task"
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        show("append to a list", bare(count))
        show("report, off the cluster", script(clean(), folder, count))
        asyncio.run(with_master(folder, count))
        fast(folder, count)
        start(folder)


if __name__ == "__main__":
    main()
