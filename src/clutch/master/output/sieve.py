"""Which lines a query asks for: what is looked at for a whole stretch of bytes, and what for each line. Pure."""

from __future__ import annotations

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

    def may_hold(self, data: bytes) -> bool:
        """Whether any line of these bytes can pass; cheap, and asked before they are cut into lines."""
        return not self._bytes or self._bytes in data

    def covers(self, first_at: float, last_at: float) -> bool:
        """Whether a stretch with these times can hold a line that passes."""
        if self._since is not None and last_at < self._since:
            return False
        return self._until is None or first_at < self._until

    def passes(self, line: OutputLine) -> bool:
        """Everything but the regular expression."""
        if not self.covers(line.at, line.at):
            return False
        if line.kind != "line":
            return not self.by_content
        if self._least >= 0 and (line.level is None or LEVELS.index(line.level) < self._least):
            return False
        if not self._text:
            return True
        return self._text in (line.text.lower() if self._query.ignore_case else line.text)


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
