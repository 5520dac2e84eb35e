"""What trials printed, on this terminal: the options of both commands, and lines that say whose they are."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from clutch.wire.errors import BadRequest

if TYPE_CHECKING:
    from clutch.sdk.output import Filters
    from clutch.wire.output import OutputLine

Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on until it has ended.")]
Tail = Annotated[int, typer.Option("--tail", "-n", min=0, help="Only the last so many lines.")]
Since = Annotated[str, typer.Option("--since", help="From here on: 10m, 2h (ago), or 2026-03-01T12:00.")]
Until = Annotated[str, typer.Option("--until", help="Before this moment.")]
Grep = Annotated[str, typer.Option("--grep", help="Only lines that match this regular expression.")]
IgnoreCase = Annotated[bool, typer.Option("--ignore-case", "-i", help="Large letters are small ones.")]
Stream = Annotated[str, typer.Option("--stream", help="Only stdout, or only stderr.")]
Level = Annotated[str, typer.Option("--level", help="debug, info, warning, error or critical, and worse.")]
Times = Annotated[bool, typer.Option("--times", "-t", help="Say when each line was written.")]
JsonLines = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]


def line_filters(
    *, tail: int, since: str, until: str, grep: str, ignore_case: bool, stream: str, level: str
) -> Filters:
    from clutch.sdk.wish import parse_moment
    from clutch.wire.output import LEVELS

    if stream not in ("", "stdout", "stderr"):
        raise BadRequest(f"there is no stream {stream!r}", object="--stream", next_step="Write stdout or stderr.")
    if level and level not in LEVELS:
        raise BadRequest(f"there is no level {level!r}", object="--level", next_step=f"Write {', '.join(LEVELS)}.")
    now = time.time()
    return {
        "tail": tail,
        "since": parse_moment(since, now) if since else None,
        "until": parse_moment(until, now) if until else None,
        "regex": grep,
        "ignore_case": ignore_case,
        "streams": (stream,) if stream else (),
        "level": level or None,
    }


def print_lines(lines: Iterable[OutputLine], *, mark: bool, times: bool, as_json: bool) -> None:
    """Lines to where they belong, until Ctrl-C. ``mark``: each with its trial before it."""
    from clutch.cli.printing import line_text

    try:
        for line in lines:
            if as_json:
                import msgspec

                typer.echo(msgspec.json.encode(line).decode())
                continue
            out = sys.stderr if line.stream == "stderr" or line.kind != "line" else sys.stdout
            out.write(line_text(line, times=times, whose=whose(line) if mark else ""))
            out.flush()
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def whose(line: OutputLine) -> str:
    """``trial 3``; ``trial 3 rank 1`` of a trial on several nodes; ``search`` of a search's own process."""
    from clutch.wire.experiments import trial_of

    found = trial_of(line.member.task)
    if found is None:
        return "search"
    return f"trial {found[1]}" + (f" rank {line.member.rank}" if line.member.rank else "")
