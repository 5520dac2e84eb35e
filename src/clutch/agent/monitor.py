"""What this machine and its members use now, measured every few seconds and said to the master. Soft: only shown.

Members take turns: at most ``MEMBERS_AT_ONCE`` of them are measured each time, so that a thousand idle ones cost little
and their figures are merely older.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
import psutil  # type: ignore[import-untyped]
import structlog

from clutch.backends.containers.base import Key
from clutch.wire.containers import Usage
from clutch.wire.errors import ClutchError
from clutch.wire.ids import NodeId
from clutch.wire.link import ExitNote, MemberUse, NodeUse, SlotUse
from clutch.wire.resources import CUDA, Capacity

MEMBERS_AT_ONCE = 50
NOTES_MAX = 500
NOTE_TIMES = 3
"""How often a reason is said on one connection: one message may be lost."""
SOON_S = 0.1


class Watched(msgspec.Struct, frozen=True):
    """A member as the hands know it."""

    key: Key
    backend: str
    doing: str = ""
    notices: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()


class Members(Protocol):
    """Whom to measure."""

    def watched(self) -> list[Watched]: ...

    async def usage(self, key: Key) -> Usage: ...


class MonitorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What of a machine does not change."""

    node: NodeId
    capacity: Capacity
    data: Path
    address: str = ""
    labels: dict[str, str]
    version: str
    backends: Callable[[], Awaitable[tuple[str, ...]]]
    """What answers now (``process``, ``docker 27.1``)."""
    measure_s: float = 2.0


class Monitor:
    """``run`` measures until it is cancelled; ``say`` takes what it finds."""

    def __init__(self, settings: MonitorSettings, say: Callable[[NodeUse], None]) -> None:
        self._settings = settings
        self._say = say
        self._devices = Devices(settings.capacity)
        self._soon = asyncio.Event()
        self._uses: dict[Key, tuple[float, MemberUse]] = {}
        self._notes: dict[ExitNote, int] = {}
        self._last = NodeUse(settings.node, 0.0)
        self.address = settings.address

    def changed(self) -> None:
        """Something began or ended: say so soon."""
        self._soon.set()

    def exited(self, key: Key, reason: str) -> None:
        """Why it ended. Said at once, so that it is known before the exit itself is."""
        while len(self._notes) >= NOTES_MAX:
            del self._notes[next(iter(self._notes))]
        note = ExitNote(*key, reason)
        self._notes[note] = NOTE_TIMES
        self._say(msgspec.structs.replace(self._last, at=time.time(), exits=(note,)))
        self._soon.set()

    def connected(self, address: str) -> None:
        """A master that may know nothing: say all reasons again."""
        self.address = self._settings.address or address
        self._notes = dict.fromkeys(self._notes, NOTE_TIMES)
        self._soon.set()

    async def run(self, members: Members) -> None:
        psutil.cpu_percent()  # the first call has nothing to compare with
        while True:
            self._soon.clear()
            self._last = await self._measure(members)
            self._say(self._last)
            try:
                async with asyncio.timeout(self._settings.measure_s):
                    await self._soon.wait()
                    await asyncio.sleep(SOON_S)  # what changes together is said together
            except TimeoutError:
                pass

    async def _measure(self, members: Members) -> NodeUse:
        settings = self._settings
        watched = members.watched()
        await self._measure_members(members, watched)
        memory = psutil.virtual_memory()
        notes = tuple(note for note, times in self._notes.items() if times > 0)
        for note in notes:
            self._notes[note] -= 1
        return NodeUse(
            node=settings.node,
            at=time.time(),
            cpu_percent=psutil.cpu_percent(),
            memory_bytes=memory.total - memory.available,
            disk_free_bytes=psutil.disk_usage(str(settings.data)).free,
            backends=await settings.backends(),
            labels=settings.labels,
            address=self.address,
            version=settings.version,
            slots=await asyncio.to_thread(self._devices.use) if self._devices.any else self._devices.idle,
            members=tuple(self._uses[one.key][1] for one in watched if one.key in self._uses),
            exits=notes,
        )

    async def _measure_members(self, members: Members, watched: list[Watched]) -> None:
        """Those that were measured longest ago, and new ones, first."""
        here = {one.key for one in watched}
        for key in [key for key in self._uses if key not in here]:
            del self._uses[key]
        due = sorted(watched, key=lambda one: self._uses[one.key][0] if one.key in self._uses else 0.0)
        for number, one in enumerate(due):
            before = self._uses.get(one.key)
            if number < MEMBERS_AT_ONCE:
                self._uses[one.key] = await _use_of(members, one, before)
            elif before is not None:
                self._uses[one.key] = (before[0], _described(before[1], one))
            else:
                self._uses[one.key] = (0.0, _described(MemberUse(*one.key), one))


async def _use_of(members: Members, one: Watched, before: tuple[float, MemberUse] | None) -> tuple[float, MemberUse]:
    now = time.monotonic()
    try:
        usage = await members.usage(one.key)
    except Exception as failed:  # figures are only shown: whatever is wrong with them must not end the agent
        if not isinstance(failed, ClutchError | OSError):
            structlog.get_logger("clutch.agent").warning("not measured", member=str(one.key.member), error=repr(failed))
        usage = Usage(0.0, 0, 0)
    percent = 0.0
    if before is not None and before[0] and now > before[0]:
        percent = max(0.0, 100.0 * (usage.cpu_s - before[1].cpu_s) / (now - before[0]))
    use = MemberUse(
        *one.key,
        cpu_s=usage.cpu_s,
        cpu_percent=round(percent, 1),
        memory_bytes=usage.memory_bytes,
        processes=usage.processes,
    )
    return now, _described(use, one)


def _described(use: MemberUse, one: Watched) -> MemberUse:
    return msgspec.structs.replace(use, backend=one.backend, doing=one.doing, notices=one.notices, ports=one.ports)


class Devices:
    """How busy the accelerators are, where they can be asked."""

    def __init__(self, capacity: Capacity, load: Callable[[str], Any] = importlib.import_module) -> None:
        self._slots = capacity.slots
        self.idle = tuple(SlotUse(slot.index) for slot in capacity.slots)
        self._nvml: Any = None
        self._handles: dict[int, Any] = {}
        cuda = [slot for slot in capacity.slots if slot.kind == CUDA and slot.uuid]
        if not cuda:
            return
        try:
            nvml = load("pynvml")
        except ImportError:
            return
        try:
            nvml.nvmlInit()
            for slot in cuda:
                self._handles[slot.index] = nvml.nvmlDeviceGetHandleByUUID(slot.uuid)
        except nvml.NVMLError:
            return
        self._nvml = nvml

    @property
    def any(self) -> bool:
        return self._nvml is not None

    def use(self) -> tuple[SlotUse, ...]:
        return tuple(self._use_of(slot.index) for slot in self._slots)

    def _use_of(self, index: int) -> SlotUse:
        handle = self._handles.get(index)
        if handle is None:
            return SlotUse(index)
        percent, used, total = -1, 0, 0
        try:
            memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
            used, total = int(memory.used), int(memory.total)
            percent = int(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        except self._nvml.NVMLError:
            pass  # a MIG instance has no such figure; what was read stands
        return SlotUse(index, percent, used, total)
