"""What the last words of a member make of its exit record."""

from __future__ import annotations

from msgspec.structs import replace

from clutch.wire.containers import REASON_MAX
from clutch.wire.last_words import FAILED, PEER_FAILED, PEER_LOST, understood
from clutch.wire.messages import Exit, ExitCause

HEARD = (ExitCause.OWN, ExitCause.OUT_OF_MEMORY, ExitCause.ENDED)
"""Ends about which a member may have more to say than its record."""


def as_told(exit: Exit, said: str) -> Exit:
    """The exit with what was said. A member that we ended had perhaps failed before: its ranks were still ending."""
    words, by_us = understood(said), exit.cause is ExitCause.ENDED
    code = words.code if by_us else exit.code
    if words.what in (PEER_LOST, PEER_FAILED) and exit.cause is not ExitCause.OUT_OF_MEMORY:
        return replace(exit, code=code, cause=ExitCause(words.what), reason=words.text[:REASON_MAX])
    if by_us and words.what != FAILED:
        return exit
    cause = ExitCause.OWN if by_us else exit.cause
    reason = words.text if by_us else ": ".join(filter(None, (exit.reason, words.text)))
    return replace(exit, code=code, cause=cause, reason=reason[:REASON_MAX])
