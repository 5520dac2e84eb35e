"""Real masters, agents and shims killed with -9 while real work runs: nothing is lost and nothing runs twice."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from random import Random

import pytest
from counting import expected

from clutch.sdk import calls
from clutch.sdk.task import Task
from clutch.testing.cluster import Cluster, until
from clutch.wire.ids import TaskId
from clutch.wire.output import OutputQuery

COUNTING = Path(__file__).with_name("counting.py")


class Work:
    """So many counting tasks, and what is known of each."""

    def __init__(self, cluster: Cluster, count: int, lines: int, pause_s: float) -> None:
        self.cluster = cluster
        self.marks = cluster.folder / "marks"
        self.marks.mkdir()
        self.lines = lines
        self.shims_killed: dict[str, int] = {}
        self.tasks: dict[str, Task] = {}
        for n in range(count):
            name = f"count{n}"
            command = [sys.executable, str(COUNTING), str(self.marks), name, str(lines), str(pause_s)]
            self.tasks[name] = cluster.client.run(*command, code=None, name=name, slots=1, kind="artificial")

    def began(self, name: str) -> int:
        return self._marks(f"{name}.runs")

    def _marks(self, name: str) -> int:
        path = self.marks / name
        return len(path.read_text().splitlines()) if path.exists() else 0

    def wait_began(self) -> None:
        until(lambda: all(self.began(name) for name in self.tasks), "every task runs", 60)

    def kill_a_shim(self, rng: Random) -> str:
        """Kill the shim of one member; its task begins again, since its machine failed it."""
        shims = [pid for pid in _processes(b"shim.py") if _under(pid, self.cluster.folder)]
        if not shims:
            return ""
        pid = rng.choice(sorted(shims))
        command = _children_words(pid)
        name = next((word for word in command if word in self.tasks), "")
        if not name:
            return ""
        self.shims_killed[name] = self.shims_killed.get(name, 0) + 1
        os.kill(pid, signal.SIGKILL)
        return name

    def check(self) -> None:
        """Every task has ended well, ran as often as it had to and never twice at once, and all it printed is there."""
        until(
            lambda: all(self.cluster.state(task.id) == "ended" for task in self.tasks.values()), "every task ends", 120
        )
        for name, task in self.tasks.items():
            detail = task.detail()
            assert detail.task.reason == "done", f"{name}: {detail.task.reason} {detail.task.detail}"
            assert not (self.marks / f"{name}.overlap").exists(), f"{name} ran twice at once"
            killed = self.shims_killed.get(name, 0)
            assert 1 <= self.began(name) <= 1 + killed, f"{name} began {self.began(name)} times, {killed} shims killed"
            assert self._marks(f"{name}.ends") >= 1
            assert self.output(task) == expected(name, self.lines), f"the output of {name} is not whole"

    def output(self, task: Task) -> bytes:
        """What its last epoch wrote, put together from the lines that the API gives."""
        query = OutputQuery(task=TaskId(task.id), streams=("stdout",))
        found: list[bytes] = []
        last = self.cluster.client.perform(calls.get_task(task.id)).task.epoch
        while True:
            page = self.cluster.client.perform(calls.read_output(query))
            for line in page.lines:
                assert line.kind == "line", f"{line}"
                if line.fence.epoch == last:
                    found.append(line.text.encode() + b"\n")
            if not page.more:
                return b"".join(found)
            query = OutputQuery(task=TaskId(task.id), streams=("stdout",), after=page.after)


def _processes(mark: bytes) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _under(pid: int, folder: Path) -> bool:
    try:
        return str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _children_words(pid: int) -> list[str]:
    """The command lines of a process's children, as words."""
    words: list[str] = []
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    for child in children:
        try:
            words += Path(f"/proc/{child}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
    return words


def disturb(cluster: Cluster, work: Work, rng: Random) -> str:
    """One fault: a master, an agent, both, or a shim is gone; what was killed is started again."""
    what = rng.choice(("master", "agent", "both", "shim"))
    agent = cluster.agents[rng.choice(sorted(cluster.agents))]
    if what in ("master", "both"):
        cluster.masters[0].kill()
    if what in ("agent", "both"):
        agent.kill()
    if what == "shim":
        return f"shim of {work.kill_a_shim(rng) or 'nobody'}"
    time.sleep(rng.random() * 0.3)
    if what in ("agent", "both"):
        agent.start()
    if what in ("master", "both"):
        cluster.masters[0].start()
    return what


def run_under_faults(folder: Path, seed: int, tasks: int, faults: int, lines: int) -> None:
    rng = Random(seed)
    with Cluster(folder) as cluster:
        cluster.start()
        for name in ("one", "two"):
            cluster.add_agent(name, slots=(tasks + 1) // 2)
        cluster.wait_nodes("one", "two")
        work = Work(cluster, tasks, lines, pause_s=0.05)
        work.wait_began()
        done = []
        for _ in range(faults):
            done.append(disturb(cluster, work, rng))
            time.sleep(rng.random() * 0.5)
        cluster.wait_serving()
        assert len(done) == faults
        work.check()


def test_a_small_cluster_loses_nothing_under_random_kills(tmp_path: Path) -> None:
    run_under_faults(tmp_path, seed=7, tasks=6, faults=6, lines=120)


@pytest.mark.slow
def test_fifty_tasks_lose_nothing_under_twenty_random_kills(tmp_path: Path) -> None:
    run_under_faults(tmp_path, seed=11, tasks=50, faults=20, lines=600)


def upgrade(folder: Path, tasks: int, lines: int) -> None:
    """Every process of the control plane is replaced by a new one, one after the other, while work runs."""
    with Cluster(folder) as cluster:
        cluster.start()
        for name in ("one", "two"):
            cluster.add_agent(name, slots=(tasks + 1) // 2)
        cluster.wait_nodes("one", "two")
        work = Work(cluster, tasks, lines, pause_s=0.05)
        work.wait_began()
        for child in (cluster.masters[0], *cluster.agents.values(), cluster.masters[0]):
            assert child.stop() == 0, child.last_lines()
            child.start()
            cluster.wait_serving()
        cluster.wait_nodes("one", "two")
        work.check()


def test_a_new_release_takes_over_under_running_work(tmp_path: Path) -> None:
    upgrade(tmp_path, tasks=5, lines=120)


@pytest.mark.slow
def test_a_new_release_takes_over_under_fifty_running_tasks(tmp_path: Path) -> None:
    upgrade(tmp_path, tasks=50, lines=400)
