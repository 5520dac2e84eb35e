"""Reports on their way: numbered batches in a file, from when they are made until the store has them.

::

    FOLDER/spool.jsonl    one line a batch: {"sequence": 7, "points": [...]}, as ``wire.metrics.MetricBatch``
    FOLDER/sequence       the last number given and the last one acknowledged, twenty digits each

One process writes a spool at a time; one that comes later in the same incarnation goes on with its numbers and ships
what it left. A number, once given, stays: a repeat is what makes a lost answer harmless. A spool that is full thins
the oldest half of what it holds: of the points there every second goes, but no validation. What cannot be written is
kept in memory, under the same bound.
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import Any

import msgspec

from clutch.wire.errors import Conflict
from clutch.wire.metrics import VALIDATION, spoken

SPOOL, SEQUENCE = "spool.jsonl", "sequence"
MAX_BYTES = 64 << 20
BATCH_POINTS = 2_000
DEAD_MAX_BYTES = 8 << 20
"""So many acknowledged bytes may stand before the live ones; then the file is written anew."""

Point = tuple[str, int, dict[str, float | int], float]
"""Group, step, values, when."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Entry:
    """One batch: where its line is, or the line itself where the disk would not take it."""

    __slots__ = ("line", "offset", "points", "sequence", "size")

    def __init__(self, sequence: int, size: int, points: int, offset: int, line: bytes | None) -> None:
        self.sequence = sequence
        self.size = size
        self.points = points
        self.offset = offset
        self.line = line


class Spool:
    """May be used by several threads. ``Conflict`` when another process has it."""

    def __init__(self, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self.thinned = 0
        """Points that were dropped to stay within the bound."""
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: list[Entry] = []
        self._bytes = 0
        self._file = os.open(folder / SPOOL, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise Conflict(
                "another process of this member reports already",
                object=str(folder),
                next_step="Call clutch.init() in one process only, or give the others ranks of their own.",
            ) from None
        self._numbers = os.open(folder / SEQUENCE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.last, self.acknowledged = _numbers(os.pread(self._numbers, 64, 0))
        self._end = self._recover()

    # -- filling ---------------------------------------------------------------------------------------------------

    def put(self, points: list[Point]) -> None:
        """Number these points and keep them."""
        for first in range(0, len(points), BATCH_POINTS):
            batch = points[first : first + BATCH_POINTS]
            with self._lock:
                self.last += 1
                self._append(self.last, [_written(point) for point in batch])
                self._keep_numbers()
                if self._bytes > self._max_bytes:
                    self._thin()

    def _append(self, sequence: int, points: list[Any]) -> None:
        line = _encode({"sequence": sequence, "points": points}) + b"\n"
        entry = Entry(sequence, len(line), len(points), self._end, None)
        try:
            _write(self._file, line, self._end)
            self._end += len(line)
        except OSError:
            entry.line = line
        self._entries.append(entry)
        self._bytes += len(line)

    def _thin(self) -> None:
        """Every second point of the older half goes, except validations. All lines are written anew."""
        entries, reached, half = self._entries, 0, self._bytes // 2
        batches: list[tuple[int, list[Any]]] = []
        seen = 0
        for entry in entries:
            points = _decode(self._read(entry))["points"]
            if reached < half:
                kept = []
                for point in points:
                    if point["group"] == VALIDATION or seen % 2 == 0:
                        kept.append(point)
                    seen += point["group"] != VALIDATION
                self.thinned += len(points) - len(kept)
                points = kept
            reached += entry.size
            batches.append((entry.sequence, points))
        self._entries, self._bytes, self._end = [], 0, 0
        for sequence, points in batches:
            self._append(sequence, points)
        self._truncate()

    # -- emptying --------------------------------------------------------------------------------------------------

    def take(self, max_bytes: int) -> list[tuple[int, bytes]]:
        """The oldest batches by their numbers, as JSON; at least one if there is any. They stay until acknowledged."""
        found: list[tuple[int, bytes]] = []
        with self._lock:
            size = 0
            for entry in self._entries:
                if found and size + entry.size > max_bytes:
                    break
                found.append((entry.sequence, self._read(entry).rstrip(b"\n")))
                size += entry.size
        return found

    def acknowledge(self, sequence: int) -> None:
        """The store has everything up to this number."""
        with self._lock:
            done = 0
            while done < len(self._entries) and self._entries[done].sequence <= sequence:
                self._bytes -= self._entries[done].size
                done += 1
            del self._entries[:done]
            self.acknowledged = max(self.acknowledged, min(sequence, self.last))
            self._keep_numbers()
            if not self._entries:
                self._end = 0
                self._truncate()
            elif self._entries[0].offset > DEAD_MAX_BYTES:
                self._move_up()

    def align(self, reached: int) -> None:
        """What the store says it has. Where that cannot be (it was restored, or this folder was lost) the batches here
        are numbered anew behind it: a store takes a number that it knows for a repeat, and waits for one it lacks."""
        with self._lock:
            fits = self.acknowledged <= reached <= self.last
            if not fits:
                batches = [_decode(self._read(entry))["points"] for entry in self._entries]
                self._entries, self._bytes, self._end = [], 0, 0
                self.acknowledged = self.last = reached
                for points in batches:
                    self.last += 1
                    self._append(self.last, points)
                self._truncate()
                self._keep_numbers()
        if fits:
            self.acknowledge(reached)

    def empty(self, sequence: int) -> int:
        """Forget the points of a batch that the store will not have; its number is still sent. How many they were."""
        with self._lock:
            for place, entry in enumerate(self._entries):
                if entry.sequence == sequence:
                    line = _encode({"sequence": sequence, "points": []}) + b"\n"
                    self._bytes += len(line) - entry.size
                    self._entries[place] = Entry(sequence, len(line), 0, entry.offset, line)
                    return entry.points
        return 0

    @property
    def waiting_points(self) -> int:
        with self._lock:
            return sum(entry.points for entry in self._entries)

    @property
    def waiting(self) -> bool:
        return bool(self._entries)

    def close(self) -> None:
        with self._lock:
            os.close(self._file)  # and with it the lock
            os.close(self._numbers)

    # -- the files -------------------------------------------------------------------------------------------------

    def _recover(self) -> int:
        """Take over what an earlier process left; a line that was cut off was never sent. Where the next one goes."""
        size = os.fstat(self._file).st_size
        offset = end = 0
        for line in os.pread(self._file, size, 0).splitlines(keepends=True):
            try:
                batch = _decode(line)
                sequence, points = int(batch["sequence"]), len(batch["points"])
            except (msgspec.DecodeError, KeyError, TypeError, ValueError):
                offset += len(line)
                continue
            if sequence > self.acknowledged and line.endswith(b"\n"):
                self._entries.append(Entry(sequence, len(line), points, offset, None))
                self._bytes += len(line)
                self.last = max(self.last, sequence)
            offset += len(line)
            end = offset
        return end

    def _read(self, entry: Entry) -> bytes:
        return entry.line if entry.line is not None else os.pread(self._file, entry.size, entry.offset)

    def _move_up(self) -> None:
        lines = [(entry, self._read(entry)) for entry in self._entries]
        self._end = 0
        for entry, line in lines:
            try:
                _write(self._file, line, self._end)
            except OSError:
                entry.line = line
                continue
            entry.offset, entry.line = self._end, None
            self._end += len(line)
        self._truncate()

    def _truncate(self) -> None:
        os.ftruncate(self._file, self._end)

    def _keep_numbers(self) -> None:
        try:
            os.pwrite(self._numbers, f"{self.last:020d} {self.acknowledged:020d}\n".encode(), 0)
        except OSError:
            return  # the disk is full; whoever comes later finds the numbers in the lines


def _numbers(text: bytes) -> tuple[int, int]:
    parts = text.split()
    if len(parts) != 2 or not all(part.isdigit() for part in parts):
        return 0, 0
    return int(parts[0]), int(parts[1])


def _written(point: Point) -> dict[str, Any]:
    group, step, values, at = point
    return {"group": group, "step": step, "values": {n: spoken(v) for n, v in values.items()}, "at": at}


def _write(file: int, data: bytes, offset: int) -> None:
    """All of it, or an error."""
    done = 0
    while done < len(data):
        done += os.pwrite(file, data[done:], offset + done)
