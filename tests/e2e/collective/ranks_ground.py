"""Scripts on several ranks: real processes that are told who they are as a launcher would tell them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import msgspec

from clutch.backends.transports.keys import new_keys
from clutch.testing.ports import free_port

WITHIN_S = 60.0
THEIRS = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "CROSS_RANK", "CROSS_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "TMPDIR",
)  # fmt: skip
BEGIN = """
import os, sys, time, signal, json
from pathlib import Path
import clutch
from clutch.wire.errors import *
def say(**what):
    sys.stdout.write(json.dumps(what, default=str) + "\\n")
    sys.stdout.flush()
def heard():
    return sys.stdin.readline().strip()
RANK = int(os.environ["RANK"])
def attempt(run, step, fill, metadata=None, **more):
    try:
        with run.checkpoint(step, metadata, shard=True, **more) as path:
            for name, text in fill.items():
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                (path / name).write_text(text)
    except ClutchError as error:
        say(error=str(error), kind=type(error).__name__)
    else:
        say(id=run.latest_checkpoint.id, step=run.latest_checkpoint.step)

"""


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("CLUTCH_") and name not in THEIRS}


class Ranks:
    """So many processes of one script. Each has its own working directory below ``folder``; the first one's is shared
    where a script asks for its run's folder."""

    def __init__(self, text: str, size: int, folder: Path, environment: dict[str, str] | None = None) -> None:
        self.size = size
        self.folder = folder
        script = folder / "script.py"
        script.write_text(BEGIN + textwrap.dedent(text))
        (folder / "tmp").mkdir(exist_ok=True)
        told = {
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "CLUTCH_COMMS_PORT": str(free_port()),
            "CLUTCH_SECRET_KEY": new_keys().secret,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "TMPDIR": str(folder / "tmp"),
            "PYTHONUNBUFFERED": "1",
            **(environment or {}),
        }
        self.processes = []
        for rank in range(size):
            with (folder / f"stderr{rank}").open("w") as stderr:
                process = subprocess.Popen(
                    [sys.executable, str(script)],
                    env={**clean(), **told, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    cwd=folder,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    text=True,
                )
            self.processes.append(process)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(timeout=WITHIN_S)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def line(self, rank: int) -> Any:
        """The next thing that it says."""
        stdout = self.processes[rank].stdout
        assert stdout is not None
        while line := stdout.readline():
            if line.startswith('{"'):
                return msgspec.json.decode(line)
        raise AssertionError(f"rank {rank} has ended:\n{self.stderr(rank)}")

    def lines(self) -> list[Any]:
        return [self.line(rank) for rank in range(self.size)]

    def tell(self, rank: int, line: str = "") -> None:
        stdin = self.processes[rank].stdin
        assert stdin is not None
        stdin.write(f"{line}\n")
        stdin.flush()

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        os.kill(self.processes[rank].pid, number)

    def wait(self, within_s: float = WITHIN_S) -> list[int]:
        until = time.monotonic() + within_s
        return [process.wait(timeout=max(0.1, until - time.monotonic())) for process in self.processes]

    def stderr(self, rank: int) -> str:
        return (self.folder / f"stderr{rank}").read_text()

    def done(self, within_s: float = WITHIN_S) -> None:
        """All end well."""
        codes = self.wait(within_s)
        assert codes == [0] * self.size, "\n".join(f"rank {r}: {codes[r]}\n{self.stderr(r)}" for r in range(self.size))


def checkpoints(folder: Path, run: str = "clutch-runs/*") -> list[Path]:
    """Committed ones of a run below a folder; of the only one, unless it is named."""
    return sorted(path.with_suffix("") for path in folder.glob(f"{run}/checkpoints/*.json"))


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def files(folder: Path) -> dict[str, str]:
    return {path: (folder / path).read_text() for path in sorted(files_of(folder))}
