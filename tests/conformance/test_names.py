"""The one suite, on every way to keep names; and parties in processes of their own for names in a folder."""

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from clutch.backends.blobs.memory import MemoryBlobs, MemoryShelf
from clutch.backends.masters import Masters
from clutch.backends.names.base import Names, Seen
from clutch.backends.names.file import FileNames
from clutch.backends.names.master import MasterNames
from clutch.backends.names.memory import MemoryNames, NameBoard
from clutch.testing.bars import within
from clutch.testing.names_suite import CHECKS, Check, Ground, next_of
from clutch.testing.push_master import MovableClock, PushMaster, push_master


class MemoryGround:
    def __init__(self) -> None:
        self._now = 1000.0
        self._board = NameBoard(lambda: self._now)

    async def open(self) -> Names:
        return MemoryNames(self._board)

    async def pass_time(self, seconds: float) -> None:
        self._now += seconds
        self._board.expire()


class FolderGround:
    """Time passes by making everything in the folder older."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: list[FileNames] = []

    async def open(self) -> Names:
        names = await FileNames.open(self._path, poll_s=0.02)
        self._opened.append(names)
        return names

    async def pass_time(self, seconds: float) -> None:
        for place in (self._path / "names").iterdir():
            for record in place.iterdir():
                written = record.stat().st_mtime - seconds
                os.utime(record, (written, written))
            os.utime(place)

    async def close(self) -> None:
        for names in self._opened:
            await names.close()


class MasterGround:
    """A real master on a real port, its names asked over HTTP; time passes on the master's clock."""

    def __init__(self, master: PushMaster, token: str, clock: MovableClock) -> None:
        self._master, self._token, self._clock = master, token, clock
        self._opened: list[MasterNames] = []

    async def open(self) -> Names:
        names = MasterNames(Masters((self._master.url,), self._token))
        self._opened.append(names)
        return names

    async def pass_time(self, seconds: float) -> None:
        self._clock.pass_time(seconds)
        await self._master.push.names.tidy()

    async def close(self) -> None:
        for names in self._opened:
            await names.close()


@pytest.fixture(params=["memory", "file", "master"])
async def ground(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ground]:
    if request.param == "memory":
        yield MemoryGround()
    elif request.param == "master":
        clock = MovableClock()
        async with push_master(tmp_path, blobs=MemoryBlobs(MemoryShelf()), monotonic=clock) as master:
            served = MasterGround(master, (await master.submit("t"))[0], clock)
            yield served
            await served.close()
    else:
        folder = FolderGround(tmp_path / "names here")
        yield folder
        await folder.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
async def test_names(ground: Ground, check: Check) -> None:
    await check(ground)


async def party(*arguments: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "clutch.testing.names_suite", *arguments, stdin=PIPE, stdout=PIPE
    )


async def line(process: Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(20):
        return (await process.stdout.readline()).decode().strip()


async def test_processes_race_for_names(tmp_path: Path) -> None:
    """Of two processes that add the same names, each name has one winner; also when the names expired before."""
    before = await FileNames.open(tmp_path)
    for n in range(0, 150, 2):
        await before.add(f"race/{n}", b"", ttl_s=0.001)
    racers = [await party("race", str(tmp_path), f"p{n}", "150") for n in range(2)]
    assert [await line(racer) for racer in racers] == ["ready", "ready"]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write(b"go\n")
    won = [[int(word) for word in (await line(racer)).split()] for racer in racers]
    for racer in racers:
        assert await racer.wait() == 0
    assert sorted(won[0] + won[1]) == list(range(150))
    holders = {entry.name: entry.value.decode() for entry in await before.list("race")}
    assert holders == {f"race/{n}": f"p{p}" for p in range(2) for n in won[p]}
    await before.close()


async def test_a_killed_holders_name_goes_after_its_time(tmp_path: Path) -> None:
    names = await FileNames.open(tmp_path, poll_s=0.02)
    holder = await party("stay", str(tmp_path), "worker/0", "1.0")
    changes = names.watch("worker")
    seen = await next_of(changes)
    assert (seen.seen, seen.entry.value) == (Seen.ADDED, b"alive")
    waiting = asyncio.ensure_future(next_of(changes))
    done, _ = await asyncio.wait([waiting], timeout=1.5)  # more than its time to live: it is renewed
    assert not done
    os.kill(holder.pid, signal.SIGKILL)
    killed_at = time.monotonic()
    assert await holder.wait() == -signal.SIGKILL
    gone = await waiting
    assert (gone.seen, gone.entry) == (Seen.GONE, seen.entry)
    assert time.monotonic() - killed_at < within(3)
    heir = await names.add("worker/0", b"heir", ttl_s=None)
    assert heir.token > seen.entry.token
    await changes.aclose()
    await names.close()
