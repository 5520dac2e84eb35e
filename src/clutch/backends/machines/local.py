"""Machines that are agents on this very machine: each a process with a folder of its own, living on without us.

::

    FOLDER/
      MACHINE/machine.json   the order it was made by; its presence means that the machine is ours to end
      MACHINE/data/          the agent's folder
      MACHINE/agent.log
      ended/MACHINE          it was terminated: nobody may launch it again
      locks/MACHINE          held during a launch or a termination, by whichever master is at it

Whether an agent runs is read from the process table, by the folder it was given: no file can be wrong about it. Two
starts at once are harmless, because an agent locks its folder and the second one leaves.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from clutch.backends.machines.base import terminated
from clutch.backends.machines.residue import agents_of, end_all
from clutch.backends.machines.site import Site
from clutch.wire.errors import BadRequest, Corrupt, Unavailable
from clutch.wire.machines import Instance, LocalTemplate, MachineId, Order

T = TypeVar("T")
AT_ONCE = 16
LOOK_S = 0.02
LOCK_S = 60.0
STARTS_S = 10.0
"""An agent that has not ended after so long counts as started, whatever it is at."""
ENDED_KEPT_S = 30 * 86400.0


class _Made(msgspec.Struct, frozen=True):
    order: Order
    cluster: str
    launched_at: float


class LocalMachines:
    """Agents on this machine."""

    lag_s = 0.0

    def __init__(self, template: LocalTemplate, site: Site) -> None:
        self.template = template
        self.site = site
        self.folder = site.folder
        self._children: dict[int, None] = {}
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="machines")
        for name in ("", "ended", "locks"):
            (self.folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)

    async def launch(self, order: Order) -> Instance:
        _check_name(order.machine)
        return await self._in_thread(self._launch, order)

    async def terminate(self, order: Order) -> None:
        _check_name(order.machine)
        await self._in_thread(self._terminate, order.machine)

    async def listing(self) -> list[Instance]:
        self._reap()
        return await self._in_thread(self._listing)

    async def close(self) -> None:
        self._reap()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Callable[..., T], *words: Any) -> T:
        """Threads of its own: a start may take seconds, and nobody else's work should wait behind it."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *words)

    # -- what happens in a thread, to its end, also when nobody waits for it any more ----------------------------

    def _launch(self, order: Order) -> Instance:
        with self._alone_with(order.machine):
            if (self.folder / "ended" / order.machine).exists():
                raise terminated(order)
            return self._make(order)

    def _make(self, order: Order) -> Instance:
        place = self.folder / order.machine
        place.mkdir(mode=0o700, exist_ok=True)
        record = place / "machine.json"
        if not record.exists():
            _write(record, msgspec.json.encode(_Made(order, self.site.cluster, time.time())))
        data = place / "data"
        if not agents_of(data):
            self._start(order.machine, place, data)
        return self._instance(_read(record), data)

    def _start(self, machine: MachineId, place: Path, data: Path) -> None:
        site = self.site
        certificates = ["--ca", str(site.ca_file)] if site.ca_file else []
        command = [
            *site.agent,
            *site.arguments(machine),
            *("--token-file", str(site.token_file), "--data", str(data)),
            *certificates,
            *self.template.arguments,
        ]
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(place / "agent.log"), flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        try:
            pid = os.posix_spawnp(
                command[0],
                command,
                site.environment,
                file_actions=actions,
                setsid=True,
                setsigmask=(),
                setsigdef=sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}),
            )
        except FileNotFoundError:
            raise BadRequest(
                f"there is no program {command[0]!r}",
                object=f"machine {machine}",
                next_step="Say how an agent is started on this machine.",
            ) from None
        except OSError as error:
            raise Unavailable(f"it could not be started: {error}", object=f"machine {machine}") from error
        self._children[pid] = None
        self._await_agent(machine, pid, data)

    def _await_agent(self, machine: MachineId, pid: int, data: Path) -> None:
        """Until it has its folder, so that one which cannot start is an error and not a machine that never reports."""
        deadline = time.monotonic() + STARTS_S
        while not (data / "lock").exists() and time.monotonic() < deadline:
            if _has_ended(pid):
                raise Unavailable(
                    "its agent ended as soon as it was started",
                    object=f"machine {machine}",
                    next_step=f"Read {data.parent / 'agent.log'}.",
                )
            time.sleep(LOOK_S)

    def _terminate(self, machine: MachineId) -> None:
        with self._alone_with(machine):
            _write(self.folder / "ended" / machine, b"")
            self._clear_away(machine)

    def _clear_away(self, machine: MachineId) -> None:
        place = self.folder / machine
        if not place.exists():
            return
        if not self._ended(place):
            raise Unavailable(
                "some of its processes cannot be ended", object=f"machine {machine}", next_step="It is tried again."
            )
        shutil.rmtree(place, ignore_errors=True)
        if place.exists():
            raise Unavailable(
                "its folder cannot be removed", object=f"machine {machine}", next_step=f"Look at {place}."
            )

    def _ended(self, place: Path) -> bool:
        try:
            return end_all(place / "data", place, self.template.stop_s)
        finally:
            self._reap()

    def _listing(self) -> list[Instance]:
        self._forget_old()
        found = []
        for record in sorted(self.folder.glob("*/machine.json")):
            with suppress(FileNotFoundError):  # being removed
                found.append(self._instance(_read(record), record.parent / "data"))
        return found

    def _instance(self, made: _Made, data: Path) -> Instance:
        order = made.order
        pids = agents_of(data)
        address = f"pid:{pids[0]}" if pids else ""
        return Instance(order.machine, str(data.parent), order.pool, made.cluster, address, running=bool(pids))

    def _forget_old(self) -> None:
        """Names are not used twice within a month; a master that sleeps that long is no longer one."""
        for kept in (self.folder / "ended").iterdir():
            with suppress(FileNotFoundError):
                if time.time() - kept.stat().st_mtime > ENDED_KEPT_S:
                    kept.unlink()
                    (self.folder / "locks" / kept.name).unlink(missing_ok=True)

    # -- around it -----------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        """Take the exit codes of agents that we started and that have ended; nobody else can."""
        for pid in list(self._children):
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self._children.pop(pid, None)

    @contextmanager
    def _alone_with(self, machine: MachineId) -> Iterator[None]:
        """Nobody else, in this process or another, launches or terminates this machine meanwhile."""
        descriptor = os.open(self.folder / "locks" / machine, os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + LOCK_S
        try:
            while not _locked(descriptor):
                if time.monotonic() > deadline:
                    raise Unavailable(
                        "another process is at it", object=f"machine {machine}", next_step="It is tried again."
                    )
                time.sleep(LOOK_S)
            yield
        finally:
            os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _has_ended(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _check_name(machine: MachineId) -> None:
    if not machine or os.sep in machine or machine.startswith(".") or machine in ("ended", "locks"):
        raise BadRequest("this is no name of a machine", object=f"machine {machine!r}")


def _write(path: Path, data: bytes) -> None:
    """Durable and whole: a power cut leaves the file or none."""
    aside = path.with_name(f".{path.name}.new")
    with aside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read(path: Path) -> _Made:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Made)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"it does not decode: {error}", object=str(path), next_step="Remove its folder.") from error
