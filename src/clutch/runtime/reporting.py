"""Reporting that costs the training loop an append: a thread takes what was reported to where it is kept.

Points wait in memory for at most ``EVERY_S``; a validation goes on its way at once. Where they go is an ``Outlet``: the
master (``runtime.shipping``) or a folder (``runtime.local``).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from clutch.runtime.spool import Point

EVERY_S = 1.0
WAKE_POINTS = 1_000
PENDING_MAX = 200_000
"""Points that may wait in memory. Nobody reports so fast that the thread cannot follow, unless the machine is stuck."""
VALIDATION = "validation"
JOIN_S = 10.0


class Outlet(Protocol):
    """Where reports go. Only the reporter's thread calls ``take``; ``close`` comes last."""

    def take(self, points: list[Point]) -> None:
        """Keep these; may use a disk, never waits for a network."""
        ...

    def progress(self, fraction: float, message: str) -> None: ...

    def flush(self, within_s: float) -> bool:
        """Whether everything taken is where it belongs, as soon as it is, at most so long from now."""
        ...

    def close(self, within_s: float) -> None:
        """Flush, and let go of everything."""
        ...


class Reporter:
    """One of a process. ``report`` may be called from any thread."""

    def __init__(self, open_outlet: Callable[[], Outlet]) -> None:
        self._open_outlet = open_outlet
        self._opened: Outlet | None = None
        self._opening = threading.Lock()
        self._pending: deque[Point] = deque()
        self._wake = threading.Event()
        self._closed = False
        self._taken = threading.Condition()
        self._rounds = 0
        self._begun = threading.Lock()
        self._thread: threading.Thread | None = None
        self.dropped = 0
        """Training points that found no room in memory."""
        self.failure: Exception | None = None
        """Why the thread ended, if it did before its time."""

    def report(self, group: str, step: int, values: dict[str, float | int]) -> None:
        """Take note of checked values. Never waits."""
        pending = self._pending
        if len(pending) >= PENDING_MAX and group != VALIDATION:
            self.dropped += 1
            return
        pending.append((group, step, values, time.time()))
        if self._thread is None:
            self._begin()
        if group == VALIDATION or len(pending) >= WAKE_POINTS:
            self._wake.set()

    def progress(self, fraction: float, message: str) -> None:
        self._outlet().progress(fraction, message)

    def settle(self, within_s: float) -> None:
        """Returns when nothing reported so far waits in memory any more, where a killed process would lose it."""
        if self._thread is None:
            return
        until = time.monotonic() + within_s
        with self._taken:
            wanted = self._rounds + 2  # the round under way may have begun before the last report
            while self._rounds < wanted and self._thread.is_alive() and time.monotonic() < until:
                self._wake.set()
                self._taken.wait(0.05)

    def flush(self, within_s: float) -> bool:
        """Whether everything reported so far is where it belongs, at most so long from now."""
        until = time.monotonic() + within_s
        self.settle(within_s)
        return self._outlet().flush(max(0.0, until - time.monotonic()))

    def close(self, within_s: float) -> None:
        """Everything goes on its way; at most so long is waited for its arrival."""
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(JOIN_S)
        if self._opened is not None:
            self._opened.close(within_s)

    def _outlet(self) -> Outlet:
        if self._opened is None:
            self._open()
        assert self._opened is not None
        return self._opened

    def _open(self) -> None:
        with self._opening:
            if self._opened is None:
                self._opened = self._open_outlet()

    def _begin(self) -> None:
        with self._begun:
            if self._thread is None:
                # A daemon, so that a program that forgets to close its run still ends
                thread = threading.Thread(target=self._run, name="clutch-reports", daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while True:
            closing = self._closed
            self._wake.clear()
            try:
                self._take()
            except Exception as error:  # reporting never fails training; ``Run`` says it once
                self.failure = error
                return
            with self._taken:
                self._rounds += 1
                self._taken.notify_all()
            if closing and not self._pending:
                return
            if not self._closed:
                self._wake.wait(EVERY_S)

    def _take(self) -> None:
        pending = self._pending
        points: list[Point] = []
        while pending:
            points.append(pending.popleft())
            if len(points) >= WAKE_POINTS:
                self._outlet().take(points)
                points = []
        if points:
            self._outlet().take(points)
