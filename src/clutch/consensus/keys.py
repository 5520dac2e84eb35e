"""Which keys were applied lately, so that a retry is recognised and never doubled.

Pure, and a function of the log alone: every member that applied the same entries holds the same window. It remembers a
fixed number of keys. An entry whose proposer started before the oldest remembered key might be a repeat that is
forgotten, so it is refused; it is never guessed.

    key remembered                          -> the index it has
    key unknown, since at or after floor    -> new: applied, remembered
    key unknown, since before floor         -> refused: it may have been applied and forgotten
"""

from __future__ import annotations

import msgspec

from clutch.wire.raft import Entry, EntryKind


class WindowState(msgspec.Struct, frozen=True, array_like=True):
    """A window as a snapshot holds it: keys and indexes in the order they were applied."""

    floor: int = 0
    keys: tuple[str, ...] = ()
    indexes: tuple[int, ...] = ()


class KeyWindow:
    """The last ``size`` keys."""

    def __init__(self, size: int, state: WindowState | None = None) -> None:
        state = state or WindowState()
        self._size = size
        self._floor = state.floor
        self._seen = dict(zip(state.keys, state.indexes, strict=True))

    def index_of(self, key: str) -> int | None:
        return self._seen.get(key)

    def take(self, entry: Entry) -> int | None:
        """The index this entry's key stands at: its own if it is new, an earlier one if not; None if refused."""
        if not entry.key:
            return entry.index
        known = self._seen.get(entry.key)
        if known is not None:
            return known
        if entry.since < self._floor:
            return None
        self._seen[entry.key] = entry.index
        if len(self._seen) > self._size:
            oldest = next(iter(self._seen))
            self._floor = self._seen.pop(oldest)
        return entry.index

    def fold(self, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.kind == EntryKind.DATA:
                self.take(entry)

    def state(self) -> WindowState:
        return WindowState(self._floor, tuple(self._seen), tuple(self._seen.values()))
