"""Plain values of the command line, read without pydantic.

Typer hands every value, defaults too, to a pydantic adapter, whose import costs more than most commands do. What needs
no such reading (a default, a text, a plain number within its bounds) is let through here; everything else, and every
value that might be wrong, still goes to typer, so that its errors are the same.
"""

from __future__ import annotations

import re
from typing import Any

INTEGER, NUMBER = re.compile(r"-?\d{1,18}", re.ASCII), re.compile(r"-?\d{1,15}(\.\d{1,15})?", re.ASCII)
NOT_PLAIN = object()


def lighten(param: Any) -> None:
    """Lets a parameter take plain values as they are. Does nothing where typer is not built as we know it."""
    described = getattr(param, "type_descriptor", None)
    if described is None or getattr(param, "reads_lightly", False):
        return
    whole = param.process_value

    def process(context: Any, value: Any) -> Any:
        found = plain(param, described, value)
        if found is NOT_PLAIN or (param.required and param.value_is_missing(found)):
            return whole(context, value)
        return found if param.callback is None else param.callback(context, param, found)

    param.process_value = process
    param.reads_lightly = True


def plain(param: Any, described: Any, value: Any) -> Any:
    """The value as the command gets it, or ``NOT_PLAIN``."""
    annotation = described.annotation
    if param.multiple or param.nargs == -1:
        if value is None:
            return ()
        fits = annotation == list[str] and isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)
        return value if fits else NOT_PLAIN
    if param.nargs != 1:
        return NOT_PLAIN
    if value is None or (type(value) is not str and value == param.default) or (annotation, type(value)) == (str, str):
        return value
    return number(described, value) if annotation in (int, float) and isinstance(value, str) else NOT_PLAIN


def number(described: Any, text: str) -> Any:
    """A number in its plainest form and within its bounds."""
    kind, info = described.annotation, described.parameter_info
    if not (INTEGER if kind is int else NUMBER).fullmatch(text) or info.clamp:
        return NOT_PLAIN
    found = kind(text)
    fits = (info.min is None or found >= info.min) and (info.max is None or found <= info.max)
    return found if fits else NOT_PLAIN
