"""``consensus.files.Files`` over the simulated disk: it tears, fills, lies and dies on purpose.

Every verb that changes something is a place where the machine may lose power, before the verb or after it. The caller
plans that by ``plan_crash``; when it happens, ``Crashed`` flies through the member and everything in memory is gone.
"""

from __future__ import annotations

import errno

from clutch.consensus.files import disk_error
from clutch.testing.disk import Disk


class Crashed(BaseException):
    """The power is gone."""


class SimulatedFiles:
    """One machine's folder. Its contents outlive crashes; ``plan_crash`` and ``syncs_lie`` are the world's levers."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.points = 0
        self.syncs_lie = False
        self._sizes: dict[str, int] = {}
        self._lengths: dict[str, int] = {}
        self._crash_in: int | None = None

    # ------------------------------------------------------------------------------------------- the levers

    def plan_crash(self, points: int) -> None:
        """Lose power at the ``points``-th place from now."""
        self._crash_in = points

    def crash_point(self) -> None:
        """A place where power may be lost; sends are such places too."""
        self.points += 1
        if self._crash_in is not None:
            self._crash_in -= 1
            if self._crash_in <= 0:
                self._crash_in = None
                raise Crashed

    def lose_power(self) -> None:
        """What was not synced may be gone, or torn."""
        self._crash_in = None
        self.disk.crash()
        self._lengths.clear()

    # -------------------------------------------------------------------------------------------- the verbs

    def names(self) -> list[str]:
        return self.disk.names()

    def create(self, name: str, size_bytes: int) -> None:
        self.crash_point()
        self.disk.delete(name)
        self.disk.replace(name, [])
        self._sizes[name] = size_bytes
        self._lengths[name] = 0

    def write(self, name: str, offset: int, *pieces: bytes) -> None:
        self.crash_point()
        data = b"".join(pieces)
        length = self._length(name)
        assert offset == length, f"{name}: a write at {offset}, the file ends at {length}"
        try:
            self.disk.append(name, data)
        except OSError as error:
            raise disk_error(error, name) from error
        self._lengths[name] = length + len(data)
        self.crash_point()

    def sync(self, name: str) -> None:
        self.crash_point()
        if not self.syncs_lie:
            self.disk.sync(name)
        self.crash_point()

    def read(self, name: str, offset: int = 0, size_bytes: int = -1) -> bytes:
        data = self._contents(name)
        return data[offset:] if size_bytes < 0 else data[offset : offset + size_bytes]

    def size(self, name: str) -> int:
        return len(self._contents(name))

    def rename(self, name: str, to: str) -> None:
        self.crash_point()
        self.disk.replace(to, self.disk.read(name))
        self.disk.delete(name)
        self._sizes[to] = self._sizes.pop(name, 0)
        self._lengths[to] = self._lengths.pop(name, 0)
        self.crash_point()

    def remove(self, name: str) -> None:
        self.crash_point()
        self.disk.delete(name)
        self._sizes.pop(name, None)
        self._lengths.pop(name, None)

    def _length(self, name: str) -> int:
        found = self._lengths.get(name)
        if found is None:
            found = self._lengths[name] = sum(len(r) for r in self.disk.read(name))
        return found

    def _contents(self, name: str) -> bytes:
        if name not in self.disk.names():
            raise disk_error(OSError(errno.ENOENT, "No such file"), name)
        data = b"".join(self.disk.read(name))
        return data + bytes(max(0, self._sizes.get(name, 0) - len(data)))
