"""The master's loop on real stores, killed with -9 while it acknowledges: nothing acknowledged is lost.

P1, outside the simulator: real processes, real files, a real PostgreSQL, a real SIGSTOP.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from queue import Queue
from random import Random
from uuid import uuid4

import pytest

from clutch.backends.journal.opening import open_journal
from clutch.master.loop import restore
from clutch.testing.postgres import any_server, fresh_database

CHILD = Path(__file__).with_name("loop_child.py")
DEADLINE_S = 30


class Child:
    """One master process, and everything it has said."""

    def __init__(self, url: str, holder: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), url, holder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: Queue[str] = Queue()
        self.acknowledged: list[str] = []
        self._ear = threading.Thread(target=self._listen)
        self._ear.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.put(line.strip())

    def serving(self) -> tuple[int, int]:
        """Its term and how many tasks it found, once it serves."""
        word, term, _, tasks = self.said.get(timeout=DEADLINE_S).split()
        assert word == "serving"
        return int(term), int(tasks)

    def submit(self, names: list[str]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{name}\n" for name in names))
        self.process.stdin.flush()

    def hear(self, count: int) -> None:
        """Wait until it has acknowledged so many."""
        while len(self.acknowledged) < count:
            self.acknowledged.append(self.said.get(timeout=DEADLINE_S).removeprefix("acknowledged "))

    def kill(self) -> list[str]:
        """kill -9; what it had acknowledged by then."""
        os.kill(self.process.pid, signal.SIGKILL)
        return self.wait()

    def wait(self) -> list[str]:
        self.process.wait(timeout=DEADLINE_S)
        self._ear.join(timeout=DEADLINE_S)
        while not self.said.empty():
            self.acknowledged.append(self.said.get().removeprefix("acknowledged "))
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue
        return self.acknowledged


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with any_server() as address:
        yield address


@pytest.fixture(params=["sqlite", "postgresql"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'journal.sqlite'}"
        return
    async with fresh_database(request.getfixturevalue("server"), f"loop_{uuid4().hex[:12]}") as address:
        yield address


async def stored(url: str) -> list[str]:
    journal = await open_journal(url)
    try:
        return list((await restore(journal, {})).tasks)
    finally:
        await journal.close()


async def test_nothing_acknowledged_is_lost_to_kill_9(url: str) -> None:
    chance = Random(5)
    acknowledged: list[str] = []
    submitted = 0
    for life in range(6):
        child = Child(url, "the master")
        term, found = child.serving()
        assert term == life + 1
        assert found >= len(acknowledged)
        names = [f"t{submitted + number}" for number in range(60)]
        submitted += len(names)
        child.submit(names)
        child.hear(chance.randint(1, 50))
        acknowledged += child.kill()
    kept = await stored(url)
    assert len(acknowledged) >= 6
    assert set(acknowledged) <= set(kept)
    assert len(kept) == len(set(kept))


async def test_a_master_that_slept_through_its_replacement_ends_and_acknowledges_nothing(url: str) -> None:
    first = Child(url, "first")
    first.serving()
    first.submit(["a"])
    first.hear(1)
    os.kill(first.process.pid, signal.SIGSTOP)
    second = Child(url, "second")
    term, found = second.serving()
    assert (term, found) == (2, 1)
    first.submit(["late"])
    second.submit(["b"])
    second.hear(1)
    os.kill(first.process.pid, signal.SIGCONT)
    assert first.wait() == ["a"], "nothing may be acknowledged after the take-over"
    assert first.process.returncode != 0
    second.kill()
    assert await stored(url) == ["a", "b"]
