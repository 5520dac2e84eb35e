"""The loop over the processes of one member: what they print, how they end, what is passed on to them.

It is alone in its process, single-threaded, and starts nothing but its children. A child dies with it
(``PR_SET_PDEATHSIG``); what the child itself started dies with the member, whose shim ends all.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import errno
import fcntl
import os
import select
import signal
import subprocess
import time
import types
from collections.abc import Callable
from pathlib import Path

import msgspec

from clutch.runtime.last_words import found
from clutch.runtime.launch.ends import End, tail_text
from clutch.runtime.launch.lines import Lines, Raw

READ_BYTES = 65536
NOT_FOUND = 127
PR_SET_PDEATHSIG = 1
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
FORWARDED = (*ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
ENDS = "ends"
"""The FIFO over which ranks below somebody else's launcher say how they failed, and that they are there at all: each
holds it open as long as it lives."""


FOLLOWS_S = 1.0
"""So long the others have to end by themselves when a rank has lost a peer: one of them may be the cause, and would be
taken for a victim if it were ended first."""
_ending = msgspec.json.Decoder(tuple[str, int, list[str], str, bool])


class Child:
    """A process with two pipes, in a session of its own: a signal for it reaches all it started."""

    def __init__(
        self, who: str, process: subprocess.Popen[bytes], streams: list[tuple[int, int, Lines | Raw]], words: str
    ) -> None:
        self.who = who
        self.process = process
        self.words = words  # the file in which it says why it ended
        self.streams = streams  # where to read, where to write, how

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


def dies_with_parent() -> None:
    """The calling process is killed when its parent dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def start(argv: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    me, libc = os.getpid(), ctypes.CDLL(None)

    def before() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != me:
            os._exit(NOT_FOUND)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    return subprocess.Popen(
        argv,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=before,
    )


def write_all(fd: int, data: bytes, lock: int = -1) -> None:
    """To the member's output. Nobody may be left to read it: then it is gone, as it would be for the rank itself."""
    if not data:
        return
    if lock >= 0:
        fcntl.flock(lock, fcntl.LOCK_EX)  # others write there too, and a line must stay whole
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EBADF, errno.EIO):
            raise
    finally:
        if lock >= 0:
            fcntl.flock(lock, fcntl.LOCK_UN)


class Supervisor:
    """Children from their start to the end of the last one."""

    def __init__(
        self, grace_s: float, folder: str = "", lock: int = -1, told: Callable[[End], None] = lambda end: None
    ) -> None:
        """``told``: of each failure that counts, at once; of a later one, if that is found to be the cause."""
        self.children: list[Child] = []
        self._told = told
        self._ask_at: float | None = None
        self.failure: End | None = None
        self.asked: list[int] = []  # signals that were passed on and may end a rank
        self._grace_s = grace_s
        self._kill_at: float | None = None
        self._lock = lock
        self._poll = select.poll()
        self._readers: dict[int, tuple[int, Lines | Raw]] = {}
        self._wake, wake = os.pipe()
        for fd in (self._wake, wake):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._poll.register(self._wake, select.POLLIN)
        self._ends, self._ends_path = -1, Path()
        if folder:
            path = Path(folder, ENDS)
            os.mkfifo(path, 0o600)
            self._ends_path = path
            self._ends = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._poll.register(self._ends, select.POLLIN)

    def add(self, who: str, process: subprocess.Popen[bytes], makers: list[Lines | Raw], words: str = "") -> None:
        assert process.stdout is not None and process.stderr is not None
        streams = []
        for pipe, target, lines in zip((process.stdout, process.stderr), (1, 2), makers, strict=True):
            fd = pipe.fileno()
            os.set_blocking(fd, False)
            self._readers[fd] = (target, lines)
            self._poll.register(fd, select.POLLIN)
            streams.append((fd, target, lines))
        self.children.append(Child(who, process, streams, words))

    def passes_signals_on(self) -> None:
        for number in FORWARDED:
            signal.signal(number, self._pass_on)

    def _pass_on(self, number: int, _: types.FrameType | None) -> None:
        if number in ENDING:
            self.asked.append(number)
        for child in self.children:
            if child.process.returncode is None:
                child.send(number)

    def run(self, tails: dict[str, collections.deque[bytes]]) -> None:
        """Returns when all have exited; ``failure`` is the first that did so badly."""
        while alive := [child for child in self.children if child.process.returncode is None]:
            self._turn()
            for child in alive:
                if child.process.poll() is not None:
                    self._gone(child, tails[child.who])
        self._hear()

    def _turn(self) -> None:
        now = time.monotonic()
        dues = [due for _, lines in self._readers.values() if (due := lines.due()) is not None]
        dues += [due for due in (self._ask_at, self._kill_at) if due is not None]
        wait_ms = max(0, min((due - now) * 1000 + 1 for due in dues)) if dues else None
        for fd, event in self._poll.poll(wait_ms):
            if fd == self._wake:
                self._drain_wake()
            elif fd == self._ends:
                self._hear()
                if event & select.POLLHUP:
                    self._no_rank_left()
            else:
                self._pump(fd)
        now = time.monotonic()
        for target, lines in self._readers.values():
            write_all(target, lines.tick(now), self._lock)
        if self._ask_at is not None and now >= self._ask_at:
            self._ask(now)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            for child in self.children:
                if child.process.returncode is None:
                    child.send(signal.SIGKILL)

    def _drain_wake(self) -> None:
        try:
            while os.read(self._wake, 4096):
                pass
        except BlockingIOError:
            pass

    def _pump(self, fd: int) -> bool:
        """False when there is no more for now, or for ever."""
        target, lines = self._readers[fd]
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            write_all(target, lines.feed(data, time.monotonic()), self._lock)
            return True
        self._poll.unregister(fd)
        del self._readers[fd]
        write_all(target, lines.close(time.monotonic()), self._lock)
        return False

    def _gone(self, child: Child, tail: collections.deque[bytes]) -> None:
        for fd, target, lines in child.streams:
            while fd in self._readers and self._pump(fd):
                pass
            if fd in self._readers:  # something it started still holds the pipe
                write_all(target, lines.close(time.monotonic()), self._lock)
        self._hear()  # a rank says how it failed before its launcher can end
        code = child.process.returncode
        if code and not self._was_asked(code):
            late = bool(self.asked) or self._ends >= 0  # a launcher ends because of its ranks
            self.failed(End(child.who, code, tail_text(tail), found(child.words), late))
            child.send(signal.SIGKILL)  # what it left behind

    def _was_asked(self, code: int) -> bool:
        """It ended by a signal that came from outside: the others keep their time. A launcher that was asked to end
        has codes of its own for that; its ranks would have said it if they had failed."""
        return any(code in (-number, 128 + number) for number in self.asked) or bool(self._ends >= 0 and self.asked)

    def failed(self, end: End) -> None:
        """The first failure counts: the others follow from it. One that says itself that it follows from another is
        the first only until that one is found, among those that have not been asked to end."""
        first = self.failure is None
        is_cause = self._ask_at is not None and not end.follows and not end.asked
        if not first and not is_cause:
            return
        self.failure = end
        if not self.asked:
            self._told(end)
        if end.follows:
            self._ask_at = time.monotonic() + FOLLOWS_S
        else:
            self._ask(time.monotonic())

    def _ask(self, now: float) -> None:
        self._ask_at, self._kill_at = None, now + self._grace_s
        for child in self.children:
            if child.process.returncode is None:
                child.send(signal.SIGTERM)

    def _no_rank_left(self) -> None:
        """After a failure a launcher has nothing more to say, and may take seconds for it; else new ranks may come."""
        self._poll.unregister(self._ends)
        if self.failure is not None:
            for child in self.children:
                child.send(signal.SIGKILL)
            return
        again = os.open(self._ends_path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # first: nothing is lost between
        os.close(self._ends)
        self._ends = again
        self._poll.register(self._ends, select.POLLIN)

    def _hear(self) -> None:
        if self._ends < 0:
            return
        try:
            said = os.read(self._ends, READ_BYTES)
        except BlockingIOError:
            return
        for line in said.splitlines():
            with contextlib.suppress(msgspec.MsgspecError):  # anything of the user's may write there
                self.failed(End(*_ending.decode(line)))
