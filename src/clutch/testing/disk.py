"""A disk that keeps what was synced, may keep the rest, tears the last write, and refuses when full.

Contents are an append-only file of records per name (write-ahead logs, journals). ``append`` reaches the cache,
``sync`` the platter. A crash keeps everything synced, then a prefix of the unsynced records drawn by chance, of which
the last may be torn: cut short in the middle, as a power cut does.
"""

from __future__ import annotations

import errno
from random import Random


class Disk:
    """One machine's disk. All methods are immediate; delays are the caller's to add."""

    def __init__(self, chance: Random, capacity_bytes: int | None = None) -> None:
        self._chance = chance
        self.capacity_bytes = capacity_bytes
        self.syncs = 0
        self._synced: dict[str, list[bytes]] = {}
        self._cached: dict[str, list[bytes]] = {}

    def append(self, name: str, record: bytes) -> None:
        """Write a record after the others; it is safe only after ``sync``. Raises ENOSPC when the disk is full."""
        if self.capacity_bytes is not None and self.used_bytes() + len(record) > self.capacity_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._cached.setdefault(name, []).append(record)

    def sync(self, name: str) -> None:
        """Everything appended to this file survives from here on."""
        self.syncs += 1
        self._synced.setdefault(name, []).extend(self._cached.pop(name, []))

    def replace(self, name: str, records: list[bytes]) -> None:
        """Swap the whole file for another, durably and at once (write aside, sync, rename, sync the folder)."""
        self._cached.pop(name, None)
        self._synced[name] = list(records)

    def read(self, name: str) -> list[bytes]:
        """What the running machine sees: cached records too."""
        return [*self._synced.get(name, []), *self._cached.get(name, [])]

    def delete(self, name: str) -> None:
        self._synced.pop(name, None)
        self._cached.pop(name, None)

    def names(self) -> list[str]:
        return sorted({*self._synced, *self._cached})

    def used_bytes(self) -> int:
        return sum(len(r) for name in self.names() for r in self.read(name))

    def crash(self) -> None:
        """Lose power: unsynced records survive as a prefix, whose last one may be torn."""
        for name in sorted(self._cached):
            pending = self._cached.pop(name)
            kept = self._chance.randint(0, len(pending))
            survivors = pending[:kept]
            if survivors and self._chance.random() < 0.5:
                last = survivors.pop()
                survivors.append(last[: self._chance.randint(0, max(0, len(last) - 1))])
            self._synced.setdefault(name, []).extend(r for r in survivors if r)

    def lose_everything(self) -> None:
        """The machine came back with an empty disk."""
        self._synced.clear()
        self._cached.clear()
