"""The command line as a user runs it: in a process of its own, in a home of its own, with or without a terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

WAIT_S = 60.0


class User:
    """Somebody with a home folder who uses a cluster."""

    def __init__(self, home: Path, masters: Sequence[str] = (), token: str = "") -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        named = {"CLUTCH_MASTER": ",".join(masters)} if masters else {}
        said = {"CLUTCH_TOKEN": token} if token else {}
        self.env = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONUNBUFFERED": "1", **named, **said}

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "clutch.cli.main", *words]

    def run(
        self, *words: str, code: int | None = 0, input: bytes = b"", cwd: Path | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """A command, ended, with the exit code that was expected."""
        out = subprocess.run(
            self.argv(*words), env=self.env, cwd=cwd or self.home, input=input, capture_output=True, timeout=WAIT_S,
            check=False,
        )  # fmt: skip
        if code is not None:
            assert out.returncode == code, f"{words}: {out.returncode}\n{out.stdout!r}\n{out.stderr.decode()}"
        return out

    def says(self, *words: str, code: int = 0, input: bytes = b"") -> str:
        return self.run(*words, code=code, input=input).stdout.decode()

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """A command that goes on, without a terminal."""
        return subprocess.Popen(
            self.argv(*words), env=self.env, cwd=self.home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip

    def terminal(self, *words: str) -> Terminal:
        return Terminal(self, words)


def finish(child: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """What is left of its output once it has ended. ``communicate`` would forget what ``readline`` has read ahead."""
    assert child.stdout is not None
    assert child.stderr is not None
    with child.stdout, child.stderr:
        rest, said = child.stdout.read(), child.stderr.read()
    child.wait(WAIT_S)
    return rest, said


class Terminal:
    """A command in a terminal: what it shows, and what is typed."""

    def __init__(self, user: User, words: Sequence[str]) -> None:
        self.screen = b""
        pid, self.master = pty.fork()
        if pid == 0:
            os.chdir(user.home)
            os.execve(sys.executable, user.argv(*words), user.env)
        self.pid = pid

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def until(self, text: str, count: int = 1) -> None:
        """Returns when this text stands on the screen so many times."""
        deadline = time.monotonic() + WAIT_S
        while self.screen.count(text.encode()) < count:
            assert time.monotonic() < deadline, f"no {text!r} in {self.screen!r}"
            if not self._read():
                assert self.screen.count(text.encode()) >= count, f"it ended without {text!r}: {self.screen!r}"

    def _read(self) -> bool:
        ready, _, _ = select.select([self.master], [], [], 1.0)
        if not ready:
            return True
        try:
            data = os.read(self.master, 65536)
        except OSError:  # its other end is closed
            return False
        self.screen += data
        return bool(data)

    def end(self) -> int:
        """Its exit code, when it has ended."""
        deadline = time.monotonic() + WAIT_S
        while self._read():
            assert time.monotonic() < deadline, f"it goes on: {self.screen!r}"
        os.close(self.master)
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
