"""Where shims come from quickly: one process that is copied for each, instead of an interpreter started for each.

It only helps. Who asks it is told at once whether it took the member over, and starts the shim himself if not: before
the nursery is ready, when it is gone, when it is busy. Whatever becomes of it, the member's lock tells the truth: a
request that dies with it lets go of the lock, and the member counts as never started (decision 0403).
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from clutch.backends.containers.nursery_main import BORN, READY

AGAIN_AFTER_S = 5.0
"""One that cannot live is not tried again sooner."""
ANSWER_WITHIN_S = 30.0
"""One that does not answer is killed: its requests then fail, instead of waiting for ever."""
LEAVE_WITHIN_S = 1.0
_CODE = "import sys; sys.path += sys.argv[1:3]; import shim, nursery_main; nursery_main.main(shim)"


def spawned(command: Sequence[str], actions: list[tuple[int, ...] | tuple[int, int, str, int, int]]) -> int:
    """The pid of a small process of ours: its own session, all signals as the kernel sets them, no environment."""
    return os.posix_spawn(
        command[0],
        list(command),
        {"LC_ALL": "C.UTF-8"},
        file_actions=actions,
        setsid=True,
        setsigmask=(),
        setsigdef=_ALL_SIGNALS,
    )


_ALL_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


class Nursery:
    """``take`` hands a member's directory to a new shim. ``shim`` is the shim's file; call ``close`` when done."""

    def __init__(self, python: str, shim: Path) -> None:
        self._command = (python, "-I", "-S", "-c", _CODE, str(shim.parent), str(Path(__file__).parent))
        self._process: _Process | None = None
        self._began_at = -AGAIN_AFTER_S

    def take(self, path: Path, descriptors: Sequence[int]) -> bool:
        """Whether a shim will be born that holds them; the caller closes his own in any case.

        ``descriptors``: launch, lock, wake, orders, log. The first call starts the nursery.
        """
        process = self._process
        if process is None or process.gone.done():
            self._begin(path.parent)
            return False
        return process.take(path, descriptors)

    def _begin(self, root: Path) -> None:
        """``root`` is only said: it tells people, and who clears up after an agent, whose it is."""
        if time.monotonic() - self._began_at < AGAIN_AFTER_S:
            return
        self._began_at = time.monotonic()
        with suppress(OSError):  # the caller's own attempt will say why
            self._process = _Process((*self._command, str(root)))

    async def close(self) -> None:
        """It ends; the shims go on."""
        if self._process is not None:
            await self._process.close()


class _Process:
    """One nursery, from its start until it was waited for."""

    def __init__(self, command: Sequence[str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            null = (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)
            self._pid = spawned(command, [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0), null])
        except OSError:
            self._socket.close()
            raise
        finally:
            theirs.close()
        self._socket.setblocking(False)
        self._pidfd = os.pidfd_open(self._pid)
        self._ready = False
        self._unanswered = 0
        self._alarm: asyncio.TimerHandle | None = None
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._pidfd, self._ended)
        self._loop.add_reader(self._socket, self._heard)

    def take(self, path: Path, descriptors: Sequence[int]) -> bool:
        if not self._ready:
            return False
        try:
            socket.send_fds(self._socket, [os.fsencode(path)], list(descriptors))
        except OSError:
            return False  # busy, or about to be gone; a packet is sent whole or not at all
        self._unanswered += 1
        if self._alarm is None:
            self._alarm = self._loop.call_later(ANSWER_WITHIN_S, self._kill)
        return True

    def _heard(self) -> None:
        try:
            said = self._socket.recv(1)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            self._loop.remove_reader(self._socket)
            self._ready = False
        elif said == READY:
            self._ready = True
        elif said == BORN:
            self._unanswered -= 1
            self._quiet()
            if self._unanswered:
                self._alarm = self._loop.call_later(ANSWER_WITHIN_S, self._kill)

    def _quiet(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _ended(self) -> None:
        self._quiet()
        self._ready = False
        self._loop.remove_reader(self._pidfd)
        self._loop.remove_reader(self._socket)
        self._socket.close()
        os.close(self._pidfd)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, os.WNOHANG)
        self.gone.set_result(None)

    async def close(self) -> None:
        if self.gone.done():
            return
        self._socket.shutdown(socket.SHUT_RDWR)  # it still serves what it was asked
        await asyncio.wait([self.gone], timeout=LEAVE_WITHIN_S)
        if not self.gone.done():
            self._ended()
