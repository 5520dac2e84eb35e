"""Must this work leave? A thread waits at the master for the answer; asking it costs nothing.

``should_stop`` turns true when the master asks the member to leave, or has replaced it. A master that does not answer
changes nothing: the thread goes on asking, and the work goes on (P5).
"""

from __future__ import annotations

import threading
import time
from types import TracebackType

from clutch.runtime.client import PushClient
from clutch.runtime.info import Info
from clutch.wire.errors import ClutchError, NotAuthenticated, Stale
from clutch.wire.push import POLL_MAX_S, Preemption
from clutch.wire.schedule import PreemptReason

AGAIN_S = 1.0
JOIN_S = 10.0


class PreemptionWatch:
    """Begun by ``start``, ended by ``close`` (or as a context manager)."""

    def __init__(self, info: Info, *, poll_s: float = POLL_MAX_S) -> None:
        self._client = PushClient.open(info, try_s=AGAIN_S)
        self._poll_s = poll_s
        self._asked = threading.Event()
        self._closed = threading.Event()
        self._heard = Preemption(asked=False)
        self._heard_at = 0.0
        self.stale = False
        """This incarnation is over: another one runs, or its task has ended. Nothing it says counts any more."""
        # A daemon, so that a program that forgets to close it still ends; it holds nothing that needs saving
        self._thread = threading.Thread(target=self._watch, name="clutch-preemption", daemon=True)

    def start(self) -> PreemptionWatch:
        self._thread.start()
        return self

    def should_stop(self) -> bool:
        """Whether the work should save itself and end. Never waits."""
        return self._asked.is_set()

    def wait(self, timeout_s: float) -> bool:
        """``should_stop``, as soon as it is so, at most so long."""
        return self._asked.wait(timeout_s)

    @property
    def reason(self) -> PreemptReason | None:
        return self._heard.reason

    def remaining_s(self) -> float:
        """Seconds until the member is ended; 0 when nobody asked."""
        if not self._heard.asked:
            return 0.0
        return max(0.0, self._heard.remaining_s - (time.monotonic() - self._heard_at))

    def close(self) -> None:
        self._closed.set()
        self._client.connection.abort()
        if self._thread.ident is not None:
            self._thread.join(JOIN_S)
        self._client.close()

    def __enter__(self) -> PreemptionWatch:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _watch(self) -> None:
        while not self._closed.is_set():
            try:
                heard = self._client.preemption(self._poll_s)
            except (Stale, NotAuthenticated):
                if not self._closed.is_set():
                    self.stale = True
                    self._asked.set()
                return
            except ClutchError:
                self._closed.wait(AGAIN_S)
                continue
            if heard.asked:
                self._heard, self._heard_at = heard, time.monotonic()
                self._asked.set()
                return
