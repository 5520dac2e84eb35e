"""The control groups an engine made for a container, as this machine shows them: what it uses, and whose a pid is.

Standard library only: keepers read it too. Nothing is found when the engine runs on another machine or in another pid
namespace, and then the engine is asked instead.
"""

from __future__ import annotations

from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
UNIFIED = ""


def groups(pid: int, container: str) -> dict[str, Path]:
    """The groups of a process by controller, if it really is one of this container; empty otherwise.

    A pid may be reused, or come from an engine in another namespace: the container's id in the path is the proof.
    """
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines() if pid > 0 else []
    except OSError:
        return {}
    if not container or not any(container in line for line in lines):
        return {}
    found: dict[str, Path] = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            for folder in (MOUNT / controllers, MOUNT / name, MOUNT / "unified") if controllers else (MOUNT,):
                place = folder / path.lstrip("/")
                if container in path and place.is_dir():
                    found.setdefault(name, place)
    return found


def cpu_s(of: dict[str, Path]) -> float | None:
    """CPU time of all that was ever in there; None if it cannot be read (any more)."""
    usage = _number(of, "cpuacct", "cpuacct.usage")
    if usage is not None:
        return usage / 1e9
    usage = _fields(of, UNIFIED, "cpu.stat").get("usage_usec")
    return usage / 1e6 if usage is not None else None


def memory_bytes(of: dict[str, Path]) -> int | None:
    """Memory now, without file pages that the kernel would drop at once."""
    for controller, file in (("memory", "memory.usage_in_bytes"), (UNIFIED, "memory.current")):
        used = _number(of, controller, file)
        if used is not None:
            stat = _fields(of, controller, "memory.stat")
            return max(used - stat.get("total_inactive_file", stat.get("inactive_file", 0)), 0)
    return None


def processes(of: dict[str, Path]) -> int:
    """How many processes are in there."""
    place = next(iter(of.values()), None)
    try:
        return len((place / "cgroup.procs").read_text().split()) if place is not None else 0
    except OSError:
        return 0


def _number(of: dict[str, Path], controller: str, file: str) -> int | None:
    try:
        return int((of[controller] / file).read_text())
    except (KeyError, OSError, ValueError):
        return None


def _fields(of: dict[str, Path], controller: str, file: str) -> dict[str, int]:
    try:
        lines = (of[controller] / file).read_text().splitlines()
    except (KeyError, OSError):
        return {}
    return {name: int(value) for name, _, value in (line.partition(" ") for line in lines) if value.isdigit()}
