"""Reading a member's spool: pieces of its output in the order the shim saw them, each stream without holes or doubles.

A reader holds a ``Cursor``: how far it is in each stream, and where in the files. A new reader needs only the two
offsets (``Cursor(stdout=..., stderr=...)``, as the store has committed them): what lies before them is skipped, what is
no longer there is a ``Gap``. The files are described in ``agent/shim.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from clutch.agent.shim import FRAME_HEADER, MAGIC, READ_BYTES, SEGMENT_HEADER, STDERR, STDOUT

STREAMS = {STDOUT: "stdout", STDERR: "stderr"}


class Cursor(msgspec.Struct, frozen=True):
    """Up to where a spool was read. The offsets are the truth; segment and position only save looking for it."""

    stdout: int = 0
    stderr: int = 0
    segment: int = 0
    position: int = 0


class Piece(msgspec.Struct, frozen=True):
    """Bytes of one stream from an offset on. ``at`` is when the shim read them (wall clock)."""

    stream: str
    offset: int
    at: float
    data: bytes


class Gap(msgspec.Struct, frozen=True):
    """These bytes of a stream were written and are gone: dropped at the cap, or lost with the machine."""

    stream: str
    start: int
    end: int


class _Frame(NamedTuple):
    stream: int
    length: int
    offset: int
    at: float
    position: int

    @property
    def end(self) -> int:
        return self.position + FRAME_HEADER + self.length


def read(folder: Path, cursor: Cursor, limit_bytes: int) -> tuple[list[Piece | Gap], Cursor]:
    """What comes next, about ``limit_bytes`` of it, and the cursor behind it. Nothing new gives an empty list."""
    offsets = {STDOUT: cursor.stdout, STDERR: cursor.stderr}
    found: list[Piece | Gap] = []
    segment, position, taken = cursor.segment, cursor.position, 0
    numbers = segments(folder)  # before reading: a segment that has a successor here is complete
    for number in (n for n in numbers if n >= segment):
        try:
            file = (folder / f"{number:08d}").open("rb")
        except FileNotFoundError:
            continue  # dropped while we looked; the next one says what is missing
        with file:
            if number != segment or position < SEGMENT_HEADER:
                heads = _heads(file)
                if heads is None:
                    continue
                found += _skip_to(offsets, heads)
                segment, position = number, SEGMENT_HEADER
            for frame in _frames(file, position):
                if taken >= limit_bytes:
                    return found, _cursor(offsets, segment, position)
                pieces = _take(file, frame, offsets)
                taken += sum(len(piece.data) for piece in pieces if isinstance(piece, Piece))
                found += pieces
                position = frame.end
    return found, _cursor(offsets, segment, position)


def rest(cursor: Cursor, stdout_bytes: int, stderr_bytes: int) -> tuple[list[Gap], Cursor]:
    """After all was read of an exited member: what its record counts beyond that is lost."""
    offsets = {STDOUT: cursor.stdout, STDERR: cursor.stderr}
    gaps = _skip_to(offsets, {STDOUT: stdout_bytes, STDERR: stderr_bytes})
    return gaps, _cursor(offsets, cursor.segment, cursor.position)


def release(folder: Path, cursor: Cursor) -> int:
    """Remove the segments that lie wholly before a cursor whose bytes are safe elsewhere; says how many went."""
    done = [number for number in segments(folder) if number < cursor.segment]
    for number in done:
        (folder / f"{number:08d}").unlink(missing_ok=True)
    return len(done)


def ends(folder: Path) -> tuple[int, int]:
    """How far each stream goes, as far as whole frames tell: (stdout, stderr)."""
    offsets = {STDOUT: 0, STDERR: 0}
    for number in reversed(segments(folder)):
        try:
            file = (folder / f"{number:08d}").open("rb")
        except FileNotFoundError:
            continue
        with file:
            heads = _heads(file)
            if heads is None:
                continue
            offsets = heads
            for frame in _frames(file, SEGMENT_HEADER):
                offsets[frame.stream] = frame.offset + frame.length
        break
    return offsets[STDOUT], offsets[STDERR]


def segments(folder: Path) -> list[int]:
    try:
        return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _heads(file: BinaryIO) -> dict[int, int] | None:
    data = file.read(SEGMENT_HEADER)
    if len(data) < SEGMENT_HEADER or not data.startswith(MAGIC):
        return None
    numbers = data[len(MAGIC) :]
    return {STDOUT: int.from_bytes(numbers[:8], "big"), STDERR: int.from_bytes(numbers[8:], "big")}


def _frames(file: BinaryIO, position: int) -> Iterator[_Frame]:
    """Whole frames from a position on; it stops before one that is still being written, or torn."""
    size = os.fstat(file.fileno()).st_size
    while position + FRAME_HEADER <= size:
        file.seek(position)
        head = file.read(FRAME_HEADER)
        length, offset, at = (int.from_bytes(head[a:b], "big") for a, b in ((1, 5), (5, 13), (13, 21)))
        frame = _Frame(head[0], length, offset, at / 1e6, position)
        if frame.stream not in STREAMS or length > READ_BYTES or frame.end > size:
            return
        yield frame
        position = frame.end


def _take(file: BinaryIO, frame: _Frame, offsets: dict[int, int]) -> list[Piece | Gap]:
    """A frame's bytes as far as they are new, after a gap where some before them are missing."""
    found: list[Piece | Gap] = []
    expected = offsets[frame.stream]
    end = frame.offset + frame.length
    if end <= expected:
        return found
    if frame.offset > expected:
        found.append(Gap(STREAMS[frame.stream], expected, frame.offset))
        expected = frame.offset
    file.seek(frame.position + FRAME_HEADER + expected - frame.offset)
    found.append(Piece(STREAMS[frame.stream], expected, frame.at, file.read(end - expected)))
    offsets[frame.stream] = end
    return found


def _skip_to(offsets: dict[int, int], heads: dict[int, int]) -> list[Gap]:
    gaps = [Gap(STREAMS[s], offsets[s], heads[s]) for s in STREAMS if heads[s] > offsets[s]]
    for stream in STREAMS:
        offsets[stream] = max(offsets[stream], heads[stream])
    return gaps


def _cursor(offsets: dict[int, int], segment: int, position: int) -> Cursor:
    return Cursor(offsets[STDOUT], offsets[STDERR], segment, position)
