"""Whether a call that failed is tried again, where and when. Pure: chance and time are arguments.

What certainly never arrived (nobody answered, or a master that does not lead) is tried again, whatever it was. What
may have arrived is tried again only if asking twice is the same as asking once.
"""

from __future__ import annotations

from enum import StrEnum

from clutch.wire.errors import ClutchError, Unavailable

DELAY_FIRST_S = 0.1
DELAY_MAX_S = 2.0
SILENT_S = 3.0


class Mishap(StrEnum):
    """How a try went wrong."""

    UNREACHED = "unreached"  # no connection: nothing was sent
    NOT_LEADER = "not_leader"  # 421: it arrived where nobody decides, nothing was done
    BUSY = "busy"  # 503: not now
    BROKEN = "broken"  # sent, and then the connection broke or stayed silent: it may have been done


SAFE = (Mishap.UNREACHED, Mishap.NOT_LEADER)
STATUSES = {421: Mishap.NOT_LEADER, 503: Mishap.BUSY}
"""Answers that are a mishap rather than an answer."""


class Attempts:
    """The tries of one call: every address once without a pause, then again after pauses that grow."""

    def __init__(self, addresses: int, *, repeatable: bool, until: float, first: int = 0) -> None:
        self.addresses = max(1, addresses)
        self.repeatable = repeatable
        self.until = until
        self.tries = 0
        self._first = first

    @property
    def index(self) -> int:
        """Which address is next."""
        return (self._first + self.tries) % self.addresses

    def answer_s(self, most_s: float) -> float:
        """How long this try may wait for its answer. With several masters a silent one (stopped, cut off) must not cost
        the whole time: the others are asked soon, and a slow one gets longer in each round."""
        if self.addresses == 1 or not self.repeatable:
            return most_s
        return min(most_s, SILENT_S * 2.0 ** min(self.tries // self.addresses, 10))

    def failed(self, mishap: Mishap, now: float, chance: float) -> float | None:
        """How long to pause before the next try, or None to give up. ``chance`` (0 to 1) spreads clients that lost the
        same master at the same time."""
        if now >= self.until or not (mishap in SAFE or self.repeatable):
            return None
        self.tries += 1
        rounds, rest = divmod(self.tries, self.addresses)
        if rest:
            return 0.0
        pause = min(DELAY_MAX_S, DELAY_FIRST_S * 2.0 ** min(rounds - 1, 10)) * (0.5 + chance / 2)
        return min(pause, self.until - now)


def explain(mishap: Mishap, words: str, where: str) -> ClutchError:
    """The error of a call that was given up without an answer."""
    if mishap is Mishap.UNREACHED:
        return Unavailable(
            f"no master answers there: {words}",
            object=where,
            next_step="Is it running? 'clutch up' starts one on this machine, 'clutch login' names another.",
        )
    return Unavailable(
        f"the master was asked, but its answer did not arrive: {words}",
        object=where,
        next_step="Look whether it was done before you ask again.",
    )
