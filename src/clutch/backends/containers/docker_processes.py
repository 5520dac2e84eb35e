"""What runs in a container, as this machine sees it: by the pid of its first process.

An engine reaches one process and tells no CPU time of what is over; from here a whole group gets a signal, and what it
used is counted while it can be seen. Nothing is here when the engine runs on another machine or in another pid
namespace: then every answer is empty, and the engine is asked instead.

Standard library only. It never speaks to the engine.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from clutch.backends.containers import docker_groups

SIGKILL = 9
SAMPLE_EVERY_S = 0.05


class Processes:
    """Of one container. A pid is believed only while it is in a control group of that container."""

    def __init__(self, tools: ModuleType) -> None:
        self._tools = tools
        self._container = ""
        self._sampled_at = 0.0
        self.pid = self.ticks = 0
        self.cpu_s = 0.0

    def note(self, pid: int, container: str) -> None:
        """From now on this is its first process."""
        self.pid, self._container = pid, container
        self.ticks = self._tools.start_ticks(pid) if self.here else 0

    def _groups(self) -> dict[str, Path]:
        return docker_groups.groups(self.pid, self._container)

    @property
    def here(self) -> bool:
        return bool(self._groups())

    @property
    def gone(self) -> bool:
        """It was known, and is no more."""
        return bool(self.pid) and not self.here

    def signal(self, number: int, init: bool) -> bool:
        """To the command's process group, which an engine cannot. False if we may not, or nothing is here."""
        try:
            if not self.here:
                return False
            targets = self._tools.children(self.pid) if init else [self.pid]
            for pid in targets:
                os.killpg(os.getpgid(pid), number)
        except OSError:
            return False
        return bool(targets)

    def kill(self) -> None:
        """The first process of a container takes all others with it."""
        if self.here:
            with suppress(OSError):
                os.kill(self.pid, SIGKILL)

    def sample(self, now: bool = False) -> None:
        """CPU time, as long as it can be seen: with the container its count is gone."""
        if not now and time.monotonic() - self._sampled_at < SAMPLE_EVERY_S:
            return
        self._sampled_at = time.monotonic()
        self.cpu_s = max(self.cpu_s, docker_groups.cpu_s(self._groups()) or 0.0)
