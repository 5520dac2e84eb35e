"""Members as plain processes, each under its shim.

This object only starts shims, sends them orders and reads what they wrote; it holds nothing that a second one over the
same directories would miss. So an agent may die at any instruction: what it had begun is there or was never executed.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from clutch.backends.containers import cgroups, proc
from clutch.backends.containers.base import Claim, Directories, Key, Traces
from clutch.backends.containers.cgroups import Cgroups, Group
from clutch.wire.containers import ContainerSpec, ExitRecord, Observed, Usage, lease_environment
from clutch.wire.errors import BadRequest, ClutchError, Conflict, NotFound, TimedOut, Unavailable
from clutch.wire.messages import ExitCause, MemberStatus

MARK = "CLUTCH_CONTAINER"
"""In every member's environment, with its directory as the value: tells whose a process is when its shim is gone."""
WAKE, ORDERS, SHIM_LOG = "wake", "orders", "shim.log"
LOOK_AGAIN_S = 1.0
AFTER_SHIM_S = 0.02
END_OURSELVES_AFTER_S = 5.0
SURVIVORS_WITHIN_S = 10.0
LEAVING_WITHIN_S = 1.0
_SHIM_CODE = "import sys; sys.path.append(sys.argv.pop(1)); import shim; shim.main()"


class ProcessContainers:
    """Implements ``Containers`` and ``Wakes``. ``shim`` is the shim's file; call ``close`` when done."""

    def __init__(
        self, directories: Directories, shim: Path, groups: Cgroups | None = None, python: str = sys.executable
    ) -> None:
        self._directories = directories
        self._shim = shim
        self._groups = groups if groups is not None else Cgroups.detect()
        self._python = python
        self._watches: dict[Key, _Watch] = {}
        self._shims: dict[int, _Child] = {}  # by pid, those that are our children and not yet waited for
        self._end_asked: dict[Key, float] = {}

    # -- start ---------------------------------------------------------------------------------------------------

    async def start(self, spec: ContainerSpec) -> Observed:
        key = Key(spec.member, spec.fence)
        known = await self.observe(key)
        if known is not None:
            return known
        launch_fields = _launch_fields(spec, self._directories.path(key))
        group = self._groups.make(self._group_name(key), spec.limits)
        claim = self._directories.claim(spec, group.paths, group.notices)
        if claim is not None:
            try:
                pid = self._spawn(claim, _packed(launch_fields, spec, group))
                self._shims[pid] = _Child(pid, key, self._shims)
            except OSError as failed:
                self._settle_unspawned(key, failed)
            finally:
                for descriptor in (claim.lock, claim.wake, claim.orders):
                    os.close(descriptor)
        observed = await self.observe(key)
        if observed is None:
            raise Unavailable("it was forgotten while it was being started", object=str(spec.member))
        return observed

    def _group_name(self, key: Key) -> str:
        return "clutch-" + hashlib.sha256(bytes(self._directories.path(key))).hexdigest()[:24]

    def _spawn(self, claim: Claim, launch: bytes) -> int:
        """Start the shim with the lock and the FIFOs as descriptors 3 to 5 and the launch, in memory only, as input."""
        opened: list[int] = []
        try:
            paper = os.memfd_create("launch")
            opened.append(paper)
            with open(paper, "wb", closefd=False) as file:
                file.write(launch)
            os.lseek(paper, 0, os.SEEK_SET)
            actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = []
            for source, target in ((paper, 0), (claim.lock, 3), (claim.wake, 4), (claim.orders, 5)):
                high = fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, 16)  # a source must not be another's target
                opened.append(high)
                actions.append((os.POSIX_SPAWN_DUP2, high, target))
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            actions.append((os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0))
            actions.append((os.POSIX_SPAWN_OPEN, 2, str(claim.path / SHIM_LOG), flags, 0o600))
            return os.posix_spawn(
                self._python,
                [self._python, "-I", "-S", "-c", _SHIM_CODE, str(self._shim.parent), str(claim.path)],
                {"LC_ALL": "C.UTF-8"},
                file_actions=actions,
                setsid=True,
                setsigmask=(),
                setsigdef=sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}),
            )
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _settle_unspawned(self, key: Key, failed: OSError) -> None:
        reason = f"its shim could not be started: {failed.strerror or failed}"
        record = ExitRecord(127, ExitCause.NEVER_STARTED, reason, ended_at=time.time())
        self._directories.settle(key, record)

    # -- orders --------------------------------------------------------------------------------------------------

    async def signal(self, key: Key, number: int) -> None:
        if not 0 < number < signal.NSIG:
            raise BadRequest(f"there is no signal {number}", object=str(key.member))
        self._order(key, b"signal %d\n" % number)

    async def end(self, key: Key) -> None:
        observed = await self.observe(key)
        if observed is None:
            raise _not_here(key)
        if observed.status is MemberStatus.EXITED:
            return
        self._order(key, b"kill\n")
        traces = self._directories.traces(key)
        proc.send(traces.shim, signal.SIGCONT, lambda pid: proc.is_process(pid, traces.shim_ticks))
        asked = self._end_asked.setdefault(key, time.monotonic())
        if time.monotonic() - asked > END_OURSELVES_AFTER_S and proc.is_process(traces.shim, traces.shim_ticks):
            self._strike(traces)

    def _strike(self, traces: Traces) -> None:
        """The shim does not get to it (a disk that hangs, say): end its tree from here."""
        cgroups.kill(traces.cgroups)
        for pid in proc.tree(traces.shim):
            proc.send(pid, signal.SIGKILL, lambda pid: pid in proc.tree(traces.shim))

    def _order(self, key: Key, order: bytes) -> None:
        path = self._directories.path(key)
        try:
            descriptor = os.open(path / ORDERS, os.O_WRONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            if path.exists():
                return
            raise _not_here(key) from None
        except OSError:
            return  # nobody reads it: it has exited
        try:
            os.write(descriptor, order)
        except BlockingIOError as full:
            raise Unavailable("its shim does not take orders", object=str(key.member)) from full
        finally:
            os.close(descriptor)

    # -- what is there -------------------------------------------------------------------------------------------

    async def observe(self, key: Key) -> Observed | None:
        lost = self._directories.lost(key)
        if lost is not None:
            survivors = await self._end_survivors(key)
            if survivors:
                seen = self._directories.observe(key)
                notice = f"its shim is gone and these processes cannot be ended: {', '.join(map(str, survivors))}"
                return seen and replace(seen, status=MemberStatus.RUNNING, exit=None, notices=(*seen.notices, notice))
            with suppress(OSError):  # a full disk: it is still true, and written at the next look
                self._directories.settle(key, lost)
        return self._directories.observe(key)

    async def found(self) -> list[Observed]:
        seen = [await self.observe(key) for key in self._directories.found()]
        return [one for one in seen if one is not None]

    async def usage(self, key: Key) -> Usage:
        observed = self._directories.observe(key)
        if observed is None:
            raise _not_here(key)
        traces = self._directories.traces(key)
        if observed.exit is not None or not proc.is_process(traces.shim, traces.shim_ticks):
            return Usage(observed.exit.cpu_s if observed.exit is not None else 0.0, 0, 0)
        return proc.usage(traces.shim)

    async def wait(self, key: Key, timeout_s: float) -> ExitRecord:
        deadline = time.monotonic() + timeout_s
        while True:
            watch = self._watch(key)
            heard = watch.next_state() if watch is not None else None
            observed = await self.observe(key)
            if observed is None:
                raise _not_here(key)
            if observed.exit is not None:
                self._end_asked.pop(key, None)
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
        watch = self._watch(key)
        if watch is None:
            if not self._directories.path(key).exists():
                raise _not_here(key)
            return True  # all has happened
        if not watch.dirty:
            heard = watch.next_change()
            await asyncio.wait([heard], timeout=timeout_s)
            heard.cancel()
        dirty, watch.dirty = watch.dirty, False
        return dirty

    async def forget(self, key: Key) -> None:
        observed = await self.observe(key)
        if observed is None:
            return
        if observed.status is not MemberStatus.EXITED:
            raise Conflict("it still runs", object=f"{key.member} {key.fence}", next_step="End it first.")
        watch = self._watches.pop(key, None)
        if watch is not None:
            watch.close()
        self._end_asked.pop(key, None)
        paths = self._directories.traces(key).cgroups
        self._directories.remove(key)
        cgroups.remove(paths)

    async def close(self) -> None:
        """Let go of everything; the members go on. Shims that are just leaving are waited for."""
        leaving = [child.gone for child in self._shims.values() if self._is_leaving(child)]
        if leaving:
            await asyncio.wait(leaving, timeout=LEAVING_WITHIN_S)
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()
        for child in list(self._shims.values()):
            child.let_go()

    def _is_leaving(self, child: _Child) -> bool:
        seen = self._directories.observe(child.key)
        return seen is None or seen.status is MemberStatus.EXITED

    # -- the inside ----------------------------------------------------------------------------------------------

    def _watch(self, key: Key) -> _Watch | None:
        """The ear on a member's shim; None when there is no shim to hear any more."""
        watch = self._watches.get(key)
        if watch is None:
            try:
                watch = _Watch(self._directories.path(key) / WAKE)
            except OSError:
                return None
            self._watches[key] = watch
        return None if watch.gone else watch

    async def _end_survivors(self, key: Key) -> list[int]:
        """The shim is gone: end whatever is left of its tree. Gives back what does not die."""
        traces = self._directories.traces(key)
        mark = os.fsencode(f"{MARK}={self._directories.path(key)}")
        deadline = time.monotonic() + SURVIVORS_WITHIN_S

        def ours(pid: int) -> bool:
            is_command = pid == traces.pid and proc.is_process(pid, traces.pid_ticks)
            return is_command or proc.environment_has(pid, mark) or pid in cgroups.processes(traces.cgroups)

        while True:
            left = proc.alive(pid for pid in proc.pids() if ours(pid))
            if not left or time.monotonic() > deadline:
                return left
            cgroups.kill(traces.cgroups)
            for pid in left:
                proc.send(pid, signal.SIGKILL, ours)
            await asyncio.sleep(AFTER_SHIM_S)


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


def _not_here(key: Key) -> ClutchError:
    return NotFound("it is not on this machine", object=f"{key.member} {key.fence}")


def _launch_fields(spec: ContainerSpec, path: Path) -> list[tuple[str, str]]:
    """All words of the launch; ``BadRequest`` for what no process can be given."""
    name = str(spec.member)
    if spec.image:
        raise BadRequest("plain processes have no images", object=name, next_step="Leave the image out, or use Docker.")
    if not spec.argv or not spec.argv[0]:
        raise BadRequest("there is no command", object=name)
    environment = {**spec.environment, **lease_environment(spec.slots), MARK: str(path)}
    words = [("argv", word) for word in spec.argv]
    words += [("env", f"{variable}={value}") for variable, value in environment.items()]
    words += [("cwd", spec.cwd)]
    if any("\0" in word for _, word in words) or any("=" in key or not key for key in environment):
        raise BadRequest("a word of the command or environment is impossible", object=name)
    try:
        for word in (name, *(word for _, word in words)):
            os.fsencode(word)
    except UnicodeEncodeError as impossible:
        raise BadRequest("a word of the command or environment cannot be encoded", object=ascii(name)) from impossible
    return words


def _packed(words: list[tuple[str, str]], spec: ContainerSpec, group: Group) -> bytes:
    """The launch as the shim reads it: ``name=value``, each ended by a zero byte, ``end=`` last."""
    limits = spec.limits
    words = [*words, ("cap_bytes", str(spec.output_cap_bytes))]
    words += [("kill_file", group.kill_file), ("oom_file", group.oom_file)]
    words += [("into", group.into), *(("join", path) for path in group.joins)]
    if limits.open_files:
        words.append(("rlimit", f"{resource.RLIMIT_NOFILE}:{limits.open_files}:{limits.open_files}"))
    if limits.core_bytes is not None:
        words.append(("rlimit", f"{resource.RLIMIT_CORE}:{limits.core_bytes}:{limits.core_bytes}"))
    if spec.run_as is not None:
        words += [("uid", str(spec.run_as.uid)), ("gid", str(spec.run_as.gid))]
        words += [("group", str(group_id)) for group_id in spec.run_as.groups]
    return b"".join(os.fsencode(f"{name}={word}") + b"\0" for name, word in [*words, ("end", "")])
