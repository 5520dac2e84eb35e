"""How a container ended, from what the engine and the keeper know. Pure, standard library only.

An engine tells less than a parent: a signal is only ``128 + number``, a command that is not there is the words of the
container's init. This file is where such words become one of the causes an agent knows.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple
from urllib.parse import quote

OWN, ENDED, OUT_OF_MEMORY, MACHINE = "own", "ended", "out_of_memory", "machine"
NEVER_STARTED, REFUSED = "never_started", "refused"
SIGNAL_BASE, SIGNALS = 128, 64
SIGTERM, SIGKILL = 15, 9
LOST_CODE = 255
"""An engine's code for a container whose end it did not see."""
INIT_FAILED = re.compile(rb"\[FATAL tini \(\d+\)\] exec (.+) failed: (.+)\n")
NOT_THERE = ("not found", "unknown", "denied", "unauthorized", "no basic auth", "invalid reference")
"""How registries say that trying again is no use."""
ERROR_SHOWN = 250
"""So much of an engine's words, so that what follows them is read too."""


class Verdict(NamedTuple):
    code: int
    cause: str
    reason: str = ""


class Seen(NamedTuple):
    """What is known at the end."""

    code: int
    """As the engine says it."""
    error: str = ""
    out_of_memory: bool = False
    limited: bool = False
    """It had a memory limit."""
    ordered: bool = False
    """We were told to end it."""
    stdout_bytes: int = 0
    stderr_head: bytes = b""
    init: bool = True
    rebooted: bool = False
    engine_lost: bool = False
    """The engine went away at least once while it ran."""
    killed_by: tuple[int, ...] = ()
    """Signals that somebody sent through the engine, ours left out."""


def exit_code(code: int) -> int:
    """A process's code, or minus the signal that killed it."""
    return SIGNAL_BASE - code if SIGNAL_BASE < code <= SIGNAL_BASE + SIGNALS else code


def verdict(seen: Seen) -> Verdict:
    code = exit_code(seen.code)
    failed = INIT_FAILED.fullmatch(seen.stderr_head)
    if seen.init and failed and seen.code in (126, 127) and not seen.stdout_bytes:
        command, why = (word.decode(errors="replace") for word in failed.groups())
        return Verdict(127, REFUSED, f"it could not be started: the command {command}: {why}")
    if seen.rebooted:
        return Verdict(code, MACHINE, f"the machine was restarted under it (the engine says code {seen.code})")
    if seen.out_of_memory and code != 0:
        whose = "it reached its memory limit" if seen.limited else "the machine ran out of memory"
        return Verdict(code, OUT_OF_MEMORY, whose)
    if seen.ordered:
        return Verdict(code, ENDED, "it was told to end")
    if code < 0 and -code in seen.killed_by:
        return Verdict(code, MACHINE, f"it was ended with signal {-code} through the engine, not by us")
    if seen.engine_lost and (code in (-SIGTERM, -SIGKILL) or seen.code == LOST_CODE):
        return Verdict(code, MACHINE, f"the engine was restarted under it (it says code {seen.code})")
    return Verdict(code, OWN, seen.error)


def unpulled(image: str, error: str) -> Verdict:
    """An image that could not be fetched: its user's doing if there is none of that name, or they may not have it."""
    said = f"its image {image} could not be pulled: {error[:ERROR_SHOWN].rstrip('. ')}."
    if any(word in error.lower() for word in NOT_THERE):
        return Verdict(127, REFUSED, f"{said} Correct its name, or give what its registry asks for (registry_auth).")
    return Verdict(127, NEVER_STARTED, f"{said} See that this node reaches its registry, or put the image there.")


def events_path(container: str, since: float, until: float) -> str:
    """The question for what an engine remembers of a container; it remembers a few hundred events of all."""
    filters = json.dumps({"container": {container: True}}, separators=(",", ":"))
    return f"/events?since={since:.9f}&until={until:.9f}&filters={quote(filters, safe='')}"


def happened(events: list[dict[str, Any]]) -> tuple[list[int], bool]:
    """Signals sent through the engine, and whether it ran out of memory."""
    kills = [event["Actor"]["Attributes"].get("signal", "") for event in events if event.get("Action") == "kill"]
    return [int(word) for word in kills if word.isdigit()], any(event.get("Action") == "oom" for event in events)
