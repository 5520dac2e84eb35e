"""What the journal still tells of a thing: its story, and the spec of a task that has ended.

Rows are in the order of their time, so the row of a moment is found by halving. A story is read from the submission on;
where too much happened meanwhile, its middle is left out and a line says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from clutch.backends.journal.base import Journal
from clutch.core.recorded import Recorded, from_row
from clutch.core.story import line, subjects
from clutch.wire.errors import NotFound
from clutch.wire.facts import TaskSubmitted
from clutch.wire.journal import Row
from clutch.wire.specs import TaskSpec

READ_ROWS = 2_000
ROWS_MAX = 40_000
"""So many rows at each end of a story are looked at."""
LINES_MAX = 1_000


class History:
    """The past, as far as the journal has not forgotten it. ``last`` is the index of its last row."""

    def __init__(self, journal: Journal, last: int) -> None:
        self._journal = journal
        self._last = last

    async def before(self, at: float) -> int:
        """The index behind which the rows of this moment begin."""
        low, high = 0, self._last
        while low < high:
            middle = (low + high) // 2
            row = await self._row_behind(middle)
            if row is None or row.at < at:  # forgotten, or earlier
                low = middle + 1
            else:
                high = middle
        return low

    async def first(self) -> int:
        """The index behind which anything is remembered at all."""
        return await self.before(float("-inf"))

    async def _row_behind(self, index: int) -> Row | None:
        try:
            rows = await self._journal.read(index, 1)
        except NotFound:
            return None
        return rows[0] if rows else None

    async def rows(self, after: int, until_at: float, rows_max: int = ROWS_MAX) -> AsyncIterator[Row]:
        """Rows behind an index up to a moment, at most so many."""
        end = min(self._last, after + rows_max)
        while after < end:
            rows = await self._journal.read(after, min(READ_ROWS, end - after))
            if not rows:
                return
            for row in rows:
                if row.at > until_at:
                    return
                yield row
            after = rows[-1].index

    async def spec(self, task: str, submitted_at: float) -> TaskSpec | None:
        """What a task was submitted with; None when that is forgotten."""
        try:
            async for row in self.rows(await self.before(submitted_at), submitted_at):
                if row.kind == "task_submitted" and task.encode() in row.payload:
                    fact = from_row(row).fact
                    if isinstance(fact, TaskSubmitted) and fact.task == task:
                        return fact.spec
        except NotFound:
            return None
        return None

    async def story(self, subject: str, since: float, until: float) -> list[str]:
        """One line for each fact about a thing, oldest first, with a line for what was left out."""
        start = await self.before(since)
        first = [entry async for entry in self._about(subject, start, until)]
        seen = min(self._last, start + ROWS_MAX)
        end = self._last if until == float("inf") else min(self._last, await self.before(until) + READ_ROWS)
        lines = [line(entry) for entry in first]
        if end > seen:
            tail = max(seen, end - ROWS_MAX)
            if tail > seen:
                lines.append(f"... rows {seen + 1} to {tail} of the journal are left out ...")
            lines += [line(entry) async for entry in self._about(subject, tail, until)]
        if len(lines) > LINES_MAX:
            half = LINES_MAX // 2
            lines = [*lines[:half], f"... {len(lines) - 2 * half} lines are left out ...", *lines[-half:]]
        return lines

    async def _about(self, subject: str, after: int, until: float) -> AsyncIterator[Recorded]:
        needle = subject.encode()
        async for row in self.rows(after, until):
            if needle in row.payload:  # most rows are about something else: those need not be decoded
                recorded = from_row(row)
                if subject in subjects(recorded.fact):
                    yield recorded
