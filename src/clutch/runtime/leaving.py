"""When a run should end, and why: the master asks, it has replaced this incarnation, or a signal came.

Asking costs a look at a flag. On several ranks all hear yes at the same call (``runtime.collective``). Once the work
has been told, the master hears that it knows (``PreemptionWatch.seen``).
Off the cluster the first SIGTERM or SIGINT is the asking; a second one does what it always did.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clutch.runtime.collective.together import Together
    from clutch.runtime.preempt import PreemptionWatch
    from clutch.wire.push import Preemption

REPLACED, SIGNAL = "replaced", "signal"
_DEFAULTS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


class Leaving:
    """``watch``: the master's word, if there is a master. ``say`` tells the user something. ``together``: the ranks
    that leave at once; ``why`` asks the master for the reason where another rank has heard it."""

    def __init__(
        self,
        watch: PreemptionWatch | None,
        say: Callable[[str], None],
        together: Together | None = None,
        why: Callable[[], Preemption | None] | None = None,
    ) -> None:
        self._watch = watch
        self._say = say
        self._together = together
        self._why = why
        self._told: Preemption | None = None
        self._told_at = 0.0
        self._reason = ""
        self._seen = False
        self._closed = False
        self._caught: list[signal.Signals] = []

    def catch_signals(self) -> None:
        """Take SIGTERM and SIGINT where nobody else did; only the main thread may."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, default in _DEFAULTS.items():
            now = signal.getsignal(number)
            if now == default or isinstance(getattr(now, "__self__", None), Leaving):
                signal.signal(number, self._signalled)
                self._caught.append(number)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        again = bool(self._reason) or self._closed  # a library may have put back what it found before
        self._restore()
        if again:
            signal.signal(number, _DEFAULTS[signal.Signals(number)])
            signal.raise_signal(number)
            return
        self._reason = SIGNAL
        self._say(f"{signal.Signals(number).name}: the run is asked to stop; once more ends it at once")

    def _restore(self) -> None:
        for number in self._caught:
            if signal.getsignal(number) == self._signalled:
                signal.signal(number, _DEFAULTS[number])
        self._caught = []

    def replaced(self) -> None:
        """The master said to somebody else of this process that the incarnation is over."""
        self._reason = REPLACED

    def asked(self) -> bool:
        """Whether it should end, without having been told so."""
        return bool(self._reason) or (self._watch is not None and self._watch.should_stop())

    def should_stop(self) -> bool:
        """The same, on several ranks at the same call; whoever hears yes is taken to leave."""
        if self._together is None:
            return self.heard()
        return self._together.should_stop(self.asked) and self._see()

    def heard(self) -> bool:
        """The same, of this rank alone."""
        return self.asked() and self._see()

    def _see(self) -> bool:
        if not self._seen:
            self._seen = True
            if self._watch is not None:
                self._watch.seen()
        return True

    @property
    def seen(self) -> bool:
        """Whether the work has been told."""
        return self._seen

    @property
    def reason(self) -> str:
        """In one word; empty while nobody asked."""
        if self._reason:
            return self._reason
        if self._watch is None and self._together is not None and self._together.stops:
            told = self._ask()
            return str(told.reason or "") if told is not None else SIGNAL
        if self._watch is None or not self._watch.should_stop():
            return ""
        if self._watch.stale:
            return REPLACED
        return str(self._watch.reason or "")

    @property
    def over(self) -> bool:
        """Nothing this incarnation says counts any more."""
        return self._reason == REPLACED or (self._watch is not None and self._watch.stale)

    def _ask(self) -> Preemption | None:
        """What another rank has heard. Asked for once."""
        if self._told is None and self._why is not None:
            self._told, self._told_at = self._why(), time.monotonic()
        return self._told

    def remaining_s(self) -> float:
        """Until it is ended if it does not leave; 0 when that is not known."""
        if self._watch is None and self._together is not None and self._together.stops:
            told = self._ask()
            return max(0.0, told.remaining_s - (time.monotonic() - self._told_at)) if told is not None else 0.0
        return self._watch.remaining_s() if self._watch is not None else 0.0

    def acknowledged(self, timeout_s: float) -> bool:
        """Whether nobody waits for this run to say that it leaves."""
        if self._watch is None or not self._seen or self.over or self._reason:
            return True
        return self._watch.acknowledged(timeout_s)

    def close(self) -> None:
        self._closed = True
        if threading.current_thread() is threading.main_thread():
            self._restore()
        if self._watch is not None:
            self._watch.close()
