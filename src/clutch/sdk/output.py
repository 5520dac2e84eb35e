"""Reading a task's output: which lines, and how far a reader has come. Pure.

A reader that is interrupted, or whose master goes away, goes on from where it was: what it has heard and not yet shown
it keeps, and it asks again from the cursor behind what it has heard. So no line is lost and none comes twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypedDict, Unpack

import msgspec

from clutch.wire.ids import TaskId
from clutch.wire.output import PAGE_MAX_LINES, OutputLine, OutputPage, OutputQuery


class Filters(TypedDict, total=False):
    """Which lines; see ``OutputQuery``."""

    role: str
    ranks: Sequence[int]
    epochs: Sequence[int]
    streams: Sequence[str]
    since: float | None
    until: float | None
    text: str
    regex: str
    ignore_case: bool
    level: str | None
    head: int
    tail: int
    limit: int
    partial: bool


def output_query(task: str, **filters: Unpack[Filters]) -> OutputQuery:
    return msgspec.convert({**filters, "task": TaskId(task)}, OutputQuery)


def first_page(query: OutputQuery) -> OutputQuery:
    """The query for the first page of what is there now. Of the last lines as many as can be come in one page."""
    return msgspec.structs.replace(query, limit=min(query.tail, PAGE_MAX_LINES)) if query.tail else query


def next_page(query: OutputQuery, page: OutputPage) -> OutputQuery:
    """The query for what comes after a page; how many lines in all is counted down, because each answer starts anew."""
    if query.tail:
        return msgspec.structs.replace(query, before=page.before, tail=query.tail - len(page.lines))
    head = query.head - len(page.lines) if query.head else 0
    return msgspec.structs.replace(query, after=page.after, head=head)


def parse_page(said: bytes) -> OutputPage:
    """One line of a followed answer."""
    return msgspec.json.decode(said, type=OutputPage)


class _State(msgspec.Struct, frozen=True):
    cursor: str = ""
    unshown: tuple[OutputLine, ...] = ()
    task_ended: bool = False
    said_all: bool = False


class Follower:
    """One reader of one task. All it knows is one value that is replaced whole, so an interrupt (Ctrl-C) between any
    two steps leaves it whole."""

    def __init__(self, query: OutputQuery) -> None:
        self._query = query
        self._state = _State(query.after)

    @property
    def unshown(self) -> tuple[OutputLine, ...]:
        """Lines that were heard and not yet shown."""
        return self._state.unshown

    @property
    def finished(self) -> bool:
        """The task has ended, and every line of it was shown."""
        return self._state.said_all and not self._state.unshown

    def query(self) -> OutputQuery:
        """What to ask for next: what was asked for, from where we are. How many lines at the beginning or the end is
        a question for the first time only."""
        if not self._state.cursor:
            return self._query
        return msgspec.structs.replace(self._query, after=self._state.cursor, tail=0)

    def hear(self, page: OutputPage) -> None:
        state = self._state
        unshown = (*state.unshown, *page.lines)
        self._state = msgspec.structs.replace(state, cursor=page.after or state.cursor, unshown=unshown)

    def passed(self, line: OutputLine) -> None:
        """A line was shown. Saying so twice is the same as saying so once."""
        state = self._state
        if state.unshown and state.unshown[0] is line:
            self._state = msgspec.structs.replace(state, unshown=state.unshown[1:])

    def rest(self) -> Iterator[OutputLine]:
        """What was heard and not yet shown; each line is behind us when the next one is asked for."""
        while self.unshown:
            line = self.unshown[0]
            yield line
            self.passed(line)

    def stream_ended(self, task_ended: bool) -> None:
        """The master ended the stream: because the task has ended, or because the master itself goes. A stream that
        began after the task was known to have ended has said all there will ever be."""
        state = self._state
        self._state = msgspec.structs.replace(state, task_ended=task_ended, said_all=state.task_ended)
