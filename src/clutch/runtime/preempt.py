"""Must this work leave? A thread waits at the master for the answer; asking it costs nothing.

``should_stop`` turns true when the master asks the member to leave, or has replaced it. A master that does not answer
changes nothing: the thread goes on asking, and the work goes on (P5). Once the work has ``seen`` that it must leave the
thread says so to the master: exit 0 then means that the work left, not that it is done.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType

from clutch.runtime.info import Info
from clutch.wire.errors import ClutchError, NotAuthenticated, Stale

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clutch.runtime.client import PushClient
    from clutch.wire.push import Preemption
    from clutch.wire.schedule import PreemptReason

POLL_S = 60.0
AGAIN_S = 1.0
JOIN_S = 10.0


class PreemptionWatch:
    """Begun by ``start``, ended by ``close`` (or as a context manager)."""

    def __init__(self, info: Info, *, poll_s: float = POLL_S) -> None:
        self._info = info
        self._client: PushClient | None = None
        self._poll_s = poll_s
        self._asked = threading.Event()
        self._seen = threading.Event()
        self._said = threading.Event()
        self._closed = threading.Event()
        self._heard: Preemption | None = None
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

    def seen(self) -> None:
        """The work knows that it must leave, and will: the master is told. Never waits."""
        self._seen.set()

    def acknowledged(self, timeout_s: float) -> bool:
        """Whether the master knows that the work has seen it, as soon as it does, at most so long."""
        return self._said.wait(timeout_s)

    @property
    def reason(self) -> PreemptReason | None:
        return self._heard.reason if self._heard is not None else None

    def remaining_s(self) -> float:
        """Seconds until the member is ended; 0 when nobody asked."""
        if self._heard is None:
            return 0.0
        return max(0.0, self._heard.remaining_s - (time.monotonic() - self._heard_at))

    def close(self) -> None:
        self._closed.set()
        self._seen.set()  # wakes the thread
        if self._client is not None:
            self._client.connection.abort()
        if self._thread.ident is not None:
            self._thread.join(JOIN_S)

    def __enter__(self) -> PreemptionWatch:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _watch(self) -> None:
        from clutch.runtime.client import PushClient  # here: HTTP is most of what an import would cost the work

        self._client = client = PushClient.open(self._info, try_s=AGAIN_S)
        try:
            heard = self._listen(client)
            if heard is None:
                return
            self._heard, self._heard_at = heard, time.monotonic()
            self._asked.set()
            self._seen.wait()
            self._acknowledge(client)
        except (Stale, NotAuthenticated):
            if not self._closed.is_set():
                self.stale = True
                self._asked.set()
        finally:
            client.close()

    def _listen(self, client: PushClient) -> Preemption | None:
        while not self._closed.is_set():
            try:
                heard = client.preemption(self._poll_s)
            except (Stale, NotAuthenticated):
                raise
            except ClutchError:
                self._closed.wait(AGAIN_S)
                continue
            if heard.asked:
                return heard
        return None

    def _acknowledge(self, client: PushClient) -> None:
        while not self._closed.is_set():
            try:
                client.acknowledge()
            except (Stale, NotAuthenticated):
                raise
            except ClutchError:
                self._closed.wait(AGAIN_S)
                continue
            self._said.set()
            return
