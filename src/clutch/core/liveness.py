"""Who is still there: when somebody was last heard in, a verdict and the moment it changes out.

Pure functions. They keep nothing, know no names, and never decide what silence means for anybody's work: a silent node
becomes suspect, and its own machine gives it up at the deadline that its pool sets.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Pulse(StrEnum):
    ALIVE = "alive"  # heard lately
    SILENT = "silent"  # nothing new is given to it


class Patience(msgspec.Struct, frozen=True):
    """How long silence is borne, from the last word heard."""

    suspect_after_s: float


def pulse(last_heard: float, now: float, patience: Patience) -> Pulse:
    """The verdict at ``now``. A word from the future (a clock that was set back) counts as now."""
    return Pulse.ALIVE if now < suspect_at(last_heard, patience) else Pulse.SILENT


def suspect_at(last_heard: float, patience: Patience) -> float:
    """When the verdict changes if nothing more is heard."""
    return last_heard + patience.suspect_after_s
