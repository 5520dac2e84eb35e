"""A task's lines on this terminal: standard output to standard output, errors to errors, byte for byte where it can be.

Pure but for the two writes: ``Lines`` turns lines into text, whoever calls it writes that.
"""

from __future__ import annotations

import sys
import time

from clutch.wire.output import OutputLine


class Lines:
    """Lines as text. ``labels``: each is preceded by its member, for tasks with several; ``times``: by its moment."""

    def __init__(self, *, labels: bool = False, times: bool = False) -> None:
        self.labels = labels
        self.times = times
        self._open: dict[str, int] = {}
        """By stream, how much of a line without an end was shown."""

    def text(self, line: OutputLine) -> str:
        """What to write. A line whose last byte is no newline gets none; one in parts is joined again."""
        stream = f"{line.member}{line.fence}{line.stream}"
        if line.kind != "line":
            self._open.pop(stream, None)
            gone = "were lost" if line.kind == "lost" else "were removed by retention"
            return f"{self._label(line)}[clutch: {line.end - line.start} bytes of {line.stream} {gone}]\n"
        shown = self._open.pop(stream, 0)
        text = line.text[shown:]
        begins = "" if shown or self._goes_on(line) else self._label(line)
        if line.partial:
            self._open[stream] = len(line.text)
            return begins + text
        if line.cut:
            self._cut = (stream, line.end)
        ended = not line.cut and line.end - line.start != len(line.text.encode())
        return begins + text + ("\n" if ended else "")

    _cut: tuple[str, int] = ("", -1)

    def _goes_on(self, line: OutputLine) -> bool:
        return self._cut == (f"{line.member}{line.fence}{line.stream}", line.start)

    def _label(self, line: OutputLine) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S ", time.localtime(line.at)) if self.times else ""
        return f"{moment}{line.member.role}.{line.member.rank} | " if self.labels else moment


def write(line: OutputLine, lines: Lines) -> None:
    """Shows a line where its stream belongs, at once."""
    stream = sys.stderr if line.stream == "stderr" or line.kind != "line" else sys.stdout
    stream.write(lines.text(line))
    stream.flush()
