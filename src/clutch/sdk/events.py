"""Server-sent events of the journal: from lines to events, remembering where to go on. Pure."""

from __future__ import annotations

import re

import msgspec

from clutch.wire.api import EventView

_ROW = re.compile(rb": (?:from|at) row (\d+)")


class EventStream:
    """One reader. ``after`` is the row to go on behind, also when nothing for it happened for long."""

    def __init__(self, after: str = "") -> None:
        self.after = after
        self._data: list[bytes] = []

    def hear(self, line: bytes) -> EventView | None:
        """The event that a line completes, if it does."""
        line = line.removesuffix(b"\r")
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif line.startswith(b":"):
            found = _ROW.match(line)
            if found is not None:
                self.after = found[1].decode()
        elif not line and self._data:
            event = msgspec.json.decode(b"\n".join(self._data), type=EventView)
            self._data = []
            self.after = str(event.index)
            return event
        return None
