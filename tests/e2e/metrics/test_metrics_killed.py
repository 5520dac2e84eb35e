"""A member that reports while its master is killed with -9, again and again: every point is stored, and once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from metrics_sender import batch
from push_ground import DEADLINE_S, Master

from clutch.master.metrics_lane.opening import open_metrics
from clutch.wire.ids import TaskId
from clutch.wire.metrics import MetricsQuery

SENDER = Path(__file__).with_name("metrics_sender.py")


@pytest.mark.parametrize(
    ("kills", "batches"), [(2, 200), pytest.param(25, 4_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_every_point_is_stored_once(kills: int, batches: int, tmp_path: Path) -> None:
    master = Master(tmp_path / "data").start()
    chance = Random(kills)
    try:
        (token,) = master.do("submit", "task", 1, "end").values()
        command = [sys.executable, str(SENDER), master.url, token, str(batches)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sender:
            assert sender.stdout is not None
            for _ in range(kills):
                for _ in range(chance.randint(1, max(batches // kills // 5, 1))):
                    line = sender.stdout.readline()
                assert int(line) < batches, "all was sent before the last kill; the test proves too little"
                master.kill()
                master.start()
            rest = sender.stdout.read().split()
            assert sender.wait(timeout=DEADLINE_S) == 0
        assert int(rest[-1]) == batches
    finally:
        master.close()
    asyncio.run(_compare(tmp_path / "data" / "metrics.db", batches))


async def _compare(path: Path, batches: int) -> None:
    sent = [one for n in range(1, batches + 1) for one in batch(n).points]
    async with open_metrics(str(path)) as lane:
        query, after, stored = MetricsQuery(task=TaskId("task")), "", list[tuple[str, int, object]]()
        while True:
            page = await lane.exact(query, after, 10_000)
            stored += [(one.name, point.step, point.value) for one in page.items for point in one.points]
            if not (after := page.next):
                break
        expected = [(name, one.step, value) for one in sent for name, value in one.values.items()]
        assert sorted(stored, key=repr) == sorted(expected, key=repr)
        summaries = {one.name: one for one in await lane.summaries(TaskId("task"))}
        assert {one.count for one in summaries.values()} == {len(sent)}
        assert (summaries["number"].low, summaries["number"].high) == (1, batches)
