"""Processes as the kernel tells them: who descends from whom, what they use, and ending exactly the one that is meant.

A pid alone names nobody for long. Every signal here goes through a pidfd that was opened before the process was looked
at, so a pid that is reused in between is never hit.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from clutch.wire.containers import Usage

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Stat(NamedTuple):
    """The part of ``/proc/PID/stat`` we need; CPU times in ticks, ``waited`` that of children it has waited for."""

    state: str
    parent: int
    own: int
    waited: int
    start_ticks: int
    memory_bytes: int


def stat(pid: int) -> Stat | None:
    """None if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = text.rpartition(b")")[2].split()  # the name before it may contain anything
    if len(fields) < 22:
        return None
    user, system, waited_user, waited_system = map(int, fields[11:15])
    memory_bytes = int(fields[21]) * _PAGE_BYTES
    own, waited = user + system, waited_user + waited_system
    return Stat(fields[0].decode(), int(fields[1]), own, waited, int(fields[19]), memory_bytes)


def name(pid: int) -> str:
    """What it calls itself; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def is_process(pid: int, start_ticks: int) -> bool:
    """Whether this pid is still the process that began then."""
    seen = stat(pid) if pid > 0 else None
    return seen is not None and seen.start_ticks == start_ticks and seen.state not in "ZX"


def pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def tree(root: int) -> list[int]:
    """All descendants of a process, without itself."""
    found: dict[int, None] = {}
    row = _children(root)
    while row:
        found.update(dict.fromkeys(row))
        row = [child for parent in row for child in _children(parent) if child not in found]
    return list(found)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_bytes().split())
    except FileNotFoundError:
        if not Path("/proc/thread-self/children").exists():  # a kernel that does not list them
            parents = ((other, stat(other)) for other in pids())
            return [other for other, seen in parents if seen is not None and seen.parent == pid]
    except ProcessLookupError:
        pass
    return found


def usage(shim: int) -> Usage:
    """Of all that a shim looks after. What its dead descendants used is in the shim's own count of children."""
    top = stat(shim)
    members = [seen for seen in map(stat, tree(shim)) if seen is not None]
    ticks = (top.waited if top is not None else 0) + sum(seen.own + seen.waited for seen in members)
    return Usage(ticks / _TICKS_PER_S, sum(seen.memory_bytes for seen in members), len(members))


def environment_has(pid: int, variable: bytes) -> bool:
    """Whether a process was started with this ``NAME=value``."""
    try:
        return variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def send(pid: int, number: int, meant: Callable[[int], bool]) -> bool:
    """Signal a process if, once it cannot be confused any more, it is the one that is meant."""
    if pid <= 0:
        return False
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not meant(pid):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(descriptor)
    return True


def alive(candidates: Iterable[int]) -> list[int]:
    """Those that still run; one that is dead and only not yet waited for does not."""
    return [pid for pid in candidates if (seen := stat(pid)) is not None and seen.state not in "ZX"]
