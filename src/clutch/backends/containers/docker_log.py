"""What of an engine's log is new, so that output read twice from different places comes out once. Pure.

While a keeper lives it reads a container's output as it is written (*attach*). After a break, its own or the engine's,
it reads the engine's log, which begins with bytes the spool already has. Both are the same bytes, so an offset in one
is an offset in the other, with three exceptions that are handled here: an engine that was killed lost what it had not
yet written to its log though it had handed it out; a log that outgrew its cap has lost its beginning; and a log gives
back a line of more than 16 KiB in parts, without the newline that ended it.
"""

from __future__ import annotations

import time

FRAME_HEADER = 8
STAMP_BYTES = 30
"""``2026-11-15T11:40:27.493579018Z``: always as long, so that stamps compare as text."""
PART_BYTES = 16 * 1024
"""Longer lines come in parts of exactly this size and a shorter last one."""
Stamp = str


class Frames:
    """Cuts a multiplexed stream of an engine into (stream, bytes): as written for *attach*, messages for a log."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, data: bytes) -> list[tuple[int, bytes]]:
        self._data += data
        found: list[tuple[int, bytes]] = []
        position = 0
        while position + FRAME_HEADER <= len(self._data):
            length = int.from_bytes(self._data[position + 4 : position + FRAME_HEADER], "big")
            end = position + FRAME_HEADER + length
            if end > len(self._data):
                break
            found.append((self._data[position], bytes(self._data[position + FRAME_HEADER : end])))
            position = end
        del self._data[:position]
        return found


def stamp(at: float) -> Stamp:
    """A time as the log writes it."""
    whole = int(at)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{int((at - whole) * 1e9):09d}Z"


class Break:
    """After this time a message's place in its stream is its place in the log plus a shift, found with the first."""

    def __init__(self, at: Stamp, shifts: dict[int, int]) -> None:
        self.at = at
        self.shifts = shifts

    def __str__(self) -> str:
        return " ".join([self.at, *(f"{stream}:{shift}" for stream, shift in sorted(self.shifts.items()))])

    @classmethod
    def parse(cls, text: str) -> Break:
        at, *shifts = text.split()
        return cls(at, {int(stream): int(shift) for stream, _, shift in (word.partition(":") for word in shifts)})


class LogPosition:
    """One pass over a log from its beginning. ``have`` is how far the spool is in each stream when it begins."""

    def __init__(self, have: dict[int, int], head: Stamp, breaks: list[Break]) -> None:
        self.head = head
        self.breaks = breaks
        self.changed = False
        """Whether ``head`` or ``breaks`` should be written down."""
        self._have = dict(have)
        self._read = dict.fromkeys(have, 0)
        self._in_parts = dict.fromkeys(have, False)
        self._begun = False
        self._beheaded = False

    def new(self, stream: int, payload: bytes, last_at: float) -> bytes:
        """The part of a message that is not in the spool. ``last_at`` is when that was last written."""
        at, data = payload[:STAMP_BYTES].decode("latin-1"), self._whole(stream, payload[STAMP_BYTES + 1 :])
        if not self._begun:
            self._begin(at, last_at)
        place = self._read[stream]
        self._read[stream] += len(data)
        latest = next((one for one in reversed(self.breaks) if one.at < at), None)
        if latest is not None:
            if stream not in latest.shifts:
                latest.shifts[stream] = self._have[stream] - place
                self.changed = True
            place += latest.shifts[stream]
        elif self._beheaded:
            return b""  # its place is unknown, but the spool was written after it
        fresh = data[max(self._have[stream] - place, 0) :]
        self._have[stream] += len(fresh)
        return fresh

    def _whole(self, stream: int, data: bytes) -> bytes:
        """A message with its newline. The last part of a long line comes without, as if the stream had ended there; an
        unterminated long line at the very end of a stream cannot be told from it and gets a newline too."""
        if data.endswith(b"\n"):
            self._in_parts[stream] = False
        elif len(data) == PART_BYTES:
            self._in_parts[stream] = True
        elif self._in_parts[stream]:
            self._in_parts[stream] = False
            return data + b"\n"
        return data

    def _begin(self, at: Stamp, last_at: float) -> None:
        self._begun = True
        if self.head and self.head != at:
            self._beheaded = True
            self.breaks[:] = [Break(stamp(last_at), {})]
        self.changed = self.head != at
        self.head = at
