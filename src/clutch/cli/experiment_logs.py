"""What trials printed, on this terminal: the options of both commands, and lines that say whose they are."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from inspect import Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

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
RANK_MARK = "[rank="
"""How a launcher's supervisor begins each line; a member's own rank would only confuse beside it."""


class Shown(NamedTuple):
    """Which lines are meant, and how they are written."""

    follow: bool
    filters: Filters
    times: bool
    as_json: bool


def _shown(
    follow: Follow = False,
    tail: Tail = 0,
    since: Since = "",
    until: Until = "",
    grep: Grep = "",
    ignore_case: IgnoreCase = False,
    stream: Stream = "",
    level: Level = "",
    times: Times = False,
    as_json: JsonLines = False,
) -> Shown:
    from clutch.sdk.wish import parse_moment
    from clutch.wire.output import LEVELS

    if stream not in ("", "stdout", "stderr"):
        raise BadRequest(f"there is no stream {stream!r}", object="--stream", next_step="Write stdout or stderr.")
    if level and level not in LEVELS:
        raise BadRequest(f"there is no level {level!r}", object="--level", next_step=f"Write {', '.join(LEVELS)}.")
    now = time.time()
    filters: Filters = {
        "tail": tail,
        "since": parse_moment(since, now) if since else None,
        "until": parse_moment(until, now) if until else None,
        "regex": grep,
        "ignore_case": ignore_case,
        "streams": (stream,) if stream else (),
        "level": level or None,
    }
    return Shown(follow, filters, times, as_json)


def with_line_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command that has the options of ``_shown`` behind its own, and is given what they say as ``shown``."""
    own = [one for one in signature(command, eval_str=True).parameters.values() if one.name != "shown"]
    options = signature(_shown, eval_str=True).parameters

    def whole(**given: Any) -> None:
        shown = _shown(**{name: given.pop(name) for name in options})
        command(**given, shown=shown)

    whole.__doc__ = command.__doc__
    whole.__signature__ = Signature([*own, *options.values()])  # type: ignore[attr-defined]  # what typer reads
    whole.__annotations__ = {one.name: one.annotation for one in (*own, *options.values())}
    return whole


def print_lines(lines: Iterable[OutputLine], shown: Shown, *, mark: bool) -> None:
    """Lines to where they belong, until Ctrl-C. ``mark``: each with its trial before it."""
    from clutch.cli.printing import line_text

    try:
        for line in lines:
            if shown.as_json:
                import msgspec

                typer.echo(msgspec.json.encode(line).decode())
                continue
            out = sys.stderr if line.stream == "stderr" or line.kind != "line" else sys.stdout
            out.write(line_text(line, times=shown.times, whose=whose(line) if mark else ""))
            out.flush()
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def whose(line: OutputLine) -> str:
    """``trial 3``; ``trial 3 rank 1`` of a trial on several nodes, unless its line says by itself which rank it is of;
    ``search`` of a search's own process."""
    from clutch.wire.experiments import trial_of

    found = trial_of(line.member.task)
    if found is None:
        return "search"
    named = not line.member.rank or line.text.startswith(RANK_MARK)
    return f"trial {found[1]}" + ("" if named else f" rank {line.member.rank}")
