"""Reports to the master: into the spool at once, from there in order, again and again until each is acknowledged.

A master that is away changes nothing but the length of the spool. One that says that this incarnation is over ends
the shipping: nothing it would still send counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from clutch.wire.errors import ClutchError, NotAuthenticated, Stale

if TYPE_CHECKING:
    from clutch.runtime.spool import Point, Spool

SEND_BYTES = 512 << 10
"""Of one post. The master decodes it in one go, and meanwhile grants nothing: this is 2 ms."""
AGAIN_S, AGAIN_MAX_S = 0.5, 5.0
REFUSED_MAX = 3
"""A batch that is refused so often for what it is, and not for the state of the cluster, is given up."""
JOIN_S = 10.0


class Voice(Protocol):
    """The part of a push client that this needs; used by one thread."""

    def metric_lines(self, batches: list[bytes]) -> int: ...

    def progress(self, fraction: float, message: str = "") -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


class Shipper:
    """An outlet. ``on_over`` is called once, by its thread, when the master says that this incarnation is over."""

    def __init__(
        self,
        open_voice: Callable[[], Voice],
        open_spool: Callable[[], Spool],
        on_over: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._open_voice = open_voice
        self._open_spool = open_spool
        self._on_over = on_over
        self._say = say
        self._voice: Voice | None = None
        self._spool: Spool | None = None
        self._progress: tuple[float, str] | None = None
        self._wake = threading.Event()
        self._state = threading.Condition()
        self._closed = threading.Event()
        self._over = False
        self._sending = False
        self._aligned = False
        self._refusals = 0
        self._thread: threading.Thread | None = None

    def take(self, points: list[Point]) -> None:
        if self._over:
            return
        if self._spool is None:
            self._spool = self._open_spool()
        before = self._spool.thinned
        self._spool.put(points)
        if self._spool.thinned and not before:
            self._say("the master has been away for long: the oldest training points not yet sent are thinned")
        self._begin()

    def progress(self, fraction: float, message: str) -> None:
        self._progress = (fraction, message)
        self._begin()

    def flush(self, within_s: float) -> bool:
        until = time.monotonic() + within_s
        with self._state:
            while self._busy() and time.monotonic() < until:
                self._wake.set()
                self._state.wait(min(0.1, max(0.001, until - time.monotonic())))
            return not self._busy()

    def close(self, within_s: float) -> None:
        whole = self.flush(within_s)
        self._closed.set()
        self._wake.set()
        if self._voice is not None:
            self._voice.abort()
        if self._thread is not None:
            self._thread.join(JOIN_S)
        if self._spool is None:
            return
        if not whole and not self._over:
            where = self._spool.folder
            self._say(f"no master took the last {self._spool.waiting_points} points in time; they are left in {where}")
        if self._spool.thinned:
            self._say(f"{self._spool.thinned} training points were thinned while no master answered")
        self._spool.close()

    # -- the thread ------------------------------------------------------------------------------------------------

    def _busy(self) -> bool:
        return not self._over and (self._sending or (self._spool is not None and self._spool.waiting))

    def _begin(self) -> None:
        with self._state:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="clutch-shipping", daemon=True)
                self._thread.start()
        self._wake.set()

    def _run(self) -> None:
        self._voice = self._open_voice()
        pause = AGAIN_S
        try:
            while not self._closed.is_set() and not self._over:
                self._wake.clear()
                try:
                    self._send_progress()
                    while not self._closed.is_set() and self._send():
                        pause = AGAIN_S
                except (Stale, NotAuthenticated):
                    if not self._closed.is_set():
                        self._end()
                    return
                except Exception as error:  # also an answer that is none of ours: a proxy's, a broken disk's
                    self._failed(error)
                    self._closed.wait(pause)
                    pause = min(AGAIN_MAX_S, pause * 2)
                    continue
                with self._state:
                    self._state.notify_all()
                self._wake.wait()
        finally:
            self._voice.close()

    def _send(self) -> bool:
        """Whether something was sent."""
        spool = self._spool
        if spool is None:
            return False
        self._sending = True
        try:
            assert self._voice is not None
            if not self._aligned:
                spool.align(self._voice.metric_lines([]))
                self._aligned = True
            found = spool.take(1 if self._refusals else SEND_BYTES)
            if not found:
                return False
            spool.acknowledge(self._voice.metric_lines([line for _, line in found]))
            self._refusals = 0
            return True
        finally:
            self._sending = False

    def _send_progress(self) -> None:
        said, self._progress = self._progress, None
        if said is not None:
            assert self._voice is not None
            self._voice.progress(*said)

    def _failed(self, error: Exception) -> None:
        """The cluster's failures are waited out; a batch that is itself refused is tried alone, then given up."""
        if not isinstance(error, ClutchError) or error.blame != "user" or self._spool is None:
            return
        self._refusals += 1
        self._aligned = False  # perhaps the store has other numbers than we think
        if self._refusals > REFUSED_MAX:
            found = self._spool.take(1)
            if found:
                lost = self._spool.empty(found[0][0])
                self._say(f"the master refused {lost} points: {error}")
            self._refusals = 0

    def _end(self) -> None:
        self._over = True
        with self._state:
            self._state.notify_all()
        self._on_over()
