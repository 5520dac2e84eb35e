"""The small processes that look after members, as whoever starts them and whoever comes later deals with them.

Each holds its member's directory, hears orders on one FIFO and tells of changes on another. What it looks after, a
process or a container, is no matter here.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

from clutch.backends.containers.base import Claim, Directories, Key
from clutch.backends.containers.nursery import Nursery, spawned
from clutch.backends.containers.nursery_main import SPARE_FD, TARGETS
from clutch.wire.containers import ExitRecord, Observed
from clutch.wire.errors import ClutchError, NotFound, TimedOut, Unavailable
from clutch.wire.messages import MemberStatus

WAKE, ORDERS, SHIM_LOG = "wake", "orders", "shim.log"
LOOK_AGAIN_S = 1.0
AFTER_SHIM_S = 0.02
LEAVING_WITHIN_S = 1.0


class Shims:
    """Those of one machine's directories."""

    def __init__(self, directories: Directories) -> None:
        self._directories = directories
        self._watches: dict[Key, _Watch] = {}
        self._children: dict[int, _Child] = {}  # by pid, those that this process started and has not yet waited for

    def spawn(
        self, key: Key, claim: Claim, command: Sequence[str], launch: bytes, nursery: Nursery | None = None
    ) -> None:
        """Start one with lock and FIFOs as descriptors 3 to 5 and the launch, in memory only, as input.

        From the nursery if there is one that can, else by the command. The claim's descriptors are closed here whatever
        happens; ``OSError`` if it could not be started.
        """
        opened: list[int] = [claim.lock, claim.wake, claim.orders]
        try:
            paper = os.memfd_create("launch")
            opened.append(paper)
            with open(paper, "wb", closefd=False) as file:
                file.write(launch)
            os.lseek(paper, 0, os.SEEK_SET)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            log = os.open(claim.path / SHIM_LOG, flags, 0o600)
            opened.append(log)
            sources = (paper, claim.lock, claim.wake, claim.orders, log)
            if nursery is not None and nursery.take(claim.path, sources):
                return
            actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = []
            for source, target in zip(sources, TARGETS, strict=True):
                high = fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, SPARE_FD)
                opened.append(high)
                actions.append((os.POSIX_SPAWN_DUP2, high, target))
            actions.append((os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0))
            pid = spawned(command, actions)
        finally:
            for descriptor in opened:
                os.close(descriptor)
        self._children[pid] = _Child(pid, key, self._children)

    def order(self, key: Key, order: bytes) -> None:
        """Tell it something; nothing if it has exited."""
        path = self._directories.path(key)
        try:
            descriptor = os.open(path / ORDERS, os.O_WRONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            if path.exists():
                return
            raise not_here(key) from None
        except OSError:
            return  # nobody reads it: it has exited
        try:
            os.write(descriptor, order)
        except BlockingIOError as full:
            raise Unavailable("its shim does not take orders", object=str(key.member)) from full
        finally:
            os.close(descriptor)

    async def wait(
        self, key: Key, timeout_s: float, observe: Callable[[Key], Awaitable[Observed | None]]
    ) -> ExitRecord:
        """Its exit record as soon as ``observe`` finds one."""
        deadline = time.monotonic() + timeout_s
        while True:
            watch = self.watch(key)
            heard = watch.next_state() if watch is not None else None
            observed = await observe(key)
            if observed is None:
                raise not_here(key)
            if observed.exit is not None:
                return observed.exit
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimedOut(f"it still runs after {timeout_s:g} s", object=f"{key.member} {key.fence}")
            if heard is None:
                await asyncio.sleep(min(left_s, AFTER_SHIM_S))
                continue
            await asyncio.wait([heard], timeout=min(left_s, LOOK_AGAIN_S))
            heard.cancel()

    async def changed(self, key: Key, timeout_s: float) -> bool:
        watch = self.watch(key)
        if watch is None:
            if not self._directories.path(key).exists():
                raise not_here(key)
            return True  # all has happened
        if not watch.dirty:
            heard = watch.next_change()
            await asyncio.wait([heard], timeout=timeout_s)
            heard.cancel()
        dirty, watch.dirty = watch.dirty, False
        return dirty

    def watch(self, key: Key) -> _Watch | None:
        """The ear on a member's shim; None when there is no shim to hear any more."""
        watch = self._watches.get(key)
        if watch is None:
            try:
                watch = _Watch(self._directories.path(key) / WAKE)
            except OSError:
                return None
            self._watches[key] = watch
        return None if watch.gone else watch

    def drop(self, key: Key) -> None:
        """Stop listening to it."""
        watch = self._watches.pop(key, None)
        if watch is not None:
            watch.close()

    async def close(self) -> None:
        """Let go of all; they go on. Those that are just leaving are waited for."""
        leaving = [child.gone for child in self._children.values() if self._is_leaving(child)]
        if leaving:
            await asyncio.wait(leaving, timeout=LEAVING_WITHIN_S)
        for key in list(self._watches):
            self.drop(key)
        for child in list(self._children.values()):
            child.let_go()

    def _is_leaving(self, child: _Child) -> bool:
        seen = self._directories.observe(child.key)
        return seen is None or seen.status is MemberStatus.EXITED


class _Child:
    """A shim that this process started and must wait for, so that it does not stay behind as a dead entry."""

    def __init__(self, pid: int, key: Key, siblings: dict[int, _Child]) -> None:
        self.pid = pid
        self.key = key
        self._siblings = siblings
        self._pidfd = os.pidfd_open(pid)
        self._loop = asyncio.get_running_loop()
        self.gone = self._loop.create_future()
        self._loop.add_reader(self._pidfd, self.let_go)

    def let_go(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        del self._siblings[self.pid]
        with suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        self.gone.set_result(None)


class _Watch:
    """Hears the shim's FIFO: ``o`` for output, another byte for a new state, the end when the shim is gone.

    A FIFO that was full has lost bytes. That is no harm to ``dirty``; who waits for a state looks again on his own.
    """

    def __init__(self, path: Path) -> None:
        self.dirty = True
        self.gone = False
        self._for_any: list[asyncio.Future[None]] = []
        self._for_state: list[asyncio.Future[None]] = []
        self._loop = asyncio.get_running_loop()
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._loop.add_reader(self._fd, self._readable)
        self._readable()  # a FIFO that nobody writes is at its end, but no event would say so

    def next_change(self) -> asyncio.Future[None]:
        return self._next(self._for_any)

    def next_state(self) -> asyncio.Future[None]:
        return self._next(self._for_state)

    def _next(self, waiting: list[asyncio.Future[None]]) -> asyncio.Future[None]:
        future = self._loop.create_future()
        if self.gone:
            future.set_result(None)
        else:
            waiting[:] = [other for other in waiting if not other.done()]
            waiting.append(future)
        return future

    def _readable(self) -> None:
        try:
            heard = os.read(self._fd, 65536)
        except BlockingIOError:
            return
        self.dirty = True
        if not heard:
            self.close()
            return
        _tell(self._for_any)
        if heard.strip(b"o"):
            _tell(self._for_state)

    def close(self) -> None:
        if not self.gone:
            self.gone = True
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            _tell(self._for_any)
            _tell(self._for_state)


def _tell(waiting: list[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)
    waiting.clear()


def not_here(key: Key) -> ClutchError:
    return NotFound("it is not on this machine", object=f"{key.member} {key.fence}")
