"""The parent of ``runtime_child``: starts it, talks to it, kills it; and scripts as members of its tasks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any, TypeVar

import msgspec

from clutch.testing.ports import free_port

CHILD = Path(__file__).with_name("runtime_child.py")
DEADLINE_S = 60.0
T = TypeVar("T")


def until(look: Callable[[], T | None], what: str, within_s: float = DEADLINE_S) -> T:
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(0.01)
    return found


class RunMaster:
    """One folder and one port; started as often as it is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.process: subprocess.Popen[str] | None = None
        self._said: Queue[Any] = Queue()
        self._ear: threading.Thread | None = None

    def start(self) -> RunMaster:
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), str(self.folder), str(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._said = Queue()
        self._ear = threading.Thread(target=self._listen, args=(self.process, self._said))
        self._ear.start()
        assert "serving" in self._said.get(timeout=DEADLINE_S)
        return self

    def _listen(self, process: subprocess.Popen[str], said: Queue[Any]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):  # the rest is its log
                said.put(msgspec.json.decode(line))
        said.put({"error": "it has ended"})

    def do(self, *words: object) -> Any:
        assert self.process is not None and self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        answer = self._said.get(timeout=DEADLINE_S)
        assert "error" not in answer, answer["error"]
        return answer["done"]

    def kill(self) -> None:
        assert self.process is not None and self._ear is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=DEADLINE_S)
        self._ear.join(timeout=DEADLINE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process = None

    def close(self) -> None:
        if self.process is not None:
            self.kill()

    def environment(self, member: dict[str, str], tmp: Path) -> dict[str, str]:
        """A member's, as its agent would write it."""
        tmp.mkdir(exist_ok=True)
        ours = {"CLUTCH_MASTERS": f"http://127.0.0.1:{self.port}", "CLUTCH_NODE": "n1", "TMPDIR": str(tmp)}
        return {**clean(), **{name: value for name, value in member.items() if value}, **ours}

    def values(self, task: str, group: str, name: str) -> list[tuple[int, Any]]:
        """(step, value) of one metric, over all epochs."""
        return sorted((step, value) for g, n, _, step, value in self.do("points", task) if (g, n) == (group, name))


def clean() -> dict[str, str]:
    """The environment without a word of ours or of a launcher's."""
    theirs = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TMPDIR")
    return {name: value for name, value in os.environ.items() if not name.startswith("CLUTCH_") and name not in theirs}


class Script:
    """A Python program that runs; ``line`` is the next one it prints, ``tell`` gives it one."""

    def __init__(self, text: str, environment: dict[str, str], cwd: Path, *arguments: str) -> None:
        path = cwd / "script.py"
        path.write_text(textwrap.dedent(text))
        with (cwd / "stderr").open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, str(path), *arguments],
                env=environment,
                cwd=cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        self._cwd = cwd

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def tell(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def wait(self) -> int:
        code = self.process.wait(timeout=DEADLINE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        return code

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait()

    @property
    def stderr(self) -> str:
        return (self._cwd / "stderr").read_text()
