"""What a reader sees of a line's bytes, and how serious the line says it is. Pure."""

from __future__ import annotations

import re

from clutch.wire.output import Level

LEVEL_CHARACTERS = 80
"""So far into a line its level is looked for."""

_NAMES: dict[str, Level] = {
    "trace": "debug", "debug": "debug", "dbg": "debug", "d": "debug",
    "info": "info", "notice": "info", "information": "info", "i": "info",
    "warn": "warning", "warning": "warning", "w": "warning",
    "error": "error", "err": "error", "e": "error",
    "critical": "critical", "crit": "critical", "fatal": "critical", "panic": "critical", "emerg": "critical",
    "alert": "critical", "c": "critical", "f": "critical",
}  # fmt: skip
# This is asked for every line that is read, so what costs most is tried only where it can be found.
_STRUCTURED = re.compile(
    r"""(?:[Ll]evel(?:name)?|LEVEL(?:NAME)?|[Ss]everity|SEVERITY|lvl)["']?\s*[=:]\s*["']?([A-Za-z]+)"""
)  # level=info, "level": "info"
_STRUCTURED_PARTS = ("evel", "LEVEL", "everity", "SEVERITY", "lvl")
_LEADING = re.compile(
    r"""\s*\[?(?:
      (?P<letter>[DIWECF])(?:\d{4}\s|\s+\d{2,4}-?\d)                                  # I1115 ..., [W 2026-...
    | (?P<word>(?i:debug|info|warning|warn|error|critical|fatal))(?:\]|:|\s+[-|:])      # error: ..., [info] ...
    | (?P<traceback>Traceback\ \(most\ recent\ call\ last\)))""",
    re.VERBOSE,
)
_SHOUTED = re.compile(
    r"(?:TRACE|DEBUG|DBG|INFO|NOTICE|WARNING|WARN|ERROR|ERR|CRITICAL|CRIT|FATAL|PANIC|EMERG|ALERT)(?![A-Za-z])"
)  # 12:00:01 INFO ...


def shown(line: bytes) -> str:
    """The line as a terminal would leave it: without its newline, and of a progress bar the last state."""
    if line.endswith(b"\n"):
        line = line[:-1]
    if b"\r" in line:
        line = next((state for state in reversed(line.split(b"\r")) if state), b"")
    return line.decode("utf-8", "replace")


def level_of(text: str) -> Level | None:
    """The level that a line names near its beginning, in words or in a structured prefix."""
    head = text[:LEVEL_CHARACTERS]
    if any(part in head for part in _STRUCTURED_PARTS):
        found = _STRUCTURED.search(head)
        if found is not None and found[1].lower() in _NAMES:
            return _NAMES[found[1].lower()]
    found = _LEADING.match(head)
    if found is not None and found.lastgroup is not None:
        return "error" if found.lastgroup == "traceback" else _NAMES[found[found.lastgroup].lower()]
    for found in _SHOUTED.finditer(head):
        start = found.start()
        if not start or not (head[start - 1].isascii() and head[start - 1].isalpha()):
            return _NAMES[found[0].lower()]
    return None
