"""Lines of one stream, a stretch at a time, forwards or backwards, within bounds. What reads touches the store here."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import ParamSpec, TypeVar

import msgspec
from msgspec.structs import replace

from clutch.master.output.base import OutputStore
from clutch.master.output.cutting import (
    Bounds,
    Unit,
    Window,
    behind,
    first_unit,
    gap_line,
    joined,
    last_lines,
    line_of,
    lines_are_units,
    under_way,
    unit_around,
    unit_at_end,
    units,
    whole,
)
from clutch.master.output.patterns import Patterns
from clutch.master.output.records import SEGMENT_BYTES, Segment, Span, StreamState
from clutch.master.output.sieve import Sieve
from clutch.master.output.text import shown
from clutch.wire.output import OutputLine, OutputQuery

P = ParamSpec("P")
T = TypeVar("T")
_INLINE_BYTES = 16 * 2**10
"""Packed bytes that are looked at on the event loop; more go to a thread."""
_INLINE_LINES = 100
_INDEX_ROWS = 256
_LIMIT_MAX_BYTES = 64 * SEGMENT_BYTES


class Shared(msgspec.Struct, frozen=True):
    """What all sources of one reading have in common."""

    store: OutputStore
    query: OutputQuery
    sieve: Sieve
    patterns: Patterns
    threads: ThreadPoolExecutor
    bounds: Bounds
    """About so much of each stream is held as lines at a time."""


class Picked(msgspec.Struct, frozen=True):
    """Units of a window that pass, with their texts; ``end`` is where the whole units end."""

    window: Window
    picked: list[tuple[Unit, str]]
    end: int
    whole_lines: bool = False
    """Nothing was picked yet: every line of the window is a unit and shown as it is."""


class Cut(msgspec.Struct, frozen=True):
    """Lines of a stretch, in order; ``start`` to ``end`` is what they stand for."""

    lines: list[OutputLine]
    start: int
    end: int
    finished: bool
    """Behind ``end`` there is at most a unit that has no end yet."""


class Source(ABC):
    """A stream that is being read one way. ``step`` reads on until ``exhausted``; what it finds is in ``lines``.

    ``position`` is where reading goes on; each line on the near side of it is in ``lines``, was taken or passed over.
    """

    is_backwards = False

    def __init__(self, shared: Shared, state: StreamState, low: int, high: int, ended: bool) -> None:
        self.shared = shared
        self.state = state
        self.low = low
        self.high = min(high, state.committed)
        self.lines: deque[OutputLine] = deque()
        self.exhausted = self.low >= self.high
        self.position = self.low
        self._closed = state.done or ended
        is_open = self.high == state.committed and not self._closed
        self.newest = unit_at_end(state) if is_open else self.high
        """Where a reading of what comes later goes on: behind the last whole line."""
        self._limit_bytes = 2 * SEGMENT_BYTES

    @property
    @abstractmethod
    def cursor(self) -> int:
        """Where a later reading goes on, so that it sees what was not taken from ``lines``."""

    @property
    @abstractmethod
    def key(self) -> tuple[float, int, int]:
        """The place of the next line among those of other streams; a guess while none was read."""

    @abstractmethod
    async def step(self) -> None:
        """Read a piece more; what it holds is then in ``lines``."""

    async def _rows(self, span: Span) -> list[Segment]:
        return await self.shared.store.segments(span)

    async def _cut(self, rows: Sequence[Segment], start: int | None, stop: int, closed: bool) -> Cut | None:
        """The lines of neighbouring rows that pass every filter. They begin at ``start``; where that is None, at
        the first unit that is wholly among them, and there may be none."""
        query, patterns = self.shared.query, self.shared.patterns
        inline = sum(row.size for row in rows) <= _INLINE_BYTES
        found = await self._aside(inline, self._pick, rows, start, stop, closed)
        if found is not None and query.regex and (found.picked or found.whole_lines):
            # What is shown of a line has no newline in it.
            data = found.window.data if found.whole_lines else "\n".join(text for _, text in found.picked).encode()
            numbers = await patterns.matching(query.regex, query.ignore_case, data)
            inline = len(numbers) < _INLINE_LINES
            found = await self._aside(inline and not found.whole_lines, _only, found, numbers)
        return None if found is None else await self._aside(inline, self._lines, found)

    async def _aside(self, inline: bool, call: Callable[P, T], *args: P.args, **_: P.kwargs) -> T:
        """What the call gives, from a thread unless it is small."""
        if inline:
            return call(*args, **_)
        return await asyncio.get_running_loop().run_in_executor(self.shared.threads, call, *args)

    def _pick(self, rows: Sequence[Segment], start: int | None, stop: int, closed: bool) -> Picked | None:
        shared, sieve = self.shared, self.shared.sieve
        window = joined(rows, rows[0].start if start is None else start, stop, closed)
        if start is None:
            begin = first_unit(rows[0], window.data)
            if begin is None or begin >= stop:
                return None
            window = behind(window, begin - window.start)
        if not sieve.may_hold(window.data):
            return Picked(window, [], whole(window))
        if sieve.only_regex and not shared.query.partial and lines_are_units(window.data):
            return Picked(window, [], whole(window), True)
        bounds = shared.bounds
        if self.is_backwards and not sieve.by_content:
            window = behind(window, last_lines(window.data, bounds.lines))
        if self.is_backwards or sieve.by_content:
            bounds = Bounds(len(window.data), len(window.data))
        found, end = units(window, bounds)
        if shared.query.partial and window.end == self.state.committed:
            rest = under_way(window, end)
            found += [rest] if rest is not None else []
        return Picked(window, sieve.pick(window, found), end)

    def _lines(self, found: Picked) -> Cut:
        """Lines of what was picked; no more of them than are held of one stream at a time."""
        window, picked, end = found.window, found.picked, found.end
        start, room = window.start, self.shared.bounds.size_bytes
        left: list[tuple[Unit, str]] = []
        if sum(unit.end - unit.place for unit, _ in picked) > room:
            picked = picked[::-1] if self.is_backwards else picked
            sizes = accumulate(unit.end - unit.place for unit, _ in picked)
            count = max(sum(1 for size in sizes if size <= room), 1)
            left = picked[count:]
            picked = picked[:count]
            if self.is_backwards:
                picked = picked[::-1]
                start = window.start + picked[0][0].place if left else start
            elif left:
                end = window.start + left[0][0].place
        lines = [line_of(self.state, window, unit, text) for unit, text in picked]
        return Cut(lines, start, end, not left and end >= whole(window))

    def _gap(self, row: Segment) -> list[OutputLine]:
        start, stop = max(row.start, self.low), min(row.end, self.high)
        line = gap_line(self.state, row, start, stop)
        return [line] if self.shared.sieve.gap_passes(line) else []


class Forwards(Source):
    """From ``low`` to ``high``, oldest first."""

    @property
    def cursor(self) -> int:
        return self.lines[0].start if self.lines else self.position

    @property
    def key(self) -> tuple[float, int, int]:
        at = self.lines[0].at if self.lines else self.state.first_at
        return (at, self.state.id, self.cursor)

    async def step(self) -> None:
        if self.shared.sieve.by_time and not await self._skip():
            return
        span = Span(self.state.id, self.position, self.high, limit_bytes=self._limit_bytes)
        rows = await self._rows(span)
        if not rows:
            self._end()
            return
        if rows[0].kind.is_gap:
            self.lines.extend(self._gap(rows[0]))
            self._move(min(rows[0].end, self.high))
            return
        run, closed = _neighbours(rows)
        stop = min(run[-1].end, self.high)
        at_end = stop >= self.high
        closed = closed or (at_end and (self._closed or self.high < self.state.committed))
        found = await self._cut(run, self.position, stop, closed)
        assert found is not None
        self.lines.extend(found.lines)
        if found.end == self.position:
            if at_end and found.finished:
                self._end()
            elif not at_end:
                self._limit_bytes = min(2 * self._limit_bytes, _LIMIT_MAX_BYTES)
            return
        self._limit_bytes = 2 * SEGMENT_BYTES
        self._move(found.end)
        if at_end and found.finished:
            self._end()

    def _move(self, position: int) -> None:
        self.position = position
        if position >= self.high:
            self._end()

    def _end(self) -> None:
        self.exhausted = True

    async def _skip(self) -> bool:
        """Go to the next row whose times the query covers; False if there is none."""
        while True:
            span = Span(self.state.id, self.position, self.high, bodies=False, limit_rows=_INDEX_ROWS)
            rows = await self._rows(span)
            for row in rows:
                if self.shared.sieve.covers(row.first_at, row.last_at):
                    if row.start > self.position:
                        self.position = max(self.position, row.start if row.kind.is_gap else unit_around(row))
                    return True
            if len(rows) < _INDEX_ROWS:
                self.position = max(self.position, min(self.state.line_start, self.high))
                self._end()
                return False
            self.position = max(self.position, rows[-1].start)


class Backwards(Source):
    """From ``high`` to ``low``, newest first; ``lines`` holds them in that order."""

    is_backwards = True

    def __init__(self, shared: Shared, state: StreamState, low: int, high: int, ended: bool) -> None:
        super().__init__(shared, state, low, high, ended)
        self.position = self.high

    @property
    def cursor(self) -> int:
        return self.lines[0].end if self.lines else self.position

    @property
    def key(self) -> tuple[float, int, int]:
        at = self.lines[0].at if self.lines else self.state.last_at
        return (-at, -self.state.id, -self.cursor)

    async def step(self) -> None:
        if self.shared.sieve.by_time and not await self._skip():
            return
        span = Span(self.state.id, self.low, self.position, newest_first=True, limit_bytes=self._limit_bytes)
        rows = await self._rows(span)
        if not rows:
            self.exhausted = True
            return
        if rows[0].kind.is_gap:
            self.lines.extend(self._gap(rows[0]))
            self._move(max(rows[0].start, self.low))
            return
        run = _run_back(rows)
        at_end = self.position == self.state.committed
        start = self.low if run[0].start <= self.low else None
        found = await self._cut(run, start, self.position, self._closed or not at_end)
        if found is None:
            self._limit_bytes = min(2 * self._limit_bytes, _LIMIT_MAX_BYTES)
            return
        self._limit_bytes = 2 * SEGMENT_BYTES
        self.lines.extend(reversed(found.lines))
        self._move(found.start)

    def _move(self, position: int) -> None:
        self.position = position
        if position <= self.low:
            self.exhausted = True

    async def _skip(self) -> bool:
        """Go back to the next row whose times the query covers, keeping the line that may begin in it whole."""
        stop, pending = self.position, self.position
        while True:
            span = Span(self.state.id, self.low, stop, newest_first=True, bodies=False, limit_rows=_INDEX_ROWS)
            rows = await self._rows(span)
            for row in rows:
                if pending >= row.end:
                    self.position = min(self.position, pending)
                if self.shared.sieve.covers(row.first_at, row.last_at):
                    return True
                pending = min(row.line_start, row.start)
                stop = row.start
            if len(rows) < _INDEX_ROWS:
                self.exhausted = True
                return False


def _only(found: Picked, numbers: Sequence[int]) -> Picked:
    """What was picked, without what does not match."""
    if not found.whole_lines:
        return replace(found, picked=[found.picked[number] for number in numbers])
    data = found.window.data
    cut = units(found.window, Bounds(len(data), len(data)))[0] if numbers else []
    chosen = [cut[number] for number in numbers if number < len(cut)]
    return replace(found, picked=[(unit, shown(data[unit.place : unit.end])) for unit in chosen])


def _neighbours(rows: Sequence[Segment]) -> tuple[Sequence[Segment], bool]:
    """The rows before the first gap, and whether there is one."""
    for place, row in enumerate(rows):
        if row.kind.is_gap:
            return rows[:place], True
    return rows, False


def _run_back(rows: Sequence[Segment]) -> Sequence[Segment]:
    """Of rows from the newest back, those behind the last gap, oldest first."""
    run, _ = _neighbours(rows)
    return list(reversed(run))
