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
_SHOUTED = "TRACE|DEBUG|DBG|INFO|NOTICE|WARNING|WARN|ERROR|ERR|CRITICAL|CRIT|FATAL|PANIC|EMERG|ALERT"
_LEVEL = re.compile(
    r"""
      ["']?(?i:levelname|level|severity|lvl)["']?\s*[=:]\s*["']?(?P<named>[A-Za-z]+)     # level=info, "level": "info"
    | ^\s*\[?(?P<letter>[DIWECF])(?:\d{4}\s|\s+\d{2,4}-?\d)                                # I1115 ..., [W 2026-...
    | ^\s*\[?(?P<leading>(?i:debug|info|warning|warn|error|critical|fatal))(?:\]|:|\s+[-|:])  # error: ..., [info] ...
    | (?<![A-Za-z])(?P<shouted>"""
    + _SHOUTED
    + r""")(?![A-Za-z])                                                                  # 12:00:01 INFO ...
    | ^(?P<traceback>Traceback\ \(most\ recent\ call\ last\))
    """,
    re.VERBOSE,
)


def shown(line: bytes) -> str:
    """The line as a terminal would leave it: without its newline, and of a progress bar the last state."""
    if line.endswith(b"\n"):
        line = line[:-1]
    if b"\r" in line:
        line = next((state for state in reversed(line.split(b"\r")) if state), b"")
    return line.decode("utf-8", "replace")


def level_of(text: str) -> Level | None:
    """The level that a line names near its beginning, in words or in a structured prefix."""
    found = _LEVEL.search(text[:LEVEL_CHARACTERS])
    if found is None or found.lastgroup is None:
        return None
    if found.lastgroup == "traceback":
        return "error"
    return _NAMES.get(found[found.lastgroup].lower())
