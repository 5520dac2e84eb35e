"""Curves in a terminal: points in, lines of braille out. Pure.

Each character holds 2 x 4 dots. Several curves share one picture and one scale; a curve is drawn over those before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot of a braille character, by row and column."""
BLANK = 0x2800
SPARKS = "▁▂▃▄▅▆▇█"


class Curve(NamedTuple):
    """Points by step; ``colour`` is the number of an ANSI colour, empty for none."""

    points: Sequence[tuple[float, float]]
    colour: str = ""


class Frame(NamedTuple):
    """What a picture shows: from where to where."""

    left: float
    right: float
    low: float
    high: float


def frame_of(curves: Sequence[Curve]) -> Frame | None:
    """The smallest frame that holds every finite point; None when there is none."""
    points = [point for curve in curves for point in curve.points if _drawable(*point)]
    if not points:
        return None
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = min(ys), max(ys)
    if low == high:
        low, high = low - (abs(low) or 1.0) * 0.5, high + (abs(high) or 1.0) * 0.5
    left, right = min(xs), max(xs)
    return Frame(left, right if right > left else left + 1.0, low, high)


def are_curves(curves: Sequence[Curve]) -> bool:
    """Whether there is anything to see: points at more than one step."""
    return len({x for curve in curves for x, y in curve.points if _drawable(x, y)}) > 1


def _drawable(x: float, y: float) -> bool:
    """Whether a point has a place; beyond 1e300 differences would be infinite."""
    return abs(x) < 1e300 and abs(y) < 1e300


def plot(curves: Sequence[Curve], width: int, height: int) -> list[str]:
    """A picture of at most ``width`` cells by ``height`` lines, with its scale at the left and below."""
    frame = frame_of(curves)
    if frame is None:
        return []
    labels = [number(frame.high), number((frame.high + frame.low) / 2), number(frame.low)]
    margin = max(map(len, labels)) + 1
    columns = max(8, width - margin - 1)
    cells, colours = _cells(curves, frame, columns, height)
    lines = []
    for row in range(height):
        label = labels[0] if row == 0 else labels[2] if row == height - 1 else labels[1] if row == height // 2 else ""
        drawn = "".join(_cell(bits, colours[row][column]) for column, bits in enumerate(cells[row]))
        lines.append(f"{label:>{margin - 1}} │{drawn.rstrip(chr(BLANK))}")
    ends = f"{number(frame.left)}{number(frame.right):>{max(1, columns - len(number(frame.left)))}}"
    return [*lines, f"{'':>{margin - 1}} └{'─' * columns}", f"{'':>{margin}} {ends}"]


def _cells(
    curves: Sequence[Curve], frame: Frame, columns: int, rows: int
) -> tuple[list[list[int]], list[list[str]]]:  # fmt: skip
    cells = [[0] * columns for _ in range(rows)]
    colours = [[""] * columns for _ in range(rows)]
    wide, tall = columns * 2 - 1, rows * 4 - 1
    for curve in curves:
        before: tuple[int, int] | None = None
        for x, y in curve.points:
            if not _drawable(x, y):
                before = None  # a gap says that something was no number there
                continue
            # where numbers are too small to differ it is one line
            across = round((x - frame.left) / ((frame.right - frame.left) or 1.0) * wide)
            down = round((frame.high - y) / ((frame.high - frame.low) or 1.0) * tall)
            for dot_x, dot_y in _line(before or (across, down), (across, down)):
                cells[dot_y // 4][dot_x // 2] |= DOTS[dot_y % 4][dot_x % 2]
                colours[dot_y // 4][dot_x // 2] = curve.colour
            before = (across, down)
    return cells, colours


def _line(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """The dots from one to the other."""
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]))
    if not steps:
        return [end]
    return [
        (round(start[0] + (end[0] - start[0]) * i / steps), round(start[1] + (end[1] - start[1]) * i / steps))
        for i in range(steps + 1)
    ]


def _cell(bits: int, colour: str) -> str:
    shown = chr(BLANK + bits)
    return f"\x1b[{colour}m{shown}\x1b[0m" if bits and colour else shown


def spark(values: Sequence[float], width: int) -> str:
    """A curve as one line of blocks, the last of ``values`` at its right end."""
    finite = [value for value in values if _drawable(0.0, value)]
    if not finite:
        return ""
    chosen = [finite[round(i * (len(finite) - 1) / max(1, width - 1))] for i in range(min(width, len(finite)))]
    low, high = min(chosen), max(chosen)
    span = high - low
    return "".join(SPARKS[round((value - low) / span * (len(SPARKS) - 1)) if span else 0] for value in chosen)


def bar(fraction: float, width: int) -> str:
    """``████████░░░░``."""
    done = round(max(0.0, min(1.0, fraction)) * width)
    return "█" * done + "░" * (width - done)


def number(value: float) -> str:
    """A number in few characters."""
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.4g}"
