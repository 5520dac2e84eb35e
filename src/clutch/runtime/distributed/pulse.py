"""Whether the other end of a connection lives, as far as this end can tell. Pure: told what the kernel has counted.

A process that ends closes its connections, and that is known at once. A process that is stopped, or whose node is cut
off, says nothing: it is lost when nothing has come from it for too long, though its heartbeats should have. Silence is
counted in time during which this end was itself awake to hear something: after a pause of the whole machine nobody is
called dead for not having spoken during it. What came meanwhile was counted by the kernel, so nobody is called dead
either because we were too slow to read it.
"""

from __future__ import annotations

import enum

LOOKS_EVERY_S = 0.2
COUNTS_AT_MOST_S = 3 * LOOKS_EVERY_S
"""So much of the time between two looks counts. Who looks later than this was stopped itself, or starved."""


class State(enum.Enum):
    HEARD = "bytes have come since the last look"
    QUIET = "nothing has come for a while, and for how long counts"
    LOST = "quiet for too long: it is stopped, or its node is cut off"


class Sign(enum.Enum):
    """What a look finds."""

    BYTES = "the kernel has received more than before"
    NOTHING = "it has not"
    TOO_LONG = "it has not, for as long as one may be silent"


TABLE = {
    (State.HEARD, Sign.BYTES): State.HEARD,
    (State.HEARD, Sign.NOTHING): State.QUIET,
    (State.HEARD, Sign.TOO_LONG): State.LOST,
    (State.QUIET, Sign.BYTES): State.HEARD,
    (State.QUIET, Sign.NOTHING): State.QUIET,
    (State.QUIET, Sign.TOO_LONG): State.LOST,
    (State.LOST, Sign.BYTES): State.LOST,
    (State.LOST, Sign.NOTHING): State.LOST,
    (State.LOST, Sign.TOO_LONG): State.LOST,
}
"""Who is lost stays so: half a group does not go on."""


class Pulse:
    """One connection."""

    def __init__(self, dead_after_s: float) -> None:
        self.state = State.HEARD
        self.quiet_s = 0.0
        self._dead_after_s = dead_after_s
        self._received: int | None = None

    def look(self, received: int | None, counts_s: float) -> State:
        """``received``: how many bytes have ever come; None: it cannot be told, which is no silence."""
        if received is None or received != self._received:
            self._received, self.quiet_s = received, 0.0
            sign = Sign.BYTES
        else:
            self.quiet_s += counts_s
            sign = Sign.TOO_LONG if self.quiet_s >= self._dead_after_s else Sign.NOTHING
        self.state = TABLE[self.state, sign]
        return self.state


class Looks:
    """When this end looked, for all its connections."""

    def __init__(self, now: float) -> None:
        self._looked_at = now

    def counts(self, now: float) -> float:
        """How much of the time since the last look counts as silence of who was silent."""
        since, self._looked_at = now - self._looked_at, now
        return min(max(since, 0.0), COUNTS_AT_MOST_S)
