"""The write-ahead log of one member: segments of frames over ``Files``.

It may know the folder and the formats; it decides nothing. One ``append`` writes one frame; the caller syncs
``current`` before anything that rests on it is said to anybody. A log that cannot be read whole is refused with a typed
error: nothing in here ever shortens a log except by the one torn frame that was never promised to anyone, and by whole
segments that a durable snapshot covers.
"""

from __future__ import annotations

import re

import msgspec

from clutch.consensus import frames
from clutch.consensus.files import Files
from clutch.consensus.frames import Batch, Compacted, SegmentHead
from clutch.consensus.raft import Recovered
from clutch.consensus.state import Limits
from clutch.wire.errors import Corrupt, NotAllowed, Stale
from clutch.wire.raft import Configuration, Entry, HardState, RaftId, SnapshotMeta

ASIDE = "aside.tmp"
_NAME = re.compile(r"^(\d{10})\.wal$")


class LogIdentity(msgspec.Struct, frozen=True):
    """Whose log this is. ``birth`` is drawn once, when the folder is made, and names this log and no other."""

    group: str
    me: RaftId
    birth: str


class Fold:
    """What the records say so far."""

    def __init__(self, head: SegmentHead) -> None:
        self.hard_state = head.hard_state
        self.snapshot = head.snapshot
        self.base = head.base
        self.entries: list[Entry] = []

    def take(self, record: Batch | Compacted, name: str) -> None:
        if isinstance(record, Compacted):
            self.snapshot, self.base = record.snapshot, record.base
            return
        if record.hard_state is not None:
            self.hard_state = record.hard_state
        if record.installed is not None:
            self.snapshot = self.base = record.installed
            self.entries = []
        if record.entries:
            self._take_entries(record.entries, name)

    def _take_entries(self, entries: list[Entry], name: str) -> None:
        first = entries[0].index
        if self.entries:
            keep = first - self.entries[0].index
            if keep > len(self.entries):
                raise Corrupt(f"entries before {first} are missing", object=name)
            del self.entries[max(0, keep) :]
        self.entries.extend(entries)

    def recovered(self) -> Recovered:
        kept = [e for e in self.entries if e.index > self.base.index]
        if kept and kept[0].index != self.base.index + 1:
            missing = f"entries from {self.base.index + 1} to {kept[0].index - 1} are missing"
            raise Corrupt(missing, object="write-ahead log", next_step=_REPLACE)
        hard_state = self.hard_state
        if hard_state.commit < self.snapshot.index:
            hard_state = msgspec.structs.replace(hard_state, commit=self.snapshot.index)
        return Recovered(hard_state, self.snapshot, self.base, kept)


class Wal:
    """An open log. ``current`` is the file to sync after an append."""

    def __init__(self, files: Files, identity: LogIdentity, limits: Limits) -> None:
        self.identity = identity
        self._limits = limits
        self.current = ""
        self._files = files
        self._seed = frames.birth_seed(identity.birth)
        self._number = 1
        self._offset = 0
        self._size = 0
        self._segments: dict[int, int] = {}  # segment -> the highest entry index in it
        self._hard_state = HardState()
        self._snapshot = self._base = SnapshotMeta(0, 0, Configuration())

    # -------------------------------------------------------------------------------------- making, opening

    @classmethod
    def create(
        cls, files: Files, identity: LogIdentity, snapshot: SnapshotMeta, limits: Limits
    ) -> tuple[Wal, Recovered]:
        """A log that begins after ``snapshot`` (index 0 for a new group)."""
        if any(_NAME.match(n) for n in files.names()):
            raise Corrupt("there are segments but no identity", object="write-ahead log")
        wal = cls(files, identity, limits)
        wal._snapshot = wal._base = snapshot
        wal._hard_state = HardState(commit=snapshot.index)
        wal._roll(0)
        return wal, Recovered(wal._hard_state, snapshot, snapshot, [])

    @classmethod
    def open(cls, files: Files, identity: LogIdentity, limits: Limits) -> tuple[Wal, Recovered]:
        """The log as it was left, with at most an unfinished last write cut off."""
        wal = cls(files, identity, limits)
        segments = sorted(int(m.group(1)) for n in files.names() if (m := _NAME.match(n)))
        if not segments:
            raise Corrupt("every segment is missing", object="write-ahead log", next_step=_REPLACE)
        if segments != list(range(segments[0], segments[-1] + 1)):
            raise Corrupt(f"segments are missing among {segments}", object="write-ahead log", next_step=_REPLACE)
        if ASIDE in files.names():
            files.remove(ASIDE)
        fold = wal._read_segment(segments[0], None, last=len(segments) == 1)
        for segment in segments[1:]:
            fold = wal._read_segment(segment, fold, last=segment == segments[-1])
        recovered = fold.recovered()
        wal._hard_state, wal._snapshot, wal._base = fold.hard_state, fold.snapshot, fold.base
        return wal, recovered

    def _read_segment(self, segment: int, fold: Fold | None, last: bool) -> Fold:
        name = _name(segment)
        data = self._files.read(name)
        # Segments before the first one may be gone: its own head says where numbers begin.
        number = frames.number_of(data) if fold is None else self._number
        scan = frames.scan(data, number, self._seed, name)
        head = scan.records[0] if scan.records else None
        if not isinstance(head, SegmentHead):
            raise Corrupt("the segment does not begin with its head", object=name, next_step=_REPLACE)
        self._check_head(head, segment, len(data), name)
        if scan.ending == "torn" and not last:
            raise Corrupt("an unfinished write in the middle of the log", object=name, next_step=_REPLACE)
        fold = fold or Fold(head)
        highest = 0
        for record in scan.records[1:]:
            if isinstance(record, SegmentHead):
                raise Corrupt("a second head in a segment", object=name, next_step=_REPLACE)
            fold.take(record, name)
            if isinstance(record, Batch) and record.entries:
                highest = max(highest, record.entries[-1].index)
        self._segments[segment] = highest
        self._number = number + len(scan.records)
        self.current, self._offset, self._size = name, scan.end, len(data)
        if scan.ending == "torn":
            self._put(name, data[: scan.end], len(data))
        return fold

    def _check_head(self, head: SegmentHead, segment: int, size: int, name: str) -> None:
        mine = self.identity
        if head.group != mine.group:
            raise NotAllowed(f"a log of group {head.group}, not of {mine.group}", object=name)
        if head.me != mine.me:
            raise Stale(f"the log of {head.me}, not of {mine.me}", object=name)
        if head.segment != segment:
            raise Corrupt(f"segment {head.segment} under the name of {segment}", object=name, next_step=_REPLACE)
        if head.size_bytes != size:
            raise Corrupt(f"the file has {size} of {head.size_bytes} bytes", object=name, next_step=_REPLACE)

    def _put(self, name: str, kept: bytes, size: int) -> None:
        """A file of this size that begins with these bytes takes this name, at once and durably."""
        self._files.create(ASIDE, size)
        self._files.write(ASIDE, 0, kept)
        self._files.sync(ASIDE)
        self._files.rename(ASIDE, name)

    # --------------------------------------------------------------------------------------------- writing

    def append(self, batch: Batch) -> int:
        """Write one frame; it is durable once ``current`` is synced. Returns its size."""
        if batch.hard_state is not None:
            self._hard_state = batch.hard_state
        if batch.installed is not None:
            self._snapshot = self._base = batch.installed
        size = self._write(batch)
        if batch.entries:
            segment = next(reversed(self._segments))
            self._segments[segment] = max(self._segments[segment], batch.entries[-1].index)
        return size

    def compact(self, snapshot: SnapshotMeta, base: SnapshotMeta) -> None:
        """Note a durable snapshot, durably, then remove the segments that nobody needs any more."""
        self._snapshot, self._base = snapshot, base
        self._write(Compacted(snapshot, base))
        self._files.sync(self.current)
        self.drop_old_segments()

    def drop_old_segments(self) -> None:
        """Segments at the old end whose entries all lie before the base."""
        segments = list(self._segments)
        for segment in segments[:-1]:
            if self._segments[segment] > self._base.index:
                break
            self._files.remove(_name(segment))
            del self._segments[segment]

    def _write(self, record: Batch | Compacted) -> int:
        frame = frames.encode(record, self._number, self._seed, self._offset)
        size = _size(frame)
        if self._offset + size > self._size:
            self._roll(size)
            frame = frames.encode(record, self._number, self._seed, self._offset)
        self._files.write(self.current, self._offset, *frame)
        self._offset += size
        self._number += 1
        return size

    def _roll(self, need: int) -> None:
        """Begin a segment. The one before is durable already: nothing is written after an unsynced frame."""
        segment = next(reversed(self._segments), 0) + 1
        limits = self._limits
        size = min(limits.max_segment_bytes, max(limits.segment_bytes, self._size * 2))
        identity = self.identity
        head = SegmentHead(
            identity.group, identity.me, identity.birth, segment, 0, self._hard_state, self._snapshot, self._base
        )
        room = need + 2 * _size(frames.encode(head, self._number, self._seed, 0))
        if room > size:
            size = -(-room // limits.segment_bytes) * limits.segment_bytes
        head = msgspec.structs.replace(head, size_bytes=size)
        frame = b"".join(frames.encode(head, self._number, self._seed, 0))
        name = _name(segment)
        # Made aside and renamed when whole: a segment without a head is therefore always damage, never an accident.
        self._put(name, frame, size)
        self.current, self._offset, self._size = name, len(frame), size
        self._number += 1
        self._segments[segment] = 0


_REPLACE = "Keep the folder for study; bring this member back as a learner under its next incarnation."


def _size(pieces: list[bytes]) -> int:
    return sum(len(p) for p in pieces)


def _name(segment: int) -> str:
    return f"{segment:010d}.wal"
