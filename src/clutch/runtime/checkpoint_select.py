"""Which files of a checkpoint are meant: by patterns over their whole paths, or by a question of the caller's.

``*`` and ``?`` stay within a folder, ``**`` crosses folders, ``[a-c]`` is one of these letters, a pattern that ends
with ``/`` means all that lies in that folder: ``model.pt``, ``*.json``, ``optimizer/``, ``**/rank-?.bin``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from clutch.wire.errors import BadRequest
from clutch.wire.push import CheckpointFile

Selector = Sequence[str] | Callable[[str], bool]
"""Patterns, any of which a path must match; or a function that says yes to a path."""


def selected(files: Sequence[CheckpointFile], selector: Selector | None) -> tuple[CheckpointFile, ...]:
    """Those of the files that are meant, in their order; all without a selector. ``BadRequest`` if nothing is."""
    if selector is None:
        return tuple(files)
    is_meant = selector if callable(selector) else any_of(selector)
    found = tuple(file for file in files if is_meant(file.path))
    if not found and files:
        meant = "the selector" if callable(selector) else ", ".join(selector)
        raise BadRequest(
            f"none of its {len(files)} files is meant by {meant}",
            object="selector",
            next_step=f"Its files are called like {files[0].path}; a pattern matches the whole path.",
        )
    return found


def any_of(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Whether a path matches one of these."""
    if isinstance(patterns, str):
        raise BadRequest("one string where a list of patterns is meant", object="selector", next_step="Give a list.")
    compiled = [re.compile(_expression(pattern)) for pattern in patterns]
    return lambda path: any(one.fullmatch(path) for one in compiled)


def _expression(pattern: str) -> str:
    if not pattern.strip("/"):
        raise BadRequest("an empty pattern", object=f"pattern {pattern!r}", next_step="Say ** for everything.")
    if pattern.endswith("/"):
        pattern += "**"
    made, at = "", 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            made, at = made + "(?:.*/)?", at + 3
        elif pattern.startswith("**", at):
            made, at = made + ".*", at + 2
        elif pattern[at] == "*":
            made, at = made + "[^/]*", at + 1
        elif pattern[at] == "?":
            made, at = made + "[^/]", at + 1
        elif pattern[at] == "[" and (close := pattern.find("]", at + 2)) > 0:
            inside = pattern[at + 1 : close].replace("\\", "\\\\").replace("[", "\\[")
            negated = inside.startswith("!")
            made, at = made + ("[^/" + inside[1:] if negated else "[" + inside.replace("^", "\\^")) + "]", close + 1
        else:
            made, at = made + re.escape(pattern[at]), at + 1
    try:
        re.compile(made)
    except re.error as error:
        raise BadRequest(f"this is no pattern: {error}", object=f"pattern {pattern!r}") from error
    return made
