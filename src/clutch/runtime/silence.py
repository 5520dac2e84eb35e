"""A process that says nothing for too long shows where it hangs: the stacks of all its threads, on standard error.

Whatever a script does with its run is a sign of life. A thread looks at them; when it cannot even run, because C code
holds the interpreter, the interpreter's own timer (``faulthandler``) shows the stacks without it. SIGUSR1 does so at
any time.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

DUMP, RESTART = "dump", "restart"
SILENT = 119
"""Exit code of a process that was silent for too long."""
STUCK_AFTER_S = 5.0
"""How much later the interpreter's timer steps in for a thread that cannot run."""
END_AFTER_S = 2.0
"""How long a process that shall end waits for its peers to show where they are: its end takes them along."""
LOOKS = 8
"""How often in one time of silence is looked."""


class Silence:
    """Begun by ``start``. ``last`` is set by whoever hears of the process; ``calls`` says how many calls were made that
    do not come here."""

    def __init__(
        self,
        after_s: float,
        *,
        restart: bool = False,
        who: str = "",
        calls: Callable[[], int] = lambda: 0,
        say: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.last = time.monotonic()
        self.after_s = after_s
        self._restart = restart
        self._who = who
        self._calls = calls
        self._say = say
        self._paused = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="clutch-silence", daemon=True)

    def start(self) -> Silence:
        self._thread.start()
        return self

    def heard(self) -> None:
        self.last = time.monotonic()

    def __enter__(self) -> None:
        """What follows may take long, and has its own deadlines."""
        self._paused += 1

    def __exit__(self, *error: object) -> None:
        self._paused -= 1
        self.last = time.monotonic()

    def close(self) -> None:
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join(STUCK_AFTER_S)

    def _watch(self) -> None:
        made, told, every_s = self._calls(), 0.0, self.after_s / LOOKS
        try:
            while True:
                _show_later(self.after_s + STUCK_AFTER_S, exit=self._restart)
                if self._closed.wait(every_s):
                    return
                now, count = time.monotonic(), self._calls()
                if count != made or self._paused:
                    made, self.last = count, now
                last = self.last
                left_s = last + self.after_s - now
                if left_s <= 0 and last != told:
                    told = last
                    self._act(last)
                every_s = min(self.after_s / LOOKS, left_s) if left_s > 0 else self.after_s / LOOKS
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _act(self, last: float) -> None:
        then = "it is ended, to begin again from its last checkpoint" if self._restart else "it goes on"
        self._say(
            f"{self._who} has called nothing of its run for {self.after_s:g} s (no_report_timeout): where its threads "
            f"are follows, and {then}"
        )
        show_stacks()
        if self._restart and not self._closed.wait(END_AFTER_S) and self.last == last:
            os._exit(SILENT)


def show_stacks() -> None:
    try:
        faulthandler.dump_traceback(file=_descriptor(), all_threads=True)
    except (OSError, ValueError, RuntimeError):
        return


def show_stacks_on_signal() -> None:
    """SIGUSR1 shows them, unless the script does something else with it. Only the main thread may say so."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGUSR1) != signal.SIG_DFL:
        return
    try:
        faulthandler.register(signal.SIGUSR1, file=_descriptor(), all_threads=True)
    except (OSError, ValueError, RuntimeError):
        return


def _show_later(after_s: float, *, exit: bool) -> None:
    try:
        faulthandler.dump_traceback_later(after_s, file=_descriptor(), exit=exit)
    except (OSError, ValueError, RuntimeError):
        return


def _descriptor() -> int:
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return 2
