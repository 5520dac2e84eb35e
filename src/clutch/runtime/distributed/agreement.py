"""Agreement: all ranks leave at the same call, though only some were asked to, and no call waits for the network.

How it is that all stop at the same call is in ``credits``; the notes travel in the thread of the group.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from clutch.runtime.distributed.credits import Counter
from clutch.runtime.distributed.group import TIMEOUT_S, Group
from clutch.runtime.distributed.notes import Reached
from clutch.wire.errors import BadRequest, PeerLost, TimedOut

Mode = Literal["workers_ask_chief", "chief_only", "workers_ask_master"]
MODES = ("workers_ask_chief", "chief_only", "workers_ask_master")


class Agreement:
    """Each rank makes one, and calls ``should_stop`` as often as the others.

    ``workers_ask_chief``: a rank that is asked to stop tells the chief, which names the call at which all do.
    ``chief_only``: as above, but only what rank 0 is asked counts. ``workers_ask_master``: each rank answers as it is
    asked itself; nobody agrees with anybody.
    """

    def __init__(self, group: Group, asked: Callable[[], bool], mode: Mode = "workers_ask_chief") -> None:
        if mode not in MODES:
            raise BadRequest(
                f"there is no way {mode!r}", object="agreement", next_step=f"Use one of {', '.join(MODES)}."
            )
        group.check()
        self._group = group
        self._asked = asked
        self._agrees = mode != "workers_ask_master"
        self._may_ask = mode != "chief_only" or group.rank == 0
        self._counter = Counter()
        self._stopped = False
        self._number = group.agreements
        group.agreements += 1

    @property
    def calls(self) -> int:
        """How often this rank has asked."""
        return self._counter.count

    def should_stop(self, timeout_s: float = TIMEOUT_S) -> bool:
        """The same on all ranks at the same call. Once true it stays so."""
        self._group.check()
        counter = self._counter
        counter.next_call()
        session = self._group.session
        if session is None or not self._agrees:
            self._stopped = self._stopped or bool(self._asked())
            return self._stopped
        asks = not counter.stop and self._may_ask and bool(self._asked())
        granted = session.control.granted.get(self._number)
        if granted is not None:
            counter.granted(granted.limit, granted.stop)
        if counter.report(asks):
            waits = counter.count > counter.limit
            session.control.tell(Reached(self._number, counter.count, asks, waits))
        answer = counter.answer()
        return self._wait(timeout_s) if answer is None else answer

    def _wait(self, timeout_s: float) -> bool:
        """We are further ahead than the chief knows."""
        session = self._group.session
        assert session is not None
        control, counter = session.control, self._counter
        until = time.monotonic() + timeout_s
        with control.changed:
            while True:
                granted = control.granted.get(self._number)
                if granted is not None:
                    counter.granted(granted.limit, granted.stop)
                answer = counter.answer()
                if answer is not None:
                    return answer
                control.look()
                if 0 in control.left:
                    raise PeerLost("it closed its group", object="rank 0", ranks=(0,))
                left = until - time.monotonic()
                if left <= 0:
                    raise TimedOut(
                        f"rank 0 did not answer should_stop #{counter.count} within {timeout_s:g} s", object="agreement"
                    )
                control.changed.wait(left)
