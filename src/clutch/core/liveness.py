"""Who is still there: heartbeats in, a verdict and the next moment to look out.

Pure functions over when somebody was last heard and what time it is. They keep nothing, know no names, and never decide
what silence means for anybody's work: the node machine does.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec


class Pulse(StrEnum):
    ALIVE = "alive"  # heard lately
    SUSPECT = "suspect"  # silent: nothing new is given to it
    LOST = "lost"  # silent for too long: its work goes on elsewhere


class Patience(msgspec.Struct, frozen=True):
    """How long silence is borne. Both are counted from the last heartbeat; ``lost`` is never before ``suspect``."""

    suspect_after_s: float = 3.0
    lost_after_s: float = 90.0

    @property
    def lost_s(self) -> float:
        return max(self.lost_after_s, self.suspect_after_s)


def pulse(last_heard: float, now: float, patience: Patience) -> Pulse:
    """The verdict at ``now``. A heartbeat from the future (a clock that was set back) counts as now."""
    if now < suspect_at(last_heard, patience):
        return Pulse.ALIVE
    if now < lost_at(last_heard, patience):
        return Pulse.SUSPECT
    return Pulse.LOST


def suspect_at(last_heard: float, patience: Patience) -> float:
    return last_heard + patience.suspect_after_s


def lost_at(last_heard: float, patience: Patience) -> float:
    return last_heard + patience.lost_s


def next_deadline(last_heard: float, now: float, patience: Patience) -> float | None:
    """When the verdict changes next if nothing more is heard; None once it is lost."""
    verdict = pulse(last_heard, now, patience)
    if verdict is Pulse.ALIVE:
        return suspect_at(last_heard, patience)
    if verdict is Pulse.SUSPECT:
        return lost_at(last_heard, patience)
    return None


def earliest(deadlines: Iterable[float | None]) -> float | None:
    """The first of several deadlines, or None if there is none."""
    return min((deadline for deadline in deadlines if deadline is not None), default=None)
