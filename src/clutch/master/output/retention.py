"""Which segments go when output is too old or too much: those of ended tasks, the oldest first. Pure decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from clutch.master.output.building import removed
from clutch.master.output.records import Aged, Kind, Segment, StreamChange, StreamState
from clutch.wire.ids import TaskId
from clutch.wire.output import RetentionPolicy


class Excess:
    """What is left to remove in one pass."""

    def __init__(self, policy: RetentionPolicy, now: float, size_bytes: int) -> None:
        self._before = now - policy.age_max_s if policy.age_max_s else float("-inf")
        self._bytes = max(size_bytes - policy.size_max_bytes, 0) if policy.size_max_bytes else 0

    def choose(self, aged: Iterable[Aged], is_live: Callable[[TaskId], bool]) -> tuple[dict[int, list[int]], bool]:
        """Starts of segments to remove by stream, from candidates in order of age; and whether younger ones need not
        be looked at."""
        chosen: dict[int, list[int]] = {}
        for one in aged:
            if one.last_at >= self._before and self._bytes <= 0:
                return chosen, True
            if is_live(TaskId(one.task)):
                continue
            chosen.setdefault(one.stream, []).append(one.start)
            self._bytes -= one.size
        return chosen, False


def taken_out(state: StreamState, rows: Sequence[Segment], starts: Sequence[int]) -> StreamChange:
    """The change that puts gap records in the place of segments.

    ``rows`` are all of the stream's rows around them, in order, those that go, those that are gaps already and those
    that stay. A line that began in what goes begins anew in what stays.
    """
    gone = dict.fromkeys(starts)
    puts: list[Segment] = []
    drops: list[int] = []
    run: list[Segment] = []
    for row in rows:
        if row.start in gone or row.kind is Kind.REMOVED:
            run.append(row)
            continue
        puts += removed(run)
        drops += [one.start for one in run]
        if run and not row.kind.is_gap and row.line_start < row.start:
            puts.append(replace(row, line_start=row.start, line_at=row.first_at))
            drops.append(row.start)
        run = []
    puts += removed(run)
    drops += [one.start for one in run]
    changed = replace(state, version=state.version + 1)
    if state.tail_rows:
        left = [row for row in rows if row.kind is Kind.TAIL and row.start not in gone]
        changed = replace(changed, tail_rows=len(left), tail_start=left[0].start if left else state.committed)
    if rows and rows[-1].end == state.committed and run:
        changed = replace(changed, line_start=state.committed, line_at=0.0)
    return StreamChange(changed, tuple(puts), tuple(drops))
