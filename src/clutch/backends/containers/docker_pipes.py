"""The pipes between a container and its engine, held open so that what is in them outlives the engine.

A container's output goes through two named pipes: the engine's helper for this container writes them, the engine reads
them. When the engine is killed nobody reads, and what comes waits in the pipes; when the container then ends before the
engine is back, the helper closes its ends, and with the last one the kernel throws away what was waiting. A keeper that
holds an end of its own, without reading, prevents that. What the engine still does not take when it is back, is taken
here.

Standard library only. Nothing is held when the engine is on another machine, or when we may not look at its helper; the
output then depends on the engine, as it does for everybody else.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

NAMES = {"init-stdout": 1, "init-stderr": 2}
"""As containerd calls them, by stream."""
READ_BYTES = 64 * 1024


class Pipes:
    """Those of one container."""

    def __init__(self) -> None:
        self._held: dict[int, int] = {}

    def hold(self, pid: int) -> None:
        """Those of the container whose first process this is. The caller knows that the pid is that container's."""
        helper = _parent(pid)
        if self._held or not helper:
            return
        with suppress(OSError):
            for entry in Path(f"/proc/{helper}/fd").iterdir():
                stream = NAMES.get(entry.readlink().name, 0)
                if stream and stream not in self._held:
                    self._take(stream, entry)

    def _take(self, stream: int, entry: Path) -> None:
        with suppress(OSError):
            if not stat.S_ISFIFO(entry.stat().st_mode):
                return
            self._held[stream] = os.open(entry, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def left(self) -> list[tuple[int, bytes]]:
        """What nobody has read, to be called when nobody else reads or writes any more; nothing is held afterwards."""
        found: list[tuple[int, bytes]] = []
        for stream, descriptor in sorted(self._held.items()):
            with suppress(OSError):  # still open elsewhere and empty
                while data := os.read(descriptor, READ_BYTES):
                    found.append((stream, data))
        self.close()
        return found

    def close(self) -> None:
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()


def _parent(pid: int) -> int:
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(after_name[1])
    except (OSError, ValueError, IndexError):
        return 0
