"""A node that is cut off: work that waits is adopted when it returns, work that restarts has gone on elsewhere."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from clutch.sdk import calls
from clutch.testing import namespaces
from clutch.testing.cluster import Cluster, until
from clutch.wire.ids import PoolName
from clutch.wire.specs import PoolSpec

COUNTING = Path(__file__).with_name("counting.py")
OLD_COPY_S = 5.0
"""So soon after its node's return an outdated copy is dead."""


def runs(cluster: Cluster, name: str) -> list[int]:
    path = cluster.folder / "marks" / f"{name}.runs"
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").exists()


def cut_off(folder: Path, cut_s: float, lost_after_s: float) -> None:
    """Two tasks run on a node; its cable is cut for so long. One waits for it, the other restarts elsewhere."""
    with namespaces.namespace(2) as there, Cluster(folder) as cluster:
        master = cluster.masters[0]
        master.arguments = (*master.arguments, "--host=0.0.0.0", "--insecure")
        cluster.start()
        pool = PoolSpec(name=PoolName("default"), node_lost_after_s=lost_after_s)
        cluster.client.perform(calls.put_pool(pool))
        address = f"http://{there.outside}:{cluster.ports[0]}"
        cluster.add_agent("far", slots=2, prefix=there.prefix, masters=(address,))
        cluster.wait_nodes("far")
        marks = folder / "marks"
        marks.mkdir()
        lines = int(20 * (cut_s + 8))
        tasks = {}
        for name in ("wait", "restart"):
            command = (sys.executable, str(COUNTING), str(marks), name, str(lines), "0.05")
            tasks[name] = cluster.client.run(
                *command, code=None, name=name, slots=1, kind="artificial", on_node_lost=name
            )
        until(lambda: runs(cluster, "wait") and runs(cluster, "restart"), "both run")
        cluster.add_agent("near", slots=1)
        cluster.wait_nodes("near")
        there.cut()
        cut_at = time.monotonic()
        cluster.wait_nodes("far", state="lost", within_s=lost_after_s + 30)
        until(lambda: len(runs(cluster, "restart")) == 2, "it runs again elsewhere")
        old = runs(cluster, "restart")[0]
        assert alive(old), "a copy that is cut off goes on for a while: only its writes are fenced"
        until(lambda: time.monotonic() - cut_at >= cut_s, "the cut has lasted", cut_s + 5)
        assert [len(runs(cluster, name)) for name in ("wait", "restart")] == [1, 2]
        there.mend()
        cluster.wait_nodes("far", within_s=60)
        until(lambda: not alive(old), "the old copy is dead", OLD_COPY_S)
        for name, task in tasks.items():
            detail = task.wait(lines * 0.05 + 60)
            assert (name, detail.task.reason) == (name, "done"), detail.task.detail
            assert detail.task.epoch == len(runs(cluster, name)), "one history, one epoch a run"
        assert len(runs(cluster, "wait")) == 1, "what waited was adopted, not started again"


pytestmark = pytest.mark.skipif(not namespaces.CAN, reason=namespaces.WHY_NOT)


@pytest.mark.slow
def test_a_node_that_is_cut_off_for_seconds(tmp_path: Path) -> None:
    cut_off(tmp_path, cut_s=6, lost_after_s=2)


@pytest.mark.slow
def test_a_node_that_is_cut_off_for_five_minutes(tmp_path: Path) -> None:
    cut_off(tmp_path, cut_s=300, lost_after_s=90)
