"""``clutch up`` and ``clutch down`` as their user has them: an empty home, one command, and everything resumes."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clutch.cli.home import is_up
from clutch.testing.bars import within
from clutch.testing.cluster import Child, end_members, until

COUNTING = Path(__file__).with_name("counting.py")


class Home:
    """A user with an empty home folder and the ``clutch`` command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data" / "clutch"
        kept = ("PATH", "PYTHONPATH", "LANG", "TMPDIR", "VIRTUAL_ENV")
        self.environment = {name: os.environ[name] for name in kept if name in os.environ}
        self.environment |= {"HOME": str(folder), "XDG_DATA_HOME": str(folder / "data")}

    def clutch(self, *words: str, ok: bool = True) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "clutch.cli.main", *words],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert not ok or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout if ok else done.stdout + done.stderr

    def read(self, *words: str) -> Any:
        return json.loads(self.clutch(*words, "--json"))

    def close(self) -> None:
        self.clutch("down", "--leave", ok=False)
        end_members(self.data)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    try:
        yield made
    finally:
        made.close()


def count(home: Home, name: str, lines: int) -> None:
    marks = home.folder / "marks"
    marks.mkdir(exist_ok=True)
    command = (sys.executable, str(COUNTING), str(marks), name, str(lines), "0.05")
    home.clutch("run", "--detach", "--no-code", "--name", name, "--", *command)
    until(lambda: runs(home, name) == 1, f"{name} runs")


def runs(home: Home, name: str) -> int:
    path = home.folder / "marks" / f"{name}.runs"
    return len(path.read_text().splitlines()) if path.exists() else 0


def show(home: Home, task: str) -> Any:
    return home.read("show", task)["task"]


def test_the_first_minute(home: Home) -> None:
    """Up, a command, its exit code, what ran; up again finds it; down; nothing is left but its memory."""
    said = home.clutch("up", "--agents", "2", "--artificial-slots", "2")
    assert "http://127.0.0.1:" in said
    assert "clutch_o_" in said, "a one-time token"
    assert home.clutch("run", "--no-code", "--", "echo", "hello") == "hello\n"
    failed = subprocess.run(
        [sys.executable, "-m", "clutch.cli.main", "run", "--no-code", "--", "sh", "-c", "exit 7"],
        env=home.environment, cwd=home.folder, timeout=60, capture_output=True,
    )  # fmt: skip
    assert failed.returncode == 7
    assert [task["reason"] for task in home.read("ps", "--all")] == ["failed", "done"]
    assert len(home.read("agent", "list")) == 2
    assert "up already" in home.clutch("up")
    assert "down" in home.clutch("down")
    assert "Nothing is up" in home.clutch("down")
    address = next(word for word in said.split() if word.startswith("http://"))
    again = home.clutch("up")
    assert address in again, "the port is remembered"
    assert len(home.read("agent", "list")) == 2, "and how many agents there were"
    assert len(home.read("ps", "--all")) == 2


def test_a_port_that_is_taken_is_said_and_not_remembered(home: Home) -> None:
    home.data.mkdir(parents=True)
    (home.data / "up.log").write_text("what an earlier one said\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = home.clutch("up", "--port", str(taken.getsockname()[1]), ok=False)
    assert said.count("cannot listen there: Address already in use") == 1 and "earlier" not in said, said
    assert not (home.data / "up.json").exists()


def test_work_that_was_left_is_found_again(home: Home) -> None:
    home.clutch("up")
    count(home, "left", 100)
    home.clutch("down", "--leave")
    home.clutch("up")
    until(lambda: show(home, "left")["state"] == "ended", "it ends", 60)
    assert show(home, "left")["reason"] == "done"
    assert runs(home, "left") == 1
    assert len(home.clutch("logs", "left").splitlines()) == 100


def test_work_that_was_stopped_begins_again(home: Home) -> None:
    home.clutch("up")
    count(home, "stopped", 60)
    home.clutch("down", "--grace", "5")
    assert not list((home.folder / "marks").glob("stopped.ends"))
    home.clutch("up")
    until(lambda: runs(home, "stopped") == 2, "it runs again")
    until(lambda: show(home, "stopped")["state"] == "ended", "it ends", 60)
    assert show(home, "stopped")["reason"] == "done"


def test_a_second_machine_joins_by_the_line_that_is_printed(home: Home) -> None:
    said = home.clutch("up", "--join", "--join-host", "127.0.0.1", "--agents", "0")
    home.clutch("run", "--detach", "--no-code", "--name", "early", "--slots", "1", "--", "true")
    assert "no node" in home.clutch("why", "early")
    line = next(line for line in said.splitlines() if "clutch agent" in line)
    words = shlex.split(line[line.index("clutch agent") :])[1:]
    assert any(word.startswith("https://") for word in words)
    agent = Child([*words, "--name", "second", f"--data={home.folder / 'second'}"], home.folder / "second.log")
    agent.start()
    try:
        until(lambda: [n["state"] for n in home.read("agent", "list")] == ["ready"], "the second machine is ready")
        assert home.clutch("run", "--no-code", "--", "sh", "-c", "echo on $CLUTCH_NODE") == "on second\n"
        until(lambda: show(home, "early")["reason"] == "done", "what asked for a slot before there was any has had one")
    finally:
        agent.kill()
        end_members(home.folder / "second")
    wrong = [*words[:-1], "sha256:" + "0" * 64, "--name", "third", f"--data={home.folder / 'third'}"]
    assert "fingerprint" in home.clutch(*wrong, ok=False)


def test_a_list_says_where_and_how_a_task_runs(home: Home) -> None:
    home.clutch("up")
    count(home, "seen", 200)
    node = home.read("agent", "list")[0]["key"]
    until(lambda: home.read("ps")[0]["detail"] == f"on {node} with process", "ps says where it runs")
    home.clutch("kill", "seen")


def test_an_engine_that_says_nothing_keeps_nobody_waiting(home: Home) -> None:
    """Containers of an agent that is starting were looked for there for 30 s, before it told of itself."""
    path = home.folder / "engine.sock"
    home.environment["DOCKER_HOST"] = f"unix://{path}"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen(64)
        began = time.monotonic()
        said = home.clutch("up")
        assert home.clutch("run", "--no-code", "--slots", "1", "--", "echo", "hello") == "hello\n"
        assert "docker" not in said
        assert time.monotonic() - began < within(6.0)
        home.clutch("down")


def test_the_first_command_finds_the_nodes(home: Home) -> None:
    home.clutch("up", "--agents", "3")
    assert [node["state"] for node in home.read("agent", "list")] == ["ready"] * 3


def test_one_that_is_slow_to_come_up_is_not_waited_for_for_ever(home: Home) -> None:
    program = "from pathlib import Path; from clutch.cli import up; up.UP_WITHIN_S = 0.05; up.spawn(Path({!r}))"
    ran = subprocess.run(
        [sys.executable, "-c", program.format(str(home.data))], env=home.environment, capture_output=True, text=True
    )
    assert "it is not up after 0.05 s, and still tries. Read" in ran.stderr, ran
    until(lambda: is_up(home.data) and "ready" in home.clutch("agent", "list", ok=False), "it comes up all the same")


def test_a_demonstration_that_stands_still_says_why(home: Home) -> None:
    """It was watched for ever."""
    program = """
from clutch.cli import demo_search
from clutch.cli.wishes import remembered
from clutch.wire.errors import TimedOut
demo_search.STUCK_AFTER_S = 0.5
show = demo_search.Show(trials=4, seed=5, keep=False, plain=True)
remembered(show.folder, {"agents": 0})
try:
    show.run()
except TimedOut as stuck:
    print(stuck, show.base.exists())
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], env=home.environment, capture_output=True, text=True, timeout=100
    )
    last = ran.stdout.splitlines()[-1]
    assert "nothing of it moved for 0.5 s" in last and "has no node" in last and last.endswith("False"), ran
