"""The log as a member holds it in memory: what is known, what is durable, what is committed, what is applied.

Pure. Always ``base.index <= applied <= commit <= last_index`` and ``stable <= last_index``::

      snapshot, gone        kept in memory
    ------------------|-----------------------------------------------|
                 base.index     applied     commit     stable    last_index     (stable may lie anywhere after base)

``base`` is where the kept entries begin (its own entry is gone, its term is known). ``snapshot`` is the newest snapshot
on disk: at or after ``base``, because a tail of entries is kept for followers that are only a little behind.
A configuration rules from the moment it is in the log, committed or not, so the log remembers every one it holds.
"""

from __future__ import annotations

from clutch.consensus import configuration as configurations
from clutch.wire.errors import BrokenInvariant
from clutch.wire.raft import Configuration, Entry, EntryKind, SnapshotMeta

ENTRY_OVERHEAD_BYTES = 64
"""What an entry costs beside its data, for every limit in bytes."""

MAX_ENTRIES_AT_ONCE = 4096
"""No message and no apply takes more, however small the entries are."""


def size_of(entry: Entry) -> int:
    return len(entry.data) + len(entry.key) + ENTRY_OVERHEAD_BYTES


class Log:
    """Entries after ``base``, and five numbers. Only ``raft`` modules change it."""

    def __init__(self, snapshot: SnapshotMeta, base: SnapshotMeta, entries: list[Entry], stable: int) -> None:
        self.snapshot = snapshot
        self.base = base
        self.entries = entries
        self.stable = stable
        self.commit = snapshot.index
        self.applied = snapshot.index
        self.size_bytes = sum(size_of(e) for e in entries)
        self.received: SnapshotMeta | None = None
        self._configurations: list[tuple[int, Configuration]] = [(base.index, base.configuration)]
        self._note_configurations(entries)

    # -------------------------------------------------------------------------------------------- looking

    @property
    def last_index(self) -> int:
        return self.base.index + len(self.entries)

    @property
    def last_term(self) -> int:
        return self.entries[-1].term if self.entries else self.base.term

    @property
    def configuration(self) -> Configuration:
        return self._configurations[-1][1]

    @property
    def configuration_index(self) -> int:
        return self._configurations[-1][0]

    def configuration_at(self, index: int) -> Configuration:
        """The configuration that ruled at this index (at or after base)."""
        ruling = self._configurations[0][1]
        for at, found in self._configurations:
            if at <= index:
                ruling = found
        return ruling

    def term(self, index: int) -> int | None:
        """The term of the entry at this index, or None if it is compacted away or not there yet."""
        offset = index - self.base.index
        if offset == 0:
            return self.base.term
        if offset < 0 or offset > len(self.entries):
            return None
        return self.entries[offset - 1].term

    def between(self, start: int, stop: int, max_bytes: int) -> list[Entry]:
        """Entries from ``start`` to before ``stop``, as many as fit into the bytes, at least one if there is any."""
        found: list[Entry] = []
        total = 0
        low = max(0, start - self.base.index - 1)
        high = max(0, stop - self.base.index - 1)
        for entry in self.entries[low : min(high, low + MAX_ENTRIES_AT_ONCE)]:
            total += len(entry.data) + len(entry.key) + ENTRY_OVERHEAD_BYTES
            if found and total > max_bytes:
                break
            found.append(entry)
        return found

    def unstable(self) -> list[Entry]:
        """What the disk does not hold yet."""
        return self.entries[max(0, self.stable - self.base.index) :]

    def find_conflict(self, index: int, term: int) -> tuple[int, int]:
        """The highest index at or below ``index`` whose term is at most ``term``, and its term (0 if compacted)."""
        index = min(index, self.last_index)
        while index > self.base.index:
            own = self.term(index)
            if own is None or own <= term:
                break
            index -= 1
        return index, self.term(index) or 0

    # ------------------------------------------------------------------------------------------- changing

    def append(self, entries: list[Entry]) -> None:
        """Put entries after the last one."""
        if entries and entries[0].index != self.last_index + 1:
            raise BrokenInvariant(f"entry {entries[0].index} cannot follow {self.last_index}", object="raft log")
        self.entries.extend(entries)
        self.size_bytes += sum(size_of(e) for e in entries)
        self._note_configurations(entries)

    def merge(self, entries: tuple[Entry, ...]) -> None:
        """Take a leader's entries: skip those held already, drop what conflicts, append the rest."""
        for position, entry in enumerate(entries):
            if self.term(entry.index) == entry.term:
                continue
            if entry.index <= self.commit:
                raise BrokenInvariant(
                    f"entry {entry.index} of term {entry.term} would replace a committed one", object="raft log"
                )
            self._truncate(entry.index)
            self.append(list(entries[position:]))
            return

    def stable_to(self, index: int, term: int) -> None:
        """The disk holds everything up to this entry, if it is still the one that was written."""
        if self.term(index) == term and index > self.stable:
            self.stable = index

    def commit_to(self, index: int) -> bool:
        """Move the commit index forward; True if it moved."""
        if index <= self.commit:
            return False
        if index > self.last_index:
            raise BrokenInvariant(f"commit {index} is past the last entry {self.last_index}", object="raft log")
        self.commit = index
        return True

    def compact(self, snapshot: SnapshotMeta, keep_from: int) -> None:
        """A snapshot is on disk: forget entries before ``keep_from``, which is at most the snapshot's index + 1."""
        if snapshot.index <= self.snapshot.index or snapshot.index > self.applied:
            raise BrokenInvariant(f"snapshot {snapshot.index} is not after the last one", object="raft log")
        self.snapshot = snapshot
        new_base = min(keep_from - 1, snapshot.index)
        if new_base <= self.base.index:
            return
        term = self.term(new_base)
        assert term is not None
        base = SnapshotMeta(new_base, term, self.configuration_at(new_base))
        gone = self.entries[: new_base - self.base.index]
        self.entries = self.entries[len(gone) :]
        self.size_bytes -= sum(size_of(e) for e in gone)
        self.base = base
        later = [(at, c) for at, c in self._configurations if at > new_base]
        self._configurations = [(new_base, base.configuration), *later]

    def restore(self, snapshot: SnapshotMeta) -> None:
        """Begin again from a leader's snapshot: every entry is dropped."""
        self.snapshot = self.base = self.received = snapshot
        self.entries = []
        self.size_bytes = 0
        self.stable = self.commit = snapshot.index
        self._configurations = [(snapshot.index, snapshot.configuration)]

    def _truncate(self, index: int) -> None:
        dropped = self.entries[index - self.base.index - 1 :]
        del self.entries[index - self.base.index - 1 :]
        self.size_bytes -= sum(size_of(e) for e in dropped)
        self.stable = min(self.stable, index - 1)
        while self._configurations[-1][0] >= index:
            self._configurations.pop()

    def _note_configurations(self, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.kind == EntryKind.CONFIGURATION:
                self._configurations.append((entry.index, configurations.decode(entry.data)))
