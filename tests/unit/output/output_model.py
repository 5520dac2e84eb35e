"""What reading must give, worked out the slow and simple way, from what was written."""

from clutch.master.output.text import shown
from clutch.wire.output import LINE_MAX_BYTES

Run = bytes | int
"""Bytes that were printed, or the number of bytes that were lost."""


def lines_of(runs: list[Run]) -> list[tuple[int, int, str]]:
    """(start, end, text) of every line and every gap; neighbouring runs of bytes must be joined before."""
    found: list[tuple[int, int, str]] = []
    offset = 0
    for run in runs:
        if isinstance(run, int):
            found.append((offset, offset + run, f"[{run} bytes were dropped before they arrived]"))
            offset += run
            continue
        rest = run
        while rest:
            newline = rest.find(b"\n")
            if 0 <= newline <= LINE_MAX_BYTES:
                size = newline + 1
            else:
                size = min(len(rest), LINE_MAX_BYTES)
            found.append((offset, offset + size, shown(rest[:size])))
            offset += size
            rest = rest[size:]
    return found
