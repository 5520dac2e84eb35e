"""What ranks print, as lines that carry their names. Pure: bytes in, bytes out, time is an argument."""

from __future__ import annotations

import collections

LINE_MAX = 8192
"""A longer line is cut."""
PROGRESS_S = 1.0
"""Of the lines that end with a carriage return (progress bars), one in so much time is kept, and the last."""
TAIL_LINES = 20
KEPT_BYTES = 65536


class Lines:
    """What one rank prints on one stream, as lines that carry its name."""

    def __init__(self, prefix: bytes, tail: collections.deque[bytes]) -> None:
        self._prefix = prefix
        self._tail = tail
        self._partial = b""
        self._progress = b""  # the newest that was not shown
        self._shown_at = -PROGRESS_S

    def feed(self, data: bytes, now: float) -> bytes:
        """What is to be written now."""
        text = self._partial + data
        found: list[bytes] = []
        if b"\r" not in text:
            *lines, rest = text.split(b"\n")
            if lines and self._progress:
                self._show_progress(found, now)
            for line in lines:
                self._line(line, found)
        else:
            rest = self._mixed(text, found, now)
        while len(rest) > LINE_MAX:
            self._line(rest[:LINE_MAX], found)
            rest = rest[LINE_MAX:]
        self._partial = rest
        return b"".join(found)

    def _mixed(self, text: bytes, found: list[bytes], now: float) -> bytes:
        held = b"\r" if text.endswith(b"\r") else b""  # half of a line end, perhaps
        text = text[: len(text) - len(held)].replace(b"\r\n", b"\n")
        *lines, rest = text.split(b"\n")
        for line in lines:
            *before, last = line.split(b"\r")
            for piece in before:
                self._bar(piece, found, now)
            if self._progress:
                self._show_progress(found, now)
            self._line(last, found)
        *before, rest = rest.split(b"\r")
        for piece in before:
            self._bar(piece, found, now)
        return rest + held

    def _bar(self, piece: bytes, found: list[bytes], now: float) -> None:
        if piece.strip():
            self._progress = piece
            if now - self._shown_at >= PROGRESS_S:
                self._show_progress(found, now)

    def _show_progress(self, found: list[bytes], now: float) -> None:
        piece, self._progress = self._progress, b""
        self._shown_at = now
        self._line(piece, found)

    def _line(self, line: bytes, found: list[bytes]) -> None:
        while len(line) > LINE_MAX:
            self._line(line[:LINE_MAX], found)
            line = line[LINE_MAX:]
        found.append(b"%s%s\n" % (self._prefix, line))
        if line.strip():
            self._tail.append(line)

    def due(self) -> float | None:
        """When a progress that waits must be shown."""
        return self._shown_at + PROGRESS_S if self._progress else None

    def tick(self, now: float) -> bytes:
        found: list[bytes] = []
        if self._progress and now - self._shown_at >= PROGRESS_S:
            self._show_progress(found, now)
        return b"".join(found)

    def close(self, now: float) -> bytes:
        """The last line, though nothing ends it."""
        found: list[bytes] = []
        if self._progress:
            self._show_progress(found, now)
        for piece in self._partial.split(b"\r"):
            if piece:
                self._line(piece, found)
        self._partial = b""
        return b"".join(found)


class Raw:
    """A launcher's own words pass as they are; their end is remembered."""

    def __init__(self, tail: collections.deque[bytes]) -> None:
        self._tail = tail
        self._partial = b""

    def feed(self, data: bytes, now: float) -> bytes:
        *lines, self._partial = (self._partial + data)[-KEPT_BYTES:].split(b"\n")
        self._tail.extend(line[-LINE_MAX:] for line in lines[-TAIL_LINES:] if line.strip())
        return data

    def due(self) -> float | None:
        return None

    def tick(self, now: float) -> bytes:
        return b""

    def close(self, now: float) -> bytes:
        if self._partial.strip():
            self._tail.append(self._partial[-LINE_MAX:])
        self._partial = b""
        return b""
