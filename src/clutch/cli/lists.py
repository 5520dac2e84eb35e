"""How lists look: tables that fit the terminal, JSON for programs, and both again when something changed.

Written by hand rather than with rich, which would cost every list its import. In a pipe nothing is cut, so that a
table can be searched.
"""

from __future__ import annotations

import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
import typer

T = TypeVar("T")
Json = Annotated[bool, typer.Option("--json", help="JSON for programs.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it again whenever it changes, until Ctrl-C.")]
WATCH_S = 1.0
GAP = "  "
COLUMN_MIN = 6
COLOURS = {
    "running": "32", "ready": "32", "ok": "32", "serving": "32", "queued": "33", "resting": "33", "suspect": "33",
    "warn": "33", "draining": "33", "unreported": "33", "paused": "36", "failed": "31", "lost": "31", "fail": "31",
    "killed": "31",
}  # fmt: skip


class Column(NamedTuple):
    """One column. In a terminal that is too narrow those with the highest ``goes`` go first; 0 never goes."""

    title: str
    value: Callable[[Any], object]
    goes: int = 0
    right: bool = False


def show_list(
    fetch: Callable[[], Sequence[T]], columns: Sequence[Column], *, as_json: bool, watch: bool, empty: str = "None."
) -> None:
    """A list, once or until Ctrl-C."""

    def draw() -> str:
        rows = fetch()
        if as_json:
            return msgspec.json.encode(rows).decode()
        return "\n".join(table(rows, columns, screen_width(), coloured())) if rows else empty

    show(draw, watch=watch, as_json=as_json)


def show(draw: Callable[[], str], *, watch: bool, as_json: bool) -> None:
    """What ``draw`` says; with ``watch``, in place on a terminal and one after the other elsewhere."""
    if not watch:
        typer.echo(draw())
        return
    shown = ""
    in_place = sys.stdout.isatty() and not as_json
    try:
        while True:
            text = draw()
            if text != shown:
                typer.echo(f"\x1b[H\x1b[2J{text}" if in_place else text)
                shown = text
            time.sleep(WATCH_S)
    except KeyboardInterrupt:
        return


def screen_width() -> int | None:
    """Columns of the terminal; None where nobody looks."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def coloured() -> bool:
    return sys.stdout.isatty()


# -- tables: values in, lines out ---------------------------------------------------------------------------------


def width_of(text: str) -> int:
    """How many cells of a terminal a text takes."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def clipped(text: str, width: int) -> str:
    """A text in at most so many cells, with … where something is missing."""
    if width_of(text) <= width:
        return text
    kept, used = "", 0
    for char in text:
        used += width_of(char)
        if used > width - 1:
            break
        kept += char
    return f"{kept}…"


def clean(value: object) -> str:
    """One line, with nothing in it that a terminal would obey."""
    return "".join(char if char.isprintable() else "·" for char in str(value))


def table(rows: Sequence[Any], columns: Sequence[Column], width: int | None, colour: bool = False) -> list[str]:
    """Lines of at most ``width`` cells. Columns that are empty or do not fit go, then the widest ones are clipped."""
    cells = {column.title: [clean(column.value(row)) for row in rows] for column in columns}
    widths = {title: max(width_of(text) for text in (title, *texts)) for title, texts in cells.items()}
    shown = list(columns)
    if width is not None:
        shown = [column for column in shown if not column.goes or any(cells[column.title])]
        shown, widths = fitted(shown, widths, width)
    lines = [_line([column.title.upper() for column in shown], shown, widths, False)]
    lines += [_line([cells[c.title][at] for c in shown], shown, widths, colour) for at in range(len(rows))]
    return lines


def fitted(shown: list[Column], widths: dict[str, int], width: int) -> tuple[list[Column], dict[str, int]]:
    """Which columns are shown and how wide each is, so that a line fits."""

    def over() -> int:
        return sum(widths[c.title] for c in shown) + len(GAP) * (len(shown) - 1) - width

    widths = dict(widths)
    while over() > 0:
        droppable = [column for column in shown if column.goes]
        shrinkable = [column for column in shown if widths[column.title] > max(COLUMN_MIN, len(column.title)) + 6]
        if shrinkable and over() <= sum(widths[c.title] - max(COLUMN_MIN, len(c.title)) - 6 for c in shrinkable):
            widest = max(shrinkable, key=lambda column: widths[column.title])
            widths[widest.title] -= 1
        elif droppable:
            shown = [column for column in shown if column is not max(droppable, key=lambda c: c.goes)]
        else:
            widest = max(shown, key=lambda column: widths[column.title])
            if widths[widest.title] <= 1:
                break
            widths[widest.title] -= 1
    return shown, widths


def _line(texts: Sequence[str], shown: Sequence[Column], widths: dict[str, int], colour: bool) -> str:
    parts = []
    for text, column in zip(texts, shown, strict=True):
        width = widths[column.title]
        cut = clipped(text, width)
        space = " " * (width - width_of(cut))
        if colour and text in COLOURS:
            cut = f"\x1b[{COLOURS[text]}m{cut}\x1b[0m"
        parts.append(space + cut if column.right else cut + space)
    return GAP.join(parts).rstrip()


def facts(pairs: Sequence[tuple[str, object]]) -> str:
    """Names and values, one a line; empty ones are left out."""
    kept = [(name, str(value)) for name, value in pairs if str(value)]
    wide = max((len(name) for name, _ in kept), default=0)
    return "\n".join(f"{name:<{wide}}  {clean(value)}" for name, value in kept)


# -- values as people read them -----------------------------------------------------------------------------------


def ago(at: float, now: float) -> str:
    """``42s``, ``5m``, ``3h``, ``12d``; empty for never."""
    return span(max(0.0, now - at)) if at else ""


def span(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size or (unit == "m" and seconds >= 100):
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at else ""


def told_here(line: str) -> str:
    """A line of a task's story with its moment as clocks show it here."""
    at, _, rest = line.strip().partition(" ")
    try:
        return f"{moment(float(at))} {rest}"
    except (ValueError, OverflowError, OSError):
        return line
