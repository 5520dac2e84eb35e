"""From new bytes to rows: what one stream's part of a commit puts and drops. Pure, and the only place that packs.

New bytes become a small *tail* row, so that they are durable at once. When tail and news together fill a segment (or
the stream ends, or a gap begins) they are packed together and the tail rows go, in the same commit.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace

from clutch.master.output.packing import Marks, microseconds, pack, unpack
from clutch.master.output.records import (
    SEGMENT_BYTES,
    TAIL_ROWS_MAX,
    Kind,
    Segment,
    StreamChange,
    StreamState,
)
from clutch.master.output.taking import News

_NEAR_BYTES = 16 * 2**10
"""A segment ends at a newline if one is this near to where it would end."""


def needs_tail(state: StreamState, news: News) -> bool:
    """Whether the stream's tail rows will be packed, so that they must be read first."""
    if not state.tail_rows:
        return False
    has_gap = any(len(item) == 2 for item in news.items)
    return has_gap or _packs(state.tail_bytes + news.size, state.tail_rows, news.done)


def _packs(size: int, rows: int, ends: bool) -> bool:
    return ends or size >= SEGMENT_BYTES or rows >= TAIL_ROWS_MAX


def build(state: StreamState, news: News, tail: Sequence[Segment], now: float) -> StreamChange:
    """The change that makes the news durable. ``tail`` holds the stream's tail rows where ``needs_tail`` says so."""
    return _Builder(state, tail).change(news, now)


class _Builder:
    def __init__(self, state: StreamState, tail: Sequence[Segment]) -> None:
        self.state = state
        self.tail = tail
        self.puts: list[Segment] = []
        self.drops: list[int] = []

    def change(self, news: News, now: float) -> StreamChange:
        parts: list[bytes] = []
        offsets: list[int] = []
        times: list[int] = []
        for item in news.items:
            if len(item) == 3:
                offset, at, data = item
                time = microseconds(at)
                if not times or times[-1] != time:
                    offsets.append(offset)
                    times.append(time)
                parts.append(data)
            else:
                self._flush(b"".join(parts), Marks(offsets, times), True)
                self._gap(*item, now)
                parts, offsets, times = [], [], []
        self._flush(b"".join(parts), Marks(offsets, times), news.done)
        state = replace(self.state, version=self.state.version + 1, done=news.done)
        return StreamChange(state, tuple(self.puts), tuple(self.drops))

    def _flush(self, data: bytes, marks: Marks, ends: bool) -> None:
        """Make bytes rows: a tail row, or packed segments together with the tail before them."""
        state = self.state
        if not data and not (ends and state.tail_rows):
            return
        start = state.committed
        if not _packs(state.tail_bytes + len(data), state.tail_rows, ends):
            self._put(Kind.TAIL, start, data, marks)
            self.state = replace(self.state, tail_rows=state.tail_rows + 1)
            return
        if state.tail_rows:
            start, data, marks = self._take_tail(data, marks)
        for low, high in slices(data):
            self._put(Kind.PACKED, start + low, memoryview(data)[low:high], marks)
        self.state = replace(self.state, tail_start=self.state.committed, tail_rows=0)

    def _take_tail(self, data: bytes, marks: Marks) -> tuple[int, bytes, Marks]:
        """The tail rows' bytes with the new ones behind them; the state goes back to where the tail began."""
        parts: list[bytes] = []
        offsets: list[int] = []
        times: list[int] = []
        for row in self.tail:
            old, old_marks = unpack(row)
            parts.append(old)
            offsets += old_marks.offsets
            times += old_marks.times
            self.drops.append(row.start)
        first = self.tail[0]
        self.state = replace(
            self.state,
            committed=first.start,
            lines=first.first_line,
            line_start=first.line_start,
            line_at=first.line_at,
        )
        self.tail = ()
        joined = Marks([*offsets, *marks.offsets], [*times, *marks.times])
        return first.start, b"".join([*parts, data]), joined

    def _put(self, kind: Kind, start: int, data: bytes | memoryview, marks: Marks) -> None:
        state = self.state
        end = start + len(data)
        raw = bytes(data)
        low, high = marks.range(start, end)
        line_at = marks.at(start) if state.line_start == start else state.line_at
        body = pack(raw, start, marks)
        lines = raw.count(b"\n")
        self.puts.append(
            Segment(
                start, end, kind, low, high, state.lines, lines, state.line_start, line_at,
                size=len(body), checksum=zlib.crc32(body), body=body,
            )
        )  # fmt: skip
        line_start = state.line_start
        if lines:
            line_start = start + raw.rfind(b"\n") + 1
            line_at = marks.at(line_start) if line_start < end else 0.0
        self.state = replace(
            state,
            committed=end,
            lines=state.lines + lines,
            line_start=line_start,
            line_at=line_at,
            first_at=min(state.first_at or low, low),
            last_at=max(state.last_at, high),
        )

    def _gap(self, start: int, end: int, now: float) -> None:
        """The bytes are gone, and with them the end of the line before them and the beginning of the one after."""
        state = self.state
        at = state.last_at or now
        self.puts.append(Segment(start, end, Kind.LOST, at, at, state.lines, 0, start, at))
        self.state = replace(
            state,
            committed=end,
            line_start=end,
            line_at=0.0,
            tail_start=end,
            tail_rows=0,
            first_at=state.first_at or at,
            last_at=at,
        )


def slices(data: bytes) -> list[tuple[int, int]]:
    """Where to cut bytes into segments of about equal size, behind a newline where one is near."""
    count = max(len(data) // SEGMENT_BYTES, 1)
    wanted = [len(data) * n // count for n in range(1, count)]
    edges = [0]
    for edge in wanted:
        near = data.rfind(b"\n", max(edge - _NEAR_BYTES, edges[-1]), edge)
        edges.append(near + 1 if near >= 0 else edge)
    edges.append(len(data))
    return [(low, high) for low, high in pairwise(edges) if low < high]


def removed(rows: Sequence[Segment]) -> list[Segment]:
    """Gap rows that take the place of these neighbouring rows, one for each stretch without a hole."""
    found: list[Segment] = []
    for row in rows:
        if found and found[-1].end == row.start:
            last = found[-1]
            lines = row.first_line + row.lines - last.first_line
            times = (min(last.first_at, row.first_at), max(last.last_at, row.last_at))
            found[-1] = replace(
                last, end=row.end, lines=lines, first_at=times[0], last_at=times[1], line_at=last.line_at
            )
        else:
            found.append(replace(row, kind=Kind.REMOVED, size=0, checksum=0, body=b""))
    return found
