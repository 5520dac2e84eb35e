"""Members as plain processes, each under its shim.

This object only starts shims, sends them orders and reads what they wrote; it holds nothing that a second one over the
same directories would miss. So an agent may die at any instruction: what it had begun is there or was never executed.
"""

from __future__ import annotations

import asyncio
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
from clutch.backends.containers.base import Directories, Key, Traces
from clutch.backends.containers.cgroups import Cgroups, Group
from clutch.backends.containers.nursery import Nursery
from clutch.backends.containers.shims import AFTER_SHIM_S, Shims, not_here
from clutch.wire.containers import ContainerSpec, ExitRecord, Observed, Usage, lease_environment
from clutch.wire.errors import BadRequest, Conflict, Unavailable
from clutch.wire.messages import ExitCause, MemberStatus

MARK = "CLUTCH_CONTAINER"
"""In every member's environment, with its directory as the value: tells whose a process is when its shim is gone."""
END_OURSELVES_AFTER_S = 5.0
SURVIVORS_WITHIN_S = 10.0
_SHIM_CODE = "import sys; sys.path.append(sys.argv.pop(1)); import shim; shim.main(sys.argv[1])"


class ProcessContainers:
    """Implements ``Containers`` and ``Wakes``. ``shim`` is the shim's file; call ``close`` when done."""

    def __init__(
        self, directories: Directories, shim: Path, groups: Cgroups | None = None, python: str = sys.executable
    ) -> None:
        self._directories = directories
        self._shim = shim
        self._groups = groups if groups is not None else Cgroups.detect()
        self._python = python
        self._shims = Shims(directories)
        self._nursery = Nursery(python, shim)
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
            command = (self._python, "-I", "-S", "-c", _SHIM_CODE, str(self._shim.parent), str(claim.path))
            try:
                self._shims.spawn(key, claim, command, _packed(launch_fields, spec, group), self._nursery)
            except OSError as failed:
                self._settle_unspawned(key, failed)
        observed = await self.observe(key)
        if observed is None:
            raise Unavailable("it was forgotten while it was being started", object=str(spec.member))
        return observed

    def _group_name(self, key: Key) -> str:
        return "clutch-" + hashlib.sha256(bytes(self._directories.path(key))).hexdigest()[:24]

    def _settle_unspawned(self, key: Key, failed: OSError) -> None:
        reason = f"its shim could not be started: {failed.strerror or failed}"
        record = ExitRecord(127, ExitCause.NEVER_STARTED, reason, ended_at=time.time())
        self._directories.settle(key, record)

    # -- orders --------------------------------------------------------------------------------------------------

    async def signal(self, key: Key, number: int) -> None:
        if not 0 < number < signal.NSIG:
            raise BadRequest(f"there is no signal {number}", object=str(key.member))
        self._shims.order(key, b"signal %d\n" % number)

    async def end(self, key: Key) -> None:
        observed = await self.observe(key)
        if observed is None:
            raise not_here(key)
        if observed.status is MemberStatus.EXITED:
            return
        self._shims.order(key, b"kill\n")
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
            raise not_here(key)
        traces = self._directories.traces(key)
        if observed.exit is not None or not proc.is_process(traces.shim, traces.shim_ticks):
            return Usage(observed.exit.cpu_s if observed.exit is not None else 0.0, 0, 0)
        return proc.usage(traces.shim)

    async def wait(self, key: Key, timeout_s: float) -> ExitRecord:
        record = await self._shims.wait(key, timeout_s, self.observe)
        self._end_asked.pop(key, None)
        return record

    async def changed(self, key: Key, timeout_s: float) -> bool:
        return await self._shims.changed(key, timeout_s)

    async def forget(self, key: Key) -> None:
        observed = await self.observe(key)
        if observed is None:
            return
        if observed.status is not MemberStatus.EXITED:
            raise Conflict("it still runs", object=f"{key.member} {key.fence}", next_step="End it first.")
        self._shims.drop(key)
        self._end_asked.pop(key, None)
        paths = self._directories.traces(key).cgroups
        self._directories.remove(key)
        cgroups.remove(paths)

    async def close(self) -> None:
        """Let go of everything; the members go on."""
        await self._nursery.close()
        await self._shims.close()

    # -- the inside ----------------------------------------------------------------------------------------------

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
