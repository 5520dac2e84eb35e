"""From segments to lines: joining neighbours, finding where lines begin and end, in either direction. Pure.

A *unit* is what becomes one shown line: bytes up to a newline, or ``LINE_MAX_BYTES`` of a longer line. Units are
counted from the beginning of their line, so the same bytes give the same units whichever way they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from clutch.master.output.packing import Marks, unpack
from clutch.master.output.records import Kind, Segment, StreamState
from clutch.master.output.text import level_of, shown
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


class Cut(msgspec.Struct, frozen=True):
    """Lines of a stretch, in order; ``start`` to ``end`` is what was cut."""

    lines: list[OutputLine]
    start: int
    end: int
    under_way: bool
    """Behind ``end`` a unit has begun whose end is not among the bytes."""


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


def cut(window: Window, state: StreamState, bounds: Bounds, wanted: Callable[[bytes], bool]) -> Cut:
    """The units of a window, at least one if there is one. ``wanted`` is asked once, for all of the bytes: if it says
    no, the units are passed over."""
    if not wanted(window.data):
        passed = _passed(window)
        return Cut([], window.start, window.start + passed, passed < len(window.data))
    lines: list[OutputLine] = []
    data, start, number = window.data, window.start, window.number
    place, size = 0, len(data)
    while place < size and place < bounds.size_bytes and len(lines) < bounds.lines:
        newline = data.find(b"\n", place, place + LINE_MAX_BYTES + 1)
        if newline >= 0:
            end, is_cut = newline + 1, False
        elif size - place > LINE_MAX_BYTES:
            end, is_cut = place + LINE_MAX_BYTES, True
        elif window.closed:
            end, is_cut = size, False
        else:
            return Cut(lines, start, start + place, True)
        lines.append(_line(state, window, (place, end), number, is_cut))
        number += newline >= 0
        place = end
    return Cut(lines, start, start + place, False)


def _passed(window: Window) -> int:
    """How much of a window is whole units."""
    if window.closed:
        return len(window.data)
    place = window.data.rfind(b"\n") + 1
    return place + (max(len(window.data) - place - 1, 0) // LINE_MAX_BYTES) * LINE_MAX_BYTES


def under_way(window: Window, state: StreamState, at: int) -> OutputLine:
    """The unit that has begun at an offset and has no end yet."""
    number = window.number + window.data.count(b"\n", 0, at - window.start)
    line = _line(state, window, (at - window.start, len(window.data)), number, False)
    return msgspec.structs.replace(line, partial=True)


def _line(state: StreamState, window: Window, place: tuple[int, int], number: int, is_cut: bool) -> OutputLine:
    text = shown(window.data[place[0] : place[1]])
    start = window.start + place[0]
    return OutputLine(
        member=state.member,
        fence=state.fence,
        stream=state.stream,
        start=start,
        end=window.start + place[1],
        number=number,
        at=window.marks.at(start),
        text=text,
        level=level_of(text),
        cut=is_cut,
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
