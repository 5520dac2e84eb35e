"""Ranks that die, supervisors that are killed, launchers that are not there: all end, and the reason names who."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from launch_ground import Ground, texts

from clutch.testing.bars import within
from clutch.testing.cluster import until
from clutch.wire.api import TaskDetail
from clutch.wire.programs import AccelerateLaunch, Launching, OwnLaunch, RanksLaunch, TorchrunLaunch
from clutch.wire.resources import Resources
from clutch.wire.specs import Members, RoleSpec

PYTHON = (sys.executable, "program.py")
DIES = """
import os, sys, time
rank, folder = int(os.environ["RANK"]), sys.argv[1]
with open(f"{folder}/{rank}.new", "w") as file:
    file.write(str(os.getpid()))
os.rename(f"{folder}/{rank}.new", f"{folder}/{rank}.pid")  # whole, before anybody sees it and fails
while len([name for name in os.listdir(folder) if name.endswith(".pid")]) < 5:
    time.sleep(0.01)
if rank == 3:
    print("about to fail", flush=True)
    open(f"{folder}/died", "w").write(repr(time.time()))
    sys.stderr.write("Traceback\\nValueError: the loss is not finite\\n")
    sys.exit(7)
time.sleep(600)
"""


def reasons(detail: TaskDetail) -> str:
    return " / ".join(allocation.detail for allocation in detail.allocations)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def pids(folder: Path, count: int = 5) -> list[int]:
    def look() -> list[int] | None:
        found = [path.read_text() for path in folder.glob("*.pid")]
        return [int(text) for text in found] if len(found) == count and all(found) else None

    return until(look, f"{count} ranks run", 90)


@pytest.mark.parametrize(
    "launch", [RanksLaunch(), TorchrunLaunch(), AccelerateLaunch()], ids=["ranks", "torchrun", "accelerate"]
)
def test_a_rank_that_fails_ends_all_and_is_named(two_nodes: Ground, tmp_path: Path, launch: Launching) -> None:
    task = two_nodes.submit({"program.py": DIES}, (*PYTHON, str(tmp_path)), launch)
    everybody = pids(tmp_path)
    died_at = float(until(lambda: (tmp_path / "died").exists() and (tmp_path / "died").read_text(), "it has died"))
    until(lambda: all(gone(pid) for pid in everybody), "the ranks of both nodes are gone", 20)
    took_s = time.time() - died_at
    assert took_s < within(5.0), f"{took_s:.1f} s"
    detail = task.wait(60)
    assert (detail.task.reason, detail.exit_code) == ("failed", 7), reasons(detail)
    said = "rank 3 exited with code 7; its last lines: "
    assert said in reasons(detail) and "ValueError: the loss is not finite" in reasons(detail)
    assert said in task.why().sentence, task.why().sentence
    output = texts(task)
    assert "[rank=3] about to fail" in output and "[rank=3] ValueError: the loss is not finite" in output
    assert "clutch: rank 3 exited with code 7; its last lines:" in output


def test_a_rank_that_is_killed_by_a_signal(two_nodes: Ground, tmp_path: Path) -> None:
    task = two_nodes.submit({"program.py": DIES.replace("rank == 3", "False")}, (*PYTHON, str(tmp_path)), RanksLaunch())
    everybody = pids(tmp_path)
    os.kill(int((tmp_path / "4.pid").read_text()), signal.SIGKILL)
    until(lambda: all(gone(pid) for pid in everybody), "the ranks of both nodes are gone", 10)
    detail = task.wait(60)
    assert detail.exit_code == -signal.SIGKILL and "rank 4 was killed by SIGKILL" in reasons(detail), reasons(detail)


@pytest.mark.parametrize("launch", [RanksLaunch(), TorchrunLaunch()], ids=["ranks", "torchrun"])
def test_nothing_survives_a_supervisor_that_is_killed(two_nodes: Ground, tmp_path: Path, launch: Launching) -> None:
    """With a helper in the background that nobody waits for."""
    text = f"import subprocess, sys, os\nsubprocess.Popen(['sleep', '601'], start_new_session=True)\n{DIES}"
    task = two_nodes.submit({"program.py": text.replace("rank == 3", "False")}, (*PYTHON, str(tmp_path)), launch)
    everybody = pids(tmp_path)
    rank = int((tmp_path / "0.pid").read_text())
    top = rank
    while "supervisor_main" in _command(_parent(top)) or "torchrun" in _command(_parent(top)):
        top = _parent(top)
    assert top != rank and "supervisor_main" in _command(top)
    helpers = [pid for pid in (int(path.name) for path in Path("/proc").glob("[0-9]*")) if _command(pid) == "sleep 601"]
    assert len(helpers) == 5
    os.kill(top, signal.SIGKILL)
    until(lambda: all(gone(pid) for pid in [*everybody, *helpers]), "nothing of it is left on both nodes", 10)
    detail = task.wait(60)
    assert (detail.task.reason, detail.exit_code) == ("failed", -signal.SIGKILL)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(f"{sys.argv[1]}/{os.environ['RANK']}.pid", "w").write(str(os.getpid()))
while len(os.listdir(sys.argv[1])) < 5:
    time.sleep(0.01)
if os.environ["RANK"] == "0":
    sys.exit(5)
time.sleep(600)
"""


def test_who_does_not_end_when_asked_is_killed(two_nodes: Ground, tmp_path: Path) -> None:
    task = two_nodes.submit({"program.py": STUBBORN}, (*PYTHON, str(tmp_path)), RanksLaunch(grace_s=0.5))
    everybody = pids(tmp_path)
    until(lambda: all(gone(pid) for pid in everybody), "all are gone", 10)
    detail = task.wait(60)
    assert detail.exit_code == 5 and "rank 0 exited with code 5" in reasons(detail)


LEAVES = """
import os, signal, sys, time
def leave(*_):
    print("leaving", flush=True)
    time.sleep(0.1 * int(os.environ["RANK"]))
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("begun", flush=True)
while True:
    time.sleep(1)
"""


STAYS = "import time; print('begun', flush=True); time.sleep(600)"


@pytest.mark.parametrize(
    ("launch", "text", "reason"),
    [
        (RanksLaunch(), LEAVES, "done"),
        (RanksLaunch(), STAYS, "cancelled"),
        (TorchrunLaunch(), STAYS, "cancelled"),
    ],
    ids=["saves", "dies", "dies-torchrun"],
)
def test_ranks_that_are_asked_to_leave_have_not_failed(
    two_nodes: Ground, launch: Launching, text: str, reason: str
) -> None:
    """Each has the time it needs, whoever went before; exit 0 of all is *done*, as of any program."""
    task = two_nodes.submit({"program.py": text}, PYTHON, launch)
    until(lambda: len([line for line in texts(task) if line.endswith("begun")]) == 5, "all have begun", 60)
    task.stop()
    detail = task.wait(60)
    assert detail.task.reason == reason, reasons(detail)
    if text is LEAVES:
        assert sorted(line for line in texts(task) if "saved" in line) == [f"[rank={n}] saved" for n in range(5)]


NOISY = """
import os, sys, time
until = time.time() + 2.5
count = 0
while time.time() < until:
    sys.stderr.write(f"\\r{count}it [00:00, {count} it/s]")
    sys.stderr.flush()
    count += 1
sys.stderr.write("\\n")
print("x" * 20000)
sys.stdout.write("no end of line")
"""


def test_progress_bars_do_not_flood(two_nodes: Ground) -> None:
    task = two_nodes.submit({"program.py": NOISY}, PYTHON, RanksLaunch())
    assert task.wait(60).task.reason == "done", texts(task)
    for rank in range(5):
        mine = [line for line in texts(task) if line.startswith(f"[rank={rank}] ")]
        bars = [line for line in mine if "it/s" in line]
        assert 2 <= len(bars) <= 6, bars
        counts = [int(line.split("it ")[0].split("] ")[1]) for line in bars]
        assert counts == sorted(counts) and counts[-1] > 1000, "the last one is shown"
        long = [line for line in mine if "xxx" in line]
        assert [line.count("x") for line in long] == [8192, 8192, 20000 - 2 * 8192]
        assert f"[rank={rank}] no end of line" in mine


RUBBISH = """
import os, sys, time
class Nothing:
    def launch(self, argv, environment, roster): return None
class Words:
    def launch(self, argv, environment, roster):
        import types
        return types.SimpleNamespace(argv=[1, 2], environment={})
class Empty:
    def launch(self, argv, environment, roster):
        from clutch.runtime.launch.base import Launch
        return Launch((), {})
class Raises:
    def launch(self, argv, environment, roster): raise RuntimeError("no licence")
class Leaves:
    def launch(self, argv, environment, roster): sys.exit(0)
class Absent:
    def launch(self, argv, environment, roster):
        import ssl
        from clutch.runtime.launch.base import Launch
        return Launch(("no-such-launcher", *argv), {})
"""
ONE = (RoleSpec(name="main", shape=Members(1, Resources(2, "artificial"))),)
PATHS = {"environment": {"PATH": "/usr/bin:/bin"}}


@pytest.mark.parametrize(
    ("launch", "more", "words"),
    [
        (TorchrunLaunch(), PATHS, "torchrun is not installed in this environment: pip install torch"),
        (AccelerateLaunch(), PATHS, "accelerate is not installed in this environment: pip install accelerate"),
        (RanksLaunch(processes=3), {}, "3 processes in a member, and main.0 on"),
        (OwnLaunch(spot="rubbish:Absent"), {}, "no-such-launcher"),
        (OwnLaunch(spot="nowhere:Class"), {}, "cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        (OwnLaunch(spot="rubbish:Missing"), {}, "cannot be imported: AttributeError"),
        (OwnLaunch(spot="broken:Class"), {}, "cannot be imported: SyntaxError"),
        (OwnLaunch(spot="rubbish:Nothing"), {}, "answered with NoneType"),
        (OwnLaunch(spot="rubbish:Words"), {}, "answered with SimpleNamespace"),
        (OwnLaunch(spot="rubbish:Empty"), {}, "without a command"),
        (OwnLaunch(spot="rubbish:Raises"), {}, "it raised RuntimeError: no licence"),
        (OwnLaunch(spot="rubbish:Leaves"), {}, "it raised SystemExit"),
        (OwnLaunch(spot="rubbish:Nothing", options={"x": 1}), {}, "it raised TypeError"),
    ],
    ids=lambda value: "",
)
def test_what_cannot_be_launched_is_refused_with_a_reason(
    two_nodes: Ground, launch: Launching, more: dict[str, object], words: str
) -> None:
    files = {"program.py": "print(1)", "rubbish.py": RUBBISH, "broken.py": "class ("}
    detail = two_nodes.run(files, PYTHON, launch, roles=ONE, **more)
    assert (detail.task.reason, detail.exit_code) == ("failed", 118), reasons(detail)
    assert words in reasons(detail) and "(refused)" in reasons(detail), reasons(detail)


def test_more_processes_than_slots_if_that_is_said(two_nodes: Ground) -> None:
    script = "import os; print('device', os.environ['LOCAL_RANK'], os.environ['LOCAL_WORLD_SIZE'])"
    task = two_nodes.submit({"program.py": script}, PYTHON, RanksLaunch(processes=3, oversubscribe=True), roles=ONE)
    assert task.wait(60).task.reason == "done", texts(task)
    assert sorted(texts(task)) == [f"[rank={n}] device {n} 3" for n in range(3)]


def test_a_command_that_is_not_there(two_nodes: Ground) -> None:
    for launch, rank in ((RanksLaunch(), ""), (TorchrunLaunch(), "rank ")):
        detail = two_nodes.run({"x": ""}, ("no-such-program",), launch, roles=ONE)
        assert detail.exit_code == 127 and "no such command on this node" in reasons(detail), reasons(detail)
        assert rank in reasons(detail)


COLLECTIVE = """
import os, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == int(sys.argv[1]):
    sys.stderr.write("the culprit\\n")
    os._exit(7)
dist.all_reduce(torch.ones(1))
"""


@pytest.mark.slow
@pytest.mark.parametrize("launch", [RanksLaunch(), TorchrunLaunch()], ids=["ranks", "torchrun"])
def test_the_one_that_failed_first_is_named_not_its_victims(two_nodes: Ground, launch: Launching) -> None:
    """The others fail as well, an instant later, because their peer is gone."""
    for culprit in (0, 4):
        detail = two_nodes.run({"program.py": COLLECTIVE}, (*PYTHON, str(culprit)), launch)
        assert f"rank {culprit} exited with code 7; its last lines: the culprit" in reasons(detail), reasons(detail)
