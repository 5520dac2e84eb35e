"""Lines of one stream, a stretch at a time, forwards or backwards, within bounds. What reads touches the store here."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
from msgspec.structs import replace

from clutch.master.output.base import OutputStore
from clutch.master.output.cutting import (
    Bounds,
    Cut,
    behind,
    cut,
    first_unit,
    gap_line,
    joined,
    last_lines,
    under_way,
    unit_around,
    unit_at_end,
)
from clutch.master.output.patterns import Patterns
from clutch.master.output.records import SEGMENT_BYTES, Segment, Span, StreamState
from clutch.master.output.sieve import Sieve
from clutch.wire.output import OutputLine, OutputQuery

_INLINE_BYTES = 16 * 2**10
"""Packed bytes that are looked at on the event loop; more go to a thread."""
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


class Source:
    """A stream that is being read. ``step`` reads on until ``exhausted``; what it finds is in ``lines``.

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
        self._limit_bytes = 2 * SEGMENT_BYTES

    @property
    def cursor(self) -> int:
        """Where a later reading goes on, so that it sees what was not taken from ``lines``."""
        raise NotImplementedError

    @property
    def key(self) -> tuple[float, int, int]:
        """The place of the next line among those of other streams; a guess while none was read."""
        raise NotImplementedError

    async def step(self) -> None:
        raise NotImplementedError

    async def _rows(self, span: Span) -> list[Segment]:
        return await self.shared.store.segments(span)

    async def _cut(self, rows: Sequence[Segment], start: int | None, stop: int, closed: bool) -> Cut | None:
        """The lines of neighbouring rows that pass every filter. They begin at ``start``; where that is None, at
        the first unit that is wholly among them, and there may be none."""
        shared = self.shared
        if sum(row.size for row in rows) <= _INLINE_BYTES:
            found = self._cut_now(rows, start, stop, closed)
        else:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(shared.threads, self._cut_now, rows, start, stop, closed)
        if found is not None and found.lines and shared.query.regex:
            texts = [line.text for line in found.lines]
            numbers = await shared.patterns.matching(shared.query.regex, shared.query.ignore_case, texts)
            found = replace(found, lines=[found.lines[number] for number in numbers])
        return found

    def _cut_now(self, rows: Sequence[Segment], start: int | None, stop: int, closed: bool) -> Cut | None:
        shared = self.shared
        window = joined(rows, rows[0].start if start is None else start, stop, closed)
        if start is None:
            begin = first_unit(rows[0], window.data)
            if begin is None or begin >= stop:
                return None
            window = behind(window, begin - window.start)
        bounds = shared.bounds
        if self.is_backwards:
            bounds = Bounds(len(window.data), len(window.data))
            if not shared.sieve.by_content:
                window = behind(window, last_lines(window.data, shared.bounds.lines))
        elif shared.sieve.by_content:
            bounds = Bounds(bounds.size_bytes, len(window.data))
        found = cut(window, self.state, bounds, shared.sieve.may_hold)
        lines = found.lines
        if shared.query.partial and found.under_way and window.end == self.state.committed:
            lines.append(under_way(window, self.state, found.end))
        return replace(found, lines=[line for line in lines if shared.sieve.passes(line)])

    def _gap(self, row: Segment) -> list[OutputLine]:
        start, stop = max(row.start, self.low), min(row.end, self.high)
        line = gap_line(self.state, row, start, stop)
        return [line] if self.shared.sieve.passes(line) else []


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
            if at_end:
                self._end()
            else:
                self._limit_bytes = min(2 * self._limit_bytes, _LIMIT_MAX_BYTES)
            return
        self._limit_bytes = 2 * SEGMENT_BYTES
        self._move(found.end)
        if found.under_way and at_end:
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
        is_open = self.high == state.committed and not self._closed
        self.newest = unit_at_end(state) if is_open else self.high
        """Where a reading towards newer lines goes on: behind the last whole line."""

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
        begin, kept = found.start, found.lines
        room = self.shared.bounds.size_bytes
        if len(kept) > 1 and found.end - begin > room:
            kept = [line for line in kept if line.start >= found.end - room] or kept[-1:]
            begin = kept[0].start
        self.lines.extend(reversed(kept))
        self._move(begin)

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
