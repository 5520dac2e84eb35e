"""Which lines a query asks for: what is looked at for a whole stretch of bytes, and what for each line. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from clutch.master.output.cutting import Unit, Window
from clutch.master.output.text import level_of, shown
from clutch.wire.errors import BadRequest, TooLarge
from clutch.wire.output import LEVELS, PAGE_MAX_LINES, PATTERN_MAX, OutputLine, OutputQuery

_REPLACED = "\ufffd"


class Sieve:
    """A query's filters on what a line says and when; which streams are read is not its business."""

    def __init__(self, query: OutputQuery) -> None:
        self._query = query
        self._since = query.since
        self._until = query.until
        self._text = query.text.lower() if query.ignore_case else query.text
        self._least = LEVELS.index(query.level) if query.level else -1
        exact = query.text and not query.ignore_case and _REPLACED not in query.text
        self._bytes = query.text.encode("utf-8", "replace") if exact else b""
        self.by_content = bool(query.text or query.regex or query.level)
        self.by_time = query.since is not None or query.until is not None
        self.only_regex = bool(query.regex) and not (query.text or query.level or self.by_time)

    def may_hold(self, data: bytes) -> bool:
        """Whether any line of these bytes can pass; cheap, and asked before they are cut into lines."""
        if self._bytes:
            return self._bytes in data
        return not self._text or self._text in data.decode("utf-8", "replace").lower()

    def covers(self, first_at: float, last_at: float) -> bool:
        """Whether a stretch with these times can hold a line that passes."""
        if self._since is not None and last_at < self._since:
            return False
        return self._until is None or first_at < self._until

    def gap_passes(self, line: OutputLine) -> bool:
        """What is gone is shown wherever lines are not chosen by what they say."""
        return not self.by_content and self.covers(line.at, line.at)

    def pick(self, window: Window, units: Sequence[Unit]) -> list[tuple[Unit, str]]:
        """The units that pass everything but the regular expression, with what is shown of them."""
        found: list[tuple[Unit, str]] = []
        data, lowers = window.data, self._query.ignore_case
        for unit in self._near(data, units) if self._bytes else units:
            if self.by_time:
                at = window.marks.at(window.start + unit.place)
                if not self.covers(at, at):
                    continue
            text = shown(data[unit.place : unit.end])
            if self._text and self._text not in (text.lower() if lowers else text):
                continue
            if self._least >= 0:
                level = level_of(text)
                if level is None or LEVELS.index(level) < self._least:
                    continue
            found.append((unit, text))
        return found

    def _near(self, data: bytes, units: Sequence[Unit]) -> Iterator[Unit]:
        """The units whose bytes hold the text, found without looking at the others."""
        ends = [unit.end for unit in units]
        place = units[0].place if units else 0
        while (hit := data.find(self._bytes, place)) >= 0:
            number = bisect_right(ends, hit)
            if number >= len(units):
                return
            yield units[number]
            place = units[number].end


def check(query: OutputQuery) -> None:
    """``BadRequest`` or ``TooLarge`` for a query that cannot be answered."""
    task = str(query.task)
    for name in ("head", "tail", "limit"):
        value = getattr(query, name)
        least = 1 if name == "limit" else 0
        if value < least:
            raise BadRequest(f"{name} is {value}, at least {least}", object=task, path=name)
        if value > PAGE_MAX_LINES and name != "head":
            raise TooLarge(
                f"{name} is {value}, at most {PAGE_MAX_LINES}", object=task, next_step="Read page by page.", path=name
            )
    for name in ("text", "regex"):
        if len(getattr(query, name)) > PATTERN_MAX:
            raise TooLarge(f"{name} has more than {PATTERN_MAX} characters", object=task, path=name)
    if query.head and query.tail:
        raise BadRequest("head and tail cannot both be asked for", object=task, next_step="Leave one of them out.")
