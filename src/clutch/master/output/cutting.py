"""From segments to lines: joining neighbours, finding where lines begin and end, in either direction. Pure.

A *unit* is what becomes one shown line: bytes up to a newline, or ``LINE_MAX_BYTES`` of a longer line. Units are
counted from the beginning of their line, so the same bytes give the same units whichever way they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from clutch.master.output.packing import Marks, unpack
from clutch.master.output.records import Kind, Segment, StreamState
from clutch.master.output.text import level_of
from clutch.wire.errors import Corrupt
from clutch.wire.output import LINE_MAX_BYTES, OutputLine


class Window(msgspec.Struct, frozen=True):
    """A stretch of one stream: ``data`` begins at ``start``, which is the beginning of a unit."""

    start: int
    data: bytes
    number: int
    """Newlines before ``start``."""
    marks: Marks
    closed: bool
    """Nothing can follow the last byte: the stream has ended there, or a gap begins."""

    @property
    def end(self) -> int:
        return self.start + len(self.data)


class Unit(NamedTuple):
    """Where a unit lies in its window, and the number of its line."""

    place: int
    end: int
    number: int
    cut: bool = False
    """Its line goes on in the next unit."""
    partial: bool = False


class Bounds(msgspec.Struct, frozen=True):
    """How much to cut at a time: no new unit is begun beyond either."""

    size_bytes: int
    lines: int


def joined(rows: Sequence[Segment], start: int, stop: int, closed: bool) -> Window:
    """The bytes from ``start`` (in the first row) to ``stop`` (at most the end of the last) of neighbouring rows."""
    parts: list[bytes] = []
    offsets: list[int] = []
    times: list[int] = []
    for row in rows:
        data, marks = unpack(row)
        parts.append(data)
        offsets += marks.offsets
        times += marks.times
    first = rows[0]
    if start < first.start or any(one.end != two.start for one, two in pairwise(rows)):
        raise Corrupt(
            f"bytes between {min(start, first.start)} and {stop} are not in the store",
            object="output",
            next_step="Check the disk; a task that is being removed also looks like this.",
        )
    data = b"".join(parts) if len(parts) > 1 else parts[0]
    skipped = start - first.start
    number = first.first_line + (data.count(b"\n", 0, skipped) if skipped else 0)
    if skipped or stop < rows[-1].end:
        data = data[skipped : stop - first.start]
    return Window(start, data, number, Marks(offsets, times), closed)


def behind(window: Window, skipped: int) -> Window:
    """The window without its first bytes."""
    if not skipped:
        return window
    number = window.number + window.data.count(b"\n", 0, skipped)
    return msgspec.structs.replace(window, start=window.start + skipped, data=window.data[skipped:], number=number)


def first_unit(row: Segment, data: bytes) -> int | None:
    """Where the first unit begins that lies wholly behind the start of a row; None if it is not in these bytes.

    ``data`` are the bytes from the row's start on.
    """
    if row.line_start == row.start:
        return row.start
    into = (row.start - row.line_start) % LINE_MAX_BYTES
    if not into:
        return row.start
    left = LINE_MAX_BYTES - into
    newline = data.find(b"\n", 0, left + 1)
    if newline >= 0:
        return row.start + newline + 1
    return row.start + left if left < len(data) else None


def unit_around(row: Segment) -> int:
    """Where the unit begins that is under way at the start of a row."""
    return row.start - (row.start - row.line_start) % LINE_MAX_BYTES


def unit_at_end(state: StreamState) -> int:
    """Where the unit begins that is under way at the end of a stream; its very end if none is."""
    over = state.committed - state.line_start
    return state.line_start + (over - 1) // LINE_MAX_BYTES * LINE_MAX_BYTES if over else state.committed


def last_lines(data: bytes, count: int) -> int:
    """Where the last ``count`` lines of these bytes begin, about: at the beginning of a line that is not later."""
    place = len(data)
    for _ in range(count + 1):
        place = data.rfind(b"\n", 0, place)
        if place < 0:
            return 0
    return place + 1


def units(window: Window, bounds: Bounds) -> tuple[list[Unit], int]:
    """The whole units of a window, at least one if there is one, and where they end (an offset in the stream)."""
    found: list[Unit] = []
    data, number = window.data, window.number
    place, size = 0, len(data)
    while place < size and place < bounds.size_bytes and len(found) < bounds.lines:
        newline = data.find(b"\n", place, place + LINE_MAX_BYTES + 1)
        if newline >= 0:
            found.append(Unit(place, newline + 1, number))
            number += 1
        elif size - place > LINE_MAX_BYTES:
            found.append(Unit(place, place + LINE_MAX_BYTES, number, True))
        elif window.closed:
            found.append(Unit(place, size, number))
        else:
            break
        place = found[-1].end
    return found, window.start + place


def lines_are_units(data: bytes) -> bool:
    """Whether each line of these bytes is one unit and shown as it is."""
    if b"\r" in data:
        return False
    place = 0
    while place + LINE_MAX_BYTES < len(data):
        newline = data.rfind(b"\n", place, place + LINE_MAX_BYTES + 1)
        if newline < 0:
            return False
        place = newline + 1
    return True


def whole(window: Window) -> int:
    """Where the last whole unit of a window ends, without looking for the others."""
    if window.closed:
        return window.end
    place = window.data.rfind(b"\n") + 1
    return window.start + place + (max(len(window.data) - place - 1, 0) // LINE_MAX_BYTES) * LINE_MAX_BYTES


def under_way(window: Window, end: int) -> Unit | None:
    """The unit behind the whole ones, which has no end yet; None if there is none."""
    place = end - window.start
    if window.closed or not 0 < len(window.data) - place <= LINE_MAX_BYTES or b"\n" in window.data[place:]:
        return None
    return Unit(place, len(window.data), window.number + window.data.count(b"\n", 0, place), partial=True)


def line_of(state: StreamState, window: Window, unit: Unit, text: str) -> OutputLine:
    start = window.start + unit.place
    return OutputLine(
        member=state.member,
        fence=state.fence,
        stream=state.stream,
        start=start,
        end=window.start + unit.end,
        number=unit.number,
        at=window.marks.at(start),
        text=text,
        level=level_of(text),
        cut=unit.cut,
        partial=unit.partial,
    )


def gap_line(state: StreamState, row: Segment, start: int, stop: int) -> OutputLine:
    """A line that says which bytes are gone, and why."""
    lost = row.kind is Kind.LOST
    why = "were dropped before they arrived" if lost else "were removed by retention"
    return OutputLine(
        member=state.member,
        fence=state.fence,
        stream=state.stream,
        start=start,
        end=stop,
        number=row.first_line,
        at=row.first_at,
        text=f"[{stop - start} bytes {why}]",
        kind="lost" if lost else "removed",
    )
