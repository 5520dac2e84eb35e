"""A task's output on this terminal. Values in, text and bytes out; who calls writes them.

Two ways: ``line_text`` for people who read lines, with labels and times; ``Exact`` for ``clutch run``, which gives
every byte that was printed, once, also of lines that have no end yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from clutch.wire.output import OutputLine

UNREADABLE = "\ufffd"


def line_text(line: OutputLine, *, label: bool = False, times: bool = False, whose: str = "") -> str:
    """A line as a reader sees it, with its newline, unless it goes on in the next part. ``label``: with its member
    before it; ``whose``: with these words."""
    moment = time.strftime("%Y-%m-%dT%H:%M:%S ", time.localtime(line.at)) if times else ""
    whose = f"{line.member.role}.{line.member.rank}" if label else whose
    whose = f"{whose} | " if whose else ""
    text = line.text if line.kind == "line" else gap_text(line)
    return f"{moment}{whose}{text}" + ("" if line.cut else "\n")


def gap_text(line: OutputLine) -> str:
    why = "were lost before they arrived" if line.kind == "lost" else "were removed by retention"
    return f"[clutch: {line.end - line.start} bytes of {line.stream} {why}]"


def exact_bytes(line: OutputLine) -> bytes | None:
    """The very bytes of a line, where its text tells them. None where only the master knows: a progress bar was
    rewritten in place, or it is not text."""
    data = line.text.encode("utf-8", "replace")
    missing = line.end - line.start - len(data)
    if UNREADABLE in line.text or missing not in (0, 1) or (missing and (line.partial or line.cut)):
        return None
    return data + b"\n" * missing


class Exact:
    """How far each stream was shown, and what comes next of it."""

    def __init__(self, fetch: Callable[[OutputLine, int, int], bytes]) -> None:
        self._fetch = fetch
        """Asks the master for bytes of a line's stream, from an offset to an offset."""
        self._shown: dict[str, int] = {}

    def run(self, lines: Sequence[OutputLine]) -> tuple[OutputLine, ...]:
        """The first lines that follow each other in one stream: they are shown together."""
        found = [lines[0]]
        for line in lines[1:]:
            if _stream(line) != _stream(found[-1]) or line.start != found[-1].end or line.kind != "line":
                break
            found.append(line)
        return tuple(found) if lines[0].kind == "line" else tuple(found[:1])

    def data(self, run: Sequence[OutputLine]) -> bytes:
        """What is not shown yet of a run."""
        first, end = run[0], run[-1].end
        if first.kind != "line":
            return gap_text(first).encode() + b"\n"
        start = max(first.start, self._shown.get(_stream(first), 0))
        if start >= end:
            return b""
        parts = [exact_bytes(line) for line in run]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            return b"".join(known)[start - first.start :]
        return self._fetch(first, start, end)

    def passed(self, run: Sequence[OutputLine]) -> None:
        self._shown[_stream(run[0])] = run[-1].end


def _stream(line: OutputLine) -> str:
    return f"{line.member} {line.fence} {line.stream}"
