"""Processes that belong to a folder: whoever was started with it, works in it or holds it open, and their descendants.

An agent's members outlive it on purpose, so ending a machine that is a folder means finding them. Read from ``/proc``
each time: a process that was found by what it holds cannot be mistaken for another that got its number later.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

LOOK_S = 0.02
PROC = Path("/proc")


def agents_of(data: Path) -> list[int]:
    """Processes that were told ``--data FOLDER``."""
    told = [b"--data", os.fsencode(data)]
    found = []
    for pid in _pids():
        with suppress(OSError):
            words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
            if told in [words[place : place + 2] for place in range(len(words))]:
                found.append(pid)
    return found


def users_of(folder: Path) -> list[int]:
    """Processes that work in the folder or hold something of it open, and all their descendants."""
    inside = f"{folder}{os.sep}"
    parents: dict[int, int] = {}
    found: dict[int, None] = {}
    for pid in _pids():
        if pid == os.getpid():
            continue
        with suppress(OSError):
            parents[pid] = _parent(pid)
            if any(f"{place}{os.sep}".startswith(inside) for place in _places(PROC / str(pid))):
                found[pid] = None
    while grown := [pid for pid, parent in parents.items() if parent in found and pid not in found]:
        found.update(dict.fromkeys(grown))
    return list(found)


def end(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def end_all(data: Path, folder: Path, stop_s: float) -> bool:
    """Ask the folder's agent to end, then kill whatever is left of it and of its members. False if something stayed."""
    deadline = time.monotonic() + stop_s
    end(agents_of(data), signal.SIGTERM)
    while agents_of(data) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    deadline = time.monotonic() + max(stop_s, 5.0)
    while left := list(dict.fromkeys([*agents_of(data), *users_of(folder)])):
        if time.monotonic() > deadline:
            return False
        end(left, signal.SIGKILL)
        time.sleep(LOOK_S)
    return True


def _pids() -> list[int]:
    return [int(place.name) for place in PROC.iterdir() if place.name.isdigit()]


def _parent(pid: int) -> int:
    stat = (PROC / str(pid) / "stat").read_text()
    fields = stat.rpartition(")")[2].split()
    return -1 if fields[0] == "Z" else int(fields[1])


def _places(process: Path) -> list[str]:
    places = [str((process / "cwd").readlink())]
    for held in (process / "fd").iterdir():
        with suppress(OSError):
            places.append(str(held.readlink()))
    return places
