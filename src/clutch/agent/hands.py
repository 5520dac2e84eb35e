"""The agent's hands: do what its brain decided, and tell it what came of it.

Each incarnation has one task here from its start (or from being found) until its exit. It prepares (kit, folder,
ports), starts, and then only listens: the place where it runs says when something changed. Whatever stops a start
becomes an exit with a reason, so that it reaches the master like any other end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from clutch.agent import brain as b
from clutch.agent import metric_spool
from clutch.agent.boot import boot_on_node, explained
from clutch.agent.data import allowed_mounts, check_data, needed_paths
from clutch.agent.directory import MemberDirectories
from clutch.agent.folders import TMP, Note, WorkFolders, home_of
from clutch.agent.holders import Holders
from clutch.agent.launch import (
    PROCESS,
    Place,
    Surroundings,
    backend_for,
    boots_inside,
    container_spec,
    needs_boot,
    read_program,
    runs_as,
)
from clutch.agent.monitor import Monitor, Watched
from clutch.agent.ports import Ports
from clutch.agent.relay import Relay
from clutch.agent.shim import OUTPUT
from clutch.backends.containers.base import Addresses, Containers, Doing, Key, Wakes
from clutch.wire.containers import REASON_MAX, ContainerSpec, ExitRecord, Observed, Usage
from clutch.wire.errors import BadRequest, ClutchError, DataMissing, NotFound, UserError
from clutch.wire.ids import LeaseId
from clutch.wire.messages import Exit, ExitCause, Hello, MemberStatus, Refusal, Report, Wanted, WantedMember
from clutch.wire.programs import Kit, KitRequest

STARTS_AT_ONCE = 8
PAUSE_S = 0.01
"""Between two looks at one member: a loud one must not cost a look for each line."""
LOOK_S = 60.0
"""A member that says nothing is looked at so often, in case a word of its shim was lost."""
POLL_S = 0.5
"""The same where a backend cannot say that something changed."""
NEVER_CODE = 127


class Mouth(Protocol):
    """The way to the master."""

    def report(self, report: Report) -> None: ...

    async def kit(self, request: KitRequest, timeout_s: float) -> Kit: ...


@dataclass(frozen=True)
class Way:
    """One way to run members, and where it keeps their directories."""

    containers: Containers
    directories: MemberDirectories
    version: Callable[[], Awaitable[str | None]]
    """What answers there now, in words; None: nothing does, and nothing can be started."""


@dataclass(frozen=True)
class Ground:
    """What the hands work with on this machine."""

    ways: Mapping[str, Way]
    """``process`` always, ``docker`` where there is an engine."""
    folders: WorkFolders
    ports: Ports
    holders: Holders
    relay: Relay
    monitor: Monitor
    around: Surroundings
    kit_timeout_s: float = 60.0


class Life:
    """One incarnation on this machine, from its start or its finding until it is forgotten."""

    __slots__ = ("doing", "forgotten", "gone", "note", "notices", "preparing", "settled")

    def __init__(self, note: Note) -> None:
        self.note = note
        self.doing = ""
        self.notices: tuple[str, ...] = ()
        self.preparing: asyncio.Task[ContainerSpec] | None = None
        self.settled = False
        """It has ended, and what it left is known."""
        self.forgotten = False
        """The master has taken over its exit."""
        self.gone = False


class Hands:
    """``do`` carries out effects; ``adopt`` takes over what was found. Implements the link's ``Ears`` and ``Reach`` and
    the monitor's ``Members``."""

    def __init__(self, brain: b.Brain, ground: Ground, mouth: Mouth, group: asyncio.TaskGroup) -> None:
        self.brain = brain
        self._ground = ground
        self._mouth = mouth
        self._group = group
        self._lives: dict[Key, Life] = {}
        self._starts = asyncio.Semaphore(STARTS_AT_ONCE)
        self._taking_back: dict[tuple[LeaseId, int], float] = {}
        self._log = structlog.get_logger("clutch.agent")
        self._last_word = ""
        ground.relay.shipped = self._shipped

    # -- what happens --------------------------------------------------------------------------------------------

    def heard(self, message: Hello | Wanted | Refusal) -> None:
        match message:
            case Hello():
                self.do(self.brain.greeted(message))
            case Wanted():
                self.do(self.brain.ordered(message))
            case Refusal():
                self.do(self.brain.refused(message))

    def connected(self, master: str, address: str) -> None:
        self._ground.monitor.connected(address)
        self._say_once("connected", master, "")
        self.do(self.brain.beat())

    def disconnected(self, master: str, reason: str) -> None:
        self._say_once("not connected", master, reason)

    def _say_once(self, word: str, master: str, reason: str) -> None:
        """The same trouble again and again is one line."""
        if (said := f"{word} {master} {reason}") != self._last_word:
            self._last_word = said
            self._log.info(word, master=master, reason=reason)

    async def beats(self, every_s: float) -> None:
        """Say again what is seen and do again what was not done, for ever."""
        while True:
            self.do(self.brain.beat())
            self._ground.relay.try_again()
            await asyncio.sleep(every_s)

    def adopt(self, backend: str, observed: Observed) -> None:
        """An incarnation that an earlier agent started. The brain knows it already."""
        key = Key(observed.member, observed.fence)
        note = msgspec.structs.replace(self._ground.folders.note(key), backend=backend)
        life = self._lives[key] = Life(note)
        life.notices = (*observed.notices, *life.note.notices)
        self._ground.relay.watch(key, self._spool(key, backend))
        self._group.create_task(self._follow(key, life, self._ground.ways[backend].containers))

    # -- effects -------------------------------------------------------------------------------------------------

    def do(self, effects: list[b.Effect]) -> None:
        for effect in effects:
            self._do(effect)

    def _do(self, effect: b.Effect) -> None:
        match effect:
            case b.Say(report):
                self._mouth.report(report)
            case b.Start(wanted):
                self._group.create_task(self._live(wanted))
            case b.AskLeave(wanted):
                self._group.create_task(self._ask_leave(wanted))
            case b.End(member, fence, stray):
                self._group.create_task(self._end(Key(member, fence), stray))
            case b.Forget(member, fence):
                self._forget(Key(member, fence))
            case b.HandOver(lease):
                self._group.create_task(self._ground.holders.hand_over(lease))
            case b.TakeBack(lease_id, number, deadline):
                self._take_back(lease_id, number, deadline)
            case b.Complain(refusal):
                error = refusal.error
                self._say_once(error.cause, error.object, error.next_step)

    async def _ask_leave(self, wanted: WantedMember) -> None:
        """A program that does not ask the master itself learns it by a signal."""
        key = Key(wanted.member, wanted.fence)
        life = self._lives.get(key)
        if life is None or not life.note.leave_signal:
            return
        try:
            await self._containers(life).signal(key, life.note.leave_signal)
        except ClutchError as error:
            self._log.warning("cannot ask it to leave", member=str(key.member), error=str(error))

    async def _end(self, key: Key, stray: bool) -> None:
        life = self._lives.get(key)
        if life is None:
            return
        if life.preparing is not None:
            life.preparing.cancel()
            return
        if stray:
            self._log.info("ends what nobody wants here", member=str(key.member), fence=str(key.fence))
        try:
            await self._containers(life).end(key)
        except NotFound:
            return  # its follower will see the same
        except ClutchError as error:
            self._log.warning("cannot be ended", member=str(key.member), error=str(error))

    def _forget(self, key: Key) -> None:
        life = self._lives.get(key)
        if life is not None:
            life.forgotten = True
            self._shipped(key)

    def _shipped(self, key: Key) -> None:
        """Perhaps nothing of it is needed here any more."""
        life = self._lives.get(key)
        if life is not None and life.forgotten and life.settled and self._ground.relay.is_shipped(key):
            self._group.create_task(self._remove(key, life))

    async def _remove(self, key: Key, life: Life) -> None:
        """Record and output are the master's now."""
        if life.gone:
            return
        life.gone = True
        ground = self._ground
        try:
            await self._containers(life).forget(key)
            await asyncio.to_thread(ground.folders.remove, key)
        except (ClutchError, OSError) as error:
            self._log.warning("cannot be removed", member=str(key.member), error=str(error))
        ground.relay.drop(key)
        ground.ports.give_back(life.note.ports)
        self._lives.pop(key, None)
        ground.monitor.changed()

    def _take_back(self, lease: LeaseId, number: int, deadline: float) -> None:
        """Asked again at every beat; passed on once, and once more if the deadline has moved."""
        if self._taking_back.get((lease, number)) == deadline:
            return
        self._taking_back[lease, number] = deadline
        self._group.create_task(self._take_back_one(lease, number, deadline))

    async def _take_back_one(self, lease: LeaseId, number: int, deadline: float) -> None:
        await self._ground.holders.take_back(lease, number, deadline)
        self._taking_back.pop((lease, number), None)
        self.do(self.brain.freed(lease, number))

    # -- one life ------------------------------------------------------------------------------------------------

    async def _live(self, wanted: WantedMember) -> None:
        key = Key(wanted.member, wanted.fence)
        life = self._lives[key] = Life(Note())
        life.preparing = asyncio.create_task(self._prepare(wanted, life))
        try:
            await asyncio.wait([life.preparing])
        finally:
            prepared, life.preparing = life.preparing, None
            prepared.cancel()
        if prepared.cancelled():
            self._never_started(key, life, "it was ended before it began", ExitCause.ENDED)
            return
        try:
            spec = prepared.result()
            containers = self._containers(life)
            async with self._starts:
                life.doing = "starting"
                observed = await containers.start(spec)
        except Exception as failed:  # whatever somebody wrote into a task, it must not end the agent
            cause = ExitCause.REFUSED if isinstance(failed, UserError | ValueError) else ExitCause.NEVER_STARTED
            cause = ExitCause.NO_DATA if isinstance(failed, DataMissing) else cause
            self._never_started(key, life, str(failed) or type(failed).__name__, cause)
            return
        life.notices = (*observed.notices, *life.note.notices)
        life.doing = ""
        self._ground.relay.watch(key, self._spool(key, life.note.backend))
        await self._follow(key, life, containers)

    async def _prepare(self, wanted: WantedMember, life: Life) -> ContainerSpec:
        """All it needs before it can be started; what fails here was never started."""
        ground, key = self._ground, Key(wanted.member, wanted.fence)
        program = read_program(wanted.payload, str(wanted.member))
        answering = [name for name, way in ground.ways.items() if await way.version() is not None]
        backend = backend_for(program, answering, str(wanted.member))
        life.doing = "asking for its kit"
        kit = await self._mouth.kit(KitRequest(*key), ground.kit_timeout_s)
        if kit.error:
            raise BadRequest(kit.error, object=str(wanted.member))
        if paths := needed_paths(program):
            life.doing = "looking for its data"
            await check_data(paths, kit.run_as, ground.around.node)
        if backend != PROCESS:
            allowed = ground.around.allowed_mounts
            real = await asyncio.to_thread(allowed_mounts, program.mounts, allowed, ground.around.node)
            program = msgspec.structs.replace(program, mounts=real)
        life.doing = "preparing its folder"
        mounts = program.mounts if backend == PROCESS else ()
        run_as = runs_as(program, kit, ground.around)
        folder = ground.folders.make(key, run_as, mounts, anybodys=backend != PROCESS and run_as is None)
        notices = tuple(f"{m.target}: a link cannot be read-only" for m in mounts if m.read_only)
        boots, inside = needs_boot(program, wanted), boots_inside(program)
        life.note = Note(backend, ground.ports.take(program.ports), program.leave_signal, notices, boots, inside)
        ground.folders.keep(key, life.note)
        home = home_of(kit.run_as)
        place = Place(backend=backend, cwd=str(folder.cwd), tmp=str(folder.tmp), home=home, ports=life.note.ports)
        spec = container_spec(wanted, program, kit, ground.around, place)
        if backend != PROCESS and boots and not inside:
            life.doing = "fetching its code and meeting its peers"
            spec = await boot_on_node(spec, ground.around.python, ground.around.environment, place.tmp)
        return spec

    def _never_started(self, key: Key, life: Life, reason: str, cause: ExitCause) -> None:
        """The master must hear of it as of any other end; there is nothing of it on the machine."""
        life.doing, life.settled = "", True
        self._ground.monitor.exited(key, reason)
        self._log.warning("was not started", member=str(key.member), fence=str(key.fence), reason=reason)
        self.do(self.brain.exited(*key, Exit(NEVER_CODE, cause, reason=reason[:REASON_MAX])))

    async def _follow(self, key: Key, life: Life, containers: Containers) -> None:
        """Listen to it until it has exited."""
        ground = self._ground
        told = False
        while True:
            try:
                observed = await containers.observe(key)
            except (ClutchError, OSError) as error:
                self._log.warning("cannot be looked at", member=str(key.member), error=str(error))
                await asyncio.sleep(POLL_S)
                continue
            if observed is None:
                record = ExitRecord(-9, ExitCause.MACHINE, "its directory was removed", ended_at=time.time())
                ground.relay.drop(key)
                await self._exited(key, record)
                return
            if observed.exit is not None:
                ground.relay.exited(key, observed.exit.stdout_bytes, observed.exit.stderr_bytes)
                await self._exited(key, observed.exit)
                return
            if observed.status is MemberStatus.RUNNING and not told:
                told = True
                self.do(self.brain.started(*key))
                ground.monitor.changed()
            await self._next_word(key, containers)
            ground.relay.stir(key)
            await asyncio.sleep(PAUSE_S)

    async def _next_word(self, key: Key, containers: Containers) -> None:
        try:
            if isinstance(containers, Wakes):
                await containers.changed(key, LOOK_S)
            else:
                await asyncio.sleep(POLL_S)
        except ClutchError:
            await asyncio.sleep(POLL_S)  # it is gone; the next look says so

    async def _exited(self, key: Key, record: ExitRecord) -> None:
        life, tmp = self._lives[key], self._ground.folders.path(key) / TMP
        left = await asyncio.to_thread(metric_spool.look, tmp, key)
        exit = record.exit(left.last if left is not None else 0)
        if life.note.boots:
            exit = explained(exit, tmp, inside=life.note.inside)
        words = exit.reason or _words(record)
        if left is not None:
            self._ground.relay.metrics.watch(key, left)
        if left is not None and left.notice:
            words = f"{words}; {left.notice}"
            exit = msgspec.structs.replace(exit, reason=words[:REASON_MAX])
            self._log.warning("metrics are ignored", member=str(key.member), reason=left.notice)
        self._ground.monitor.exited(key, words)
        life.settled = True
        self.do(self.brain.exited(*key, exit))
        self._shipped(key)  # a master may have taken it over from an earlier agent

    # -- what others ask -----------------------------------------------------------------------------------------

    def watched(self) -> list[Watched]:
        return [
            Watched(key, life.note.backend, life.doing or self._doing(key, life), life.notices, life.note.ports)
            for key, life in self._lives.items()
            if not life.forgotten
        ]

    def _doing(self, key: Key, life: Life) -> str:
        containers = self._containers(life)
        return containers.doing(key) if isinstance(containers, Doing) else ""

    async def usage(self, key: Key) -> Usage:
        life = self._lives.get(key)
        if life is None:
            raise NotFound("it is not on this machine", object=str(key.member))
        return await self._containers(life).usage(key)

    async def reach(self, key: Key, port: int) -> tuple[str, int]:
        life = self._lives.get(key)
        if life is None or port not in life.note.ports:
            raise NotFound(f"{key.member} {key.fence} has no port {port} here", object=str(key.member))
        containers = self._containers(life)
        return (await containers.address(key) if isinstance(containers, Addresses) else "127.0.0.1"), port

    def _containers(self, life: Life) -> Containers:
        return self._ground.ways[life.note.backend].containers

    def _spool(self, key: Key, backend: str) -> Path:
        return self._ground.ways[backend].directories.path(key) / OUTPUT


def _words(record: ExitRecord) -> str:
    if record.code >= 0:
        return f"exited with code {record.code}"
    ended = " because it was no longer wanted" if record.cause is ExitCause.ENDED else ""
    return f"killed by signal {-record.code}{ended}"
