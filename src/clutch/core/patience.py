"""How long to wait before trying again what failed through no fault of its own.

Infrastructure failures are free, so nothing else bounds them: an image that does not exist would be tried for ever, as
fast as the machines can fail. The first retry comes at once, because most such failures are over when they are noticed;
each one after it waits twice as long, up to a minute. Work that ran for a while starts counting anew.
"""

from __future__ import annotations

REST_MAX_S = 60.0
FORGIVEN_AFTER_S = 60.0
"""Work that ran this long has shown that it can: what happens to it then is news."""

PARTINGS_FREE = 3
"""So often a task's ranks may lose each other without a checkpoint in between, though none of them failed and no node
was lost, before it counts as a failure: what comes again and again is no glitch."""


def setbacks_after(before: int, ran_s: float) -> int:
    """How many failures in a row there are now, after one more."""
    return 1 if ran_s >= FORGIVEN_AFTER_S else before + 1


def rest_s(setbacks: int) -> float:
    """How long to rest after so many failures in a row: 0, 1, 2, 4, ... seconds."""
    return 0.0 if setbacks < 2 else min(REST_MAX_S, 2.0 ** (setbacks - 2))
