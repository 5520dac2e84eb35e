"""Limits and sure death through control groups, version 2 or 1, where this machine lets us; a notice where not.

A member's groups are children of the agent's own, so the agent's limits hold for all of them together. Besides limits a
group is the one thing a process cannot leave: after the death of a shim it still tells who belongs to the member.
"""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from clutch.backends.containers import proc
from clutch.wire.containers import Limits

UNIFIED = ""
"""The name of the version 2 hierarchy among the controllers of version 1."""
CPU_PERIOD_US = 100_000
AGENT_LEAF = "clutch-agent"
SHIM_NAME = "clutch-shim"
_TRACKERS = (UNIFIED, "pids", "memory")


class Group(NamedTuple):
    """What was made for one member, in words a shim understands."""

    paths: tuple[str, ...] = ()
    joins: tuple[str, ...] = ()
    """Files of version 1: a process with one thread is in after writing 0, without the wait of ``cgroup.procs``."""
    into: str = ""
    """The group of version 2, in which a process is best born."""
    kill_file: str = ""
    oom_file: str = ""
    notices: tuple[str, ...] = ()


def own_groups(cgroup: str, mountinfo: str) -> dict[str, Path]:
    """Where this process is in each hierarchy, by controller, from the two files under ``/proc/self``. Pure."""
    places: dict[str, str] = {}
    for line in cgroup.splitlines():
        number, controllers, path = line.split(":", 2)
        for name in controllers.split(",") if number != "0" else [UNIFIED]:
            places[name] = path
    found: dict[str, Path] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        kind, _, options = after.split()[:3]
        if kind not in ("cgroup", "cgroup2"):
            continue
        for name in [UNIFIED] if kind == "cgroup2" else options.split(","):
            inside = _inside(places.get(name), root)
            if inside is not None and name not in found:
                found[name] = Path(point) / inside
    return found


def _inside(place: str | None, root: str) -> str | None:
    """A hierarchy's path as seen under a mount that shows it from ``root`` on; None if it is not in there."""
    if place is None:
        return None
    if place.startswith("/.."):
        return None
    try:
        inside = PurePosixPath(place).relative_to(root)
    except ValueError:
        return None
    return str(inside)


class Cgroups:
    """The groups below the given ones (by controller, as ``own_groups`` finds them)."""

    def __init__(self, parents: dict[str, Path]) -> None:
        self._parents = {name: _above_leaf(path) for name, path in parents.items()}

    @classmethod
    def detect(cls) -> Cgroups:
        here = Path("/proc/self")
        try:
            return cls(own_groups((here / "cgroup").read_text(), (here / "mountinfo").read_text()))
        except OSError:
            return cls({})

    @classmethod
    def none(cls) -> Cgroups:
        """For a machine where they shall not be used."""
        return cls({})

    def make(self, name: str, limits: Limits) -> Group:
        """Groups called ``name`` with these limits. What could not be had is in ``notices``; it never fails."""
        paths: list[str] = []
        notices: list[str] = []
        oom_file = kill_file = ""
        if limits.memory_bytes:
            path, reason = self._limited("memory", name, _memory_settings(limits.memory_bytes))
            if path is None:
                notices.append(f"its memory limit of {limits.memory_bytes} bytes is not enforced here: {reason}")
            else:
                paths.append(str(path))
                oom_file = _first_existing(path, "memory.events", "memory.oom_control")
        if limits.millicpus:
            path, reason = self._limited("cpu", name, _cpu_settings(limits.millicpus))
            if path is None:
                notices.append(f"its limit of {limits.millicpus / 1000:g} CPUs is not enforced here: {reason}")
            elif str(path) not in paths:
                paths.append(str(path))
        for tracker in _TRACKERS:
            made = self._made(tracker, name)
            if made is not None:
                kill_file = _first_existing(made, "cgroup.kill")
                paths += [str(made)] if str(made) not in paths else []
                break
        joins = tuple(f"{path}/tasks" for path in paths if not self._is_unified(path))
        into = next(filter(self._is_unified, paths), "")
        return Group(tuple(paths), joins, into, kill_file, oom_file, tuple(notices))

    def _is_unified(self, path: str) -> bool:
        return Path(path).parent == self._parents.get(UNIFIED)

    def _limited(self, controller: str, name: str, settings: dict[int, dict[str, str]]) -> tuple[Path | None, str]:
        """The group in the hierarchy that has this controller, with its limit set; else None and why not."""
        version = 1 if controller in self._parents else 2
        try:
            if version == 2:
                self.enable(controller)
            path = self._parents[controller if version == 1 else UNIFIED] / name
            path.mkdir(exist_ok=True)
            for file, value in settings[version].items():
                _write(path / file.lstrip("?"), value, optional=file.startswith("?"))
        except KeyError:
            return None, "this machine has no control groups"
        except OSError as refused:
            return None, f"{refused.filename or controller}: {os.strerror(refused.errno or 0)}"
        return path, ""

    def _made(self, tracker: str, name: str) -> Path | None:
        parent = self._parents.get(tracker)
        if parent is None:
            return None
        try:
            (parent / name).mkdir(exist_ok=True)
        except OSError:
            return None
        return parent / name

    def enable(self, controller: str) -> None:
        """Let children have a controller (version 2), or ``OSError``.

        The kernel allows that only where the parent holds no process itself. If all in there are this agent and its
        shims, they move into a leaf.
        """
        parent = self._parents[UNIFIED]
        control = parent / "cgroup.subtree_control"
        if controller in control.read_text().split():
            return
        try:
            _write(control, f"+{controller}")
        except OSError as refused:
            inside = [int(pid) for pid in (parent / "cgroup.procs").read_text().split()]
            if refused.errno != errno.EBUSY or not all(map(_is_ours, inside)):
                raise
            (parent / AGENT_LEAF).mkdir(exist_ok=True)
            for pid in inside:
                _write(parent / AGENT_LEAF / "cgroup.procs", str(pid))
            _write(control, f"+{controller}")


def _is_ours(pid: int) -> bool:
    return pid == os.getpid() or proc.name(pid) == SHIM_NAME


def _memory_settings(limit_bytes: int) -> dict[int, dict[str, str]]:
    """By version; a setting with ``?`` may be missing (a kernel without swap accounting)."""
    limit = str(limit_bytes)
    return {
        1: {"memory.limit_in_bytes": limit, "?memory.memsw.limit_in_bytes": limit},
        2: {"memory.max": limit, "?memory.swap.max": "0", "?memory.oom.group": "1"},
    }


def _cpu_settings(millicpus: int) -> dict[int, dict[str, str]]:
    quota_us = max(millicpus * CPU_PERIOD_US // 1000, 1000)
    return {
        1: {"cpu.cfs_period_us": str(CPU_PERIOD_US), "cpu.cfs_quota_us": str(quota_us)},
        2: {"cpu.max": f"{quota_us} {CPU_PERIOD_US}"},
    }


# -- by path, as a directory remembers them -------------------------------------------------------------------------


def processes(paths: tuple[str, ...]) -> list[int]:
    """Who is in any of these groups and still runs."""
    found: dict[int, None] = {}
    for path in paths:
        try:
            found.update(dict.fromkeys(map(int, Path(path, "cgroup.procs").read_text().split())))
        except OSError:
            continue
    return proc.alive(found)


def kill(paths: tuple[str, ...]) -> None:
    """SIGKILL to all in these groups, atomically where the kernel can."""
    for path in paths:
        try:
            _write(Path(path, "cgroup.kill"), "1")
        except OSError:
            for pid in processes((path,)):
                proc.send(pid, signal.SIGKILL, lambda pid, path=path: pid in processes((path,)))  # type: ignore[misc]


def remove(paths: tuple[str, ...]) -> None:
    """Take empty groups away; one that is in use or gone stays as it is."""
    for path in paths:
        try:
            Path(path).rmdir()
        except OSError:
            continue


def _write(path: Path, value: str, optional: bool = False) -> None:
    try:
        with path.open("w") as file:
            file.write(value)
    except OSError as refused:
        if not optional:
            raise OSError(refused.errno, os.strerror(refused.errno or 0), str(path)) from refused


def _first_existing(folder: Path, *names: str) -> str:
    return next((str(folder / name) for name in names if (folder / name).exists()), "")


def _above_leaf(path: Path) -> Path:
    return path.parent if path.name == AGENT_LEAF else path
