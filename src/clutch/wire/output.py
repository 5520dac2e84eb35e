"""Asking for what a task printed, and what is answered: lines, pages of them, and cursors to go on from.

A *line* is what a reader sees: bytes up to a newline, decoded as UTF-8 (what is not becomes U+FFFD), and where a
progress bar rewrote it with carriage returns, its last state. A line longer than ``LINE_MAX_BYTES`` comes as several,
all but the last marked ``cut``. Bytes that are gone are a line of their own. The exact bytes are kept and can be had.

Lines of several streams and ranks come in the order of the time their first byte was written, then by offset; each
stream's own lines always in order. A cursor says how far each stream was read, so a page after it never repeats a line
and never misses one that an agent ships late.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from clutch.wire.ids import Epoch, Fence, MemberId, TaskId

LINE_MAX_BYTES = 32 * 2**10
"""A longer line is shown in parts of this size."""
PAGE_MAX_LINES = 10_000
STREAMS_MAX = 4_096
"""So many streams (two for each incarnation of each member) can be read together; ``TooLarge`` beyond that."""
PATTERN_MAX = 1_000
"""Characters of a text or regular expression to look for."""

Stream = Literal["stdout", "stderr"]
Level = Literal["debug", "info", "warning", "error", "critical"]
LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error", "critical")
"""From the least to the most serious."""

LineKind = Literal["line", "lost", "removed"]
"""``lost``: bytes that never arrived (dropped at the spool's cap, or lost with their machine); ``removed``: by
retention."""


class OutputQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which lines of a task. Empty means any; everything that is given must hold.

    ``head`` and ``tail`` bound the whole answer (the first or the last so many lines that match), ``limit`` one page of
    it. ``after`` and ``before`` are cursors of an earlier page.
    """

    task: TaskId
    role: str = ""
    ranks: tuple[int, ...] = ()
    epochs: tuple[Epoch, ...] = ()
    streams: tuple[Stream, ...] = ()
    since: float | None = None
    """Seconds since 1970; a line's time is that of its first byte."""
    until: float | None = None
    """Lines before this moment."""
    text: str = ""
    """The line contains this."""
    regex: str = ""
    """The line contains a match of this (Python's ``re``)."""
    ignore_case: bool = False
    level: Level | None = None
    """Lines that name this level or a more serious one near their beginning."""
    head: int = 0
    tail: int = 0
    limit: int = 1_000
    after: str = ""
    before: str = ""
    partial: bool = False
    """Also show a line that has no end yet. It comes again, with the same ``start``, when there is more of it."""


class OutputLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of one stream. ``start`` and ``end`` are byte offsets, newline included; ``number`` counts from 0."""

    member: MemberId
    fence: Fence
    stream: str
    start: int
    end: int
    number: int
    at: float
    text: str
    level: Level | None = None
    kind: LineKind = "line"
    cut: bool = False
    """The line goes on in the next part."""
    partial: bool = False
    """It has no end yet."""


class OutputPage(msgspec.Struct, frozen=True):
    """Lines in order, oldest first. ``after`` leads to newer lines, ``before`` to older ones."""

    lines: tuple[OutputLine, ...]
    after: str
    before: str
    more: bool
    """There may be more in the direction that was asked for. A page may be short, even empty, and have more: a search
    answers with what it found in its time."""


class RetentionPolicy(msgspec.Struct, frozen=True):
    """How much output is kept. What is older, or too much, goes from ended tasks, the oldest first. 0: no bound."""

    age_max_s: float = 0.0
    size_max_bytes: int = 0
    """Of stored (compressed) bytes."""


class Retained(msgspec.Struct, frozen=True):
    """What a pass of retention removed, and what is stored now."""

    segments: int = 0
    removed_bytes: int = 0
    kept_bytes: int = 0
