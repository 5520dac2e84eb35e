"""A real cluster, timed: master and agent processes, the SDK and the command line as a user has them.

    python benchmarks/cluster.py [latency|tasks|start|output|takeover ...]

Each figure stands beside a bare one of the same run: a direct start, a plain file, the bar of the design.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from clutch.sdk import calls
from clutch.testing.cluster import Cluster, until

HELLO = ("/bin/sh", "-c", "echo hello")


def say(what: str, figure: str, beside: str = "") -> None:
    print(f"  {what:<58} {figure:>14}   {beside}", flush=True)


def cluster(folder: Path, slots: int, db: str = "", masters: int = 1) -> Cluster:
    made = Cluster(folder, db=db, masters=masters)
    made.start()
    made.add_agent("one", slots=slots)
    made.wait_nodes("one")
    return made


def median_ms(work: Callable[[], None], rounds: int) -> tuple[float, float]:
    """Median and worst, in milliseconds."""
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        took.append((time.perf_counter() - began) * 1e3)
    return statistics.median(took), max(took)


def latency(folder: Path) -> None:
    """From the call to the first line, above a direct start of the same command."""

    def direct() -> None:
        with subprocess.Popen(HELLO, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"hello\n"

    with cluster(folder, slots=4) as made:

        def through_sdk() -> None:
            task = made.client.run(*HELLO, code=None)
            assert next(iter(task.output(follow=True))).text == "hello"

        token = (folder / "master0" / "local.token").read_text().strip()
        words = [sys.executable, "-m", "clutch.cli.main", "--master", made.urls[0], "run", "--no-code", "--", *HELLO]

        def through_cli() -> None:
            with subprocess.Popen(words, stdout=subprocess.PIPE, env={**os.environ, "CLUTCH_TOKEN": token}) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == b"hello\n"

        through_sdk()
        bare, _ = median_ms(direct, 30)
        sdk, worst = median_ms(through_sdk, 30)
        cli, cli_worst = median_ms(through_cli, 15)
    say("SDK: submit to first line, above a direct start", f"{sdk - bare:.0f} ms", f"worst {worst:.0f}; bar 100 ms")
    say("command line: the same", f"{cli - bare:.0f} ms", f"worst {cli_worst:.0f}; bar 300 ms; direct {bare:.1f} ms")
    help_ms, _ = median_ms(lambda: subprocess.run([*words[:3], "--help"], capture_output=True, check=True) and None, 10)
    python_ms, _ = median_ms(lambda: subprocess.run([sys.executable, "-c", ""], check=True) and None, 10)
    say("clutch --help", f"{help_ms:.0f} ms", f"bar 200 ms; bare Python {python_ms:.0f} ms")


class Spent(NamedTuple):
    """CPU seconds of a process, and of its children with all that they have waited for."""

    pid: int
    own_s: float
    children_s: float

    @classmethod
    def of(cls, pid: int) -> Spent:
        mine = stat_fields(pid)
        children_s = ticks_s(mine[13:15])
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            children_s += sum(ticks_s(stat_fields(int(child))[11:15]) for child in path.read_text().split())
        return cls(pid, ticks_s(mine[11:13]), children_s)

    def less(self, before: Spent) -> Spent:
        return Spent(self.pid, self.own_s - before.own_s, self.children_s - before.children_s)


def stat_fields(pid: int) -> list[str]:
    """``/proc/PID/stat`` behind the name; zeros for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["0"] * 50


def ticks_s(words: list[str]) -> float:
    return sum(map(int, words)) / os.sysconf("SC_CLK_TCK")


def tasks(folder: Path, count: int = 1000) -> None:
    """So many tiny tasks through one agent with 8 slots."""
    began_bare = time.perf_counter()
    for _ in range(100):
        subprocess.run(HELLO, check=True, stdout=subprocess.DEVNULL)
    bare = 100 / (time.perf_counter() - began_bare)
    with cluster(folder, slots=8) as made:
        made.client.run(*HELLO, code=None, slots=1, kind="artificial").wait(60)  # what is done only once
        spent = [Spent.of(made.masters[0].pid), Spent.of(made.agents["one"].pid)]
        began = time.perf_counter()
        for _ in range(count):
            made.client.run(*HELLO, code=None, slots=1, kind="artificial")
        submitted = time.perf_counter()
        until(lambda: not list(made.client.tasks(live=True, limit=1)), "all have ended", 600)
        ended = time.perf_counter()
        master, agent = (Spent.of(before.pid).less(before) for before in spent)
        done = sum(1 for task in made.client.tasks() if task.reason == "done")
    assert done == count + 1, done
    say(f"{count} tiny tasks, 8 slots, one agent", f"{count / (ended - began):.0f}/s", "bar 20/s")
    say("  of that, submissions alone", f"{count / (submitted - began):.0f}/s", f"direct starts {bare:.0f}/s")
    say("  CPU a task: master", f"{master.own_s / count * 1e3:.1f} ms", "a busy machine changes these least")
    say("  CPU a task: agent", f"{agent.own_s / count * 1e3:.1f} ms")
    say("  CPU a task: shim and command", f"{agent.children_s / count * 1e3:.1f} ms")


def start(folder: Path, count: int = 10_000) -> None:
    """How soon a master serves again behind so many ended tasks."""
    with cluster(folder, slots=8) as made:
        for number in range(count):
            made.client.run("true", code=None, pool="default", name=f"t{number}", slots=1, kind="rocm")
        for task in list(made.client.tasks(limit=1000)):
            made.client.perform(calls.move_task(task.key, "kill"))
        until(lambda: not list(made.client.tasks(live=True, limit=1)), "all have ended", 600)
        took = []
        for _ in range(5):
            made.masters[0].kill()
            began = time.perf_counter()
            made.masters[0].start()
            made.wait_serving()
            took.append(time.perf_counter() - began)
    say(f"serving again after kill -9, {count:,} ended tasks", f"{statistics.median(took):.2f} s", "bar 2 s")


def output(folder: Path) -> None:
    """Lines a second from a task to the store, and what a gigabyte does to the master's memory."""
    lines, wide = 1_000_000, "x" * 60
    script = f"import sys\nfor n in range({lines}): sys.stdout.write(f'{{n:08d}} {wide}\\n')"
    gigabyte = (
        f"import sys\nblock = ('y' * 99 + '\\n') * 10000\nfor _ in range({2**30 // 1_000_000}): sys.stdout.write(block)"
    )
    with cluster(folder, slots=2) as made:
        began = time.perf_counter()
        printed = made.client.run(sys.executable, "-c", script, code=None)
        assert printed.wait(600).task.reason == "done"
        took = time.perf_counter() - began
        began_read = time.perf_counter()
        assert sum(1 for _ in printed.output(follow=True)) == lines
        read = time.perf_counter() - began_read
        began_bare = time.perf_counter()
        with (folder / "bare").open("wb") as file:
            subprocess.run([sys.executable, "-c", script], stdout=file, check=True)
            os.fsync(file.fileno())
        bare = time.perf_counter() - began_bare
        say("output, from print to store", f"{lines / took:,.0f} lines/s", f"bar 50,000; to a file {lines / bare:,.0f}")
        say("output, from print to a reader", f"{lines / (took + read):,.0f} lines/s", "bar 50,000")
        before = memory(made.masters[0].pid)
        began = time.perf_counter()
        task = made.client.run(sys.executable, "-c", gigabyte, code=None)
        most = before
        while made.state(task.id) != "ended":
            most = max(most, memory(made.masters[0].pid))
            time.sleep(0.1)
        took = time.perf_counter() - began
        say("1 GB printed: the master's memory", f"+{most - before:.0f} MiB", f"from {before:.0f} MiB, in {took:.0f} s")


def memory(pid: int) -> float:
    """Resident, in MiB."""
    words = Path(f"/proc/{pid}/statm").read_text().split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def takeover(folder: Path) -> None:
    """How soon a standby serves after kill -9 of the leader."""
    from clutch.sdk.client import Client
    from clutch.testing.postgres import temporary_server

    took = []
    with temporary_server() as server, cluster(folder, slots=2, db=server.address(), masters=2) as made:
        for round_ in range(4):
            leader, standby = made.masters[round_ % 2], 1 - round_ % 2
            leader.kill()
            began = time.perf_counter()
            with Client((made.urls[standby],), "", patience_s=0.05) as client:
                until(lambda client=client: client.perform(calls.get_health()).status == "serving", "it serves")
            took.append(time.perf_counter() - began)
            leader.start()
            time.sleep(3)
    say("standby serves after kill -9", f"{max(took):.2f} s", f"worst of {len(took)}; bar 3 s")


PARTS = {"latency": latency, "tasks": tasks, "start": start, "output": output, "takeover": takeover}


def main() -> None:
    for name in sys.argv[1:] or PARTS:
        print(name)
        with tempfile.TemporaryDirectory() as folder:
            PARTS[name](Path(folder))


if __name__ == "__main__":
    main()
