"""The contract of a place where members run. Every implementation passes ``clutch.testing.containers_suite``.

The rules the suite tries to break:

- An incarnation is executed at most once, whoever asks how often, from however many processes, across crashes of the
  asker. A start of what exists is answered with what is known of it.
- It does not depend on its starter: a new object over the same ground finds it, with its record and all its output.
- ``end`` leaves no survivor, and an exit is reported only when nothing of it runs any more.
- What could not be started is an exit record with a reason (``never_started``), not an exception: it must reach the
  master like any other end. Errors are for requests that make no sense and for a ground that refuses to work.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from clutch.wire.containers import ContainerSpec, ExitRecord, Observed, Usage
from clutch.wire.ids import Fence, MemberId


class Key(NamedTuple):
    """One incarnation of a member."""

    member: MemberId
    fence: Fence


class Containers(Protocol):
    """Start, signal, end, wait, observe, measure, find, forget."""

    async def start(self, spec: ContainerSpec) -> Observed:
        """Start it, unless it was ever started on this ground: then what is known of it, and nothing happens."""
        ...

    async def signal(self, key: Key, number: int) -> None:
        """Deliver a signal to its process group, to ask it to leave. Nothing if it has exited."""
        ...

    async def end(self, key: Key) -> None:
        """Kill the whole tree. Returns at once; ``wait`` tells when it is gone. Nothing if it has exited."""
        ...

    async def wait(self, key: Key, timeout_s: float) -> ExitRecord:
        """Its exit record, when it has one. ``TimedOut`` after ``timeout_s``; ``NotFound`` if it is not here."""
        ...

    async def observe(self, key: Key) -> Observed | None:
        """What it is doing; None if it is not here."""
        ...

    async def usage(self, key: Key) -> Usage:
        """CPU and memory of its whole tree; zeros when it has exited. ``NotFound`` if it is not here."""
        ...

    async def found(self) -> list[Observed]:
        """Everything on this ground, oldest first, whoever started it. What was lost is ended and has its record."""
        ...

    async def forget(self, key: Key) -> None:
        """Remove its record and output. ``Conflict`` while it runs; nothing if it is not here."""
        ...


@runtime_checkable
class Wakes(Protocol):
    """The extra ability to say that something changed, so that nobody need look on a tick."""

    async def changed(self, key: Key, timeout_s: float) -> bool:
        """Wait for output, a start or an exit since the last call. False when ``timeout_s`` passed without."""
        ...


@runtime_checkable
class Doing(Protocol):
    """The extra ability to say what goes on before a member runs."""

    def doing(self, key: Key) -> str:
        """In words a user may read ("pulling IMAGE: 3 of 7 layers"); empty when it is just running, or not here."""
        ...


@runtime_checkable
class Addresses(Protocol):
    """The extra ability of a way whose members may have an address of their own."""

    async def address(self, key: Key) -> str:
        """Where its ports are reached from this node. ``Unavailable`` while it has none."""
        ...


class Claim(NamedTuple):
    """A fresh directory, held by this process until it hands the descriptors to a shim and closes its own."""

    path: Path
    lock: int
    wake: int
    orders: int


class Traces(NamedTuple):
    """What a directory says to look for. Pids are reused: believe one only if its start time agrees."""

    pid: int = 0
    """The command; 0 if nothing was executed in this boot of the machine."""
    pid_ticks: int = 0
    shim: int = 0
    shim_ticks: int = 0
    cgroups: tuple[str, ...] = ()


class Directories(Protocol):
    """The members' directories on this machine, passed in by whoever knows their layout."""

    def claim(self, spec: ContainerSpec, cgroups: tuple[str, ...], notices: tuple[str, ...]) -> Claim | None:
        """Make the directory of this incarnation, whole and held; None if it exists."""
        ...

    def path(self, key: Key) -> Path: ...

    def observe(self, key: Key) -> Observed | None:
        """What the directory says; None if there is none. A lost one counts as exited."""
        ...

    def lost(self, key: Key) -> ExitRecord | None:
        """How it must have ended, if its shim is gone and left no readable record; None if it is alive or recorded."""
        ...

    def settle(self, key: Key, record: ExitRecord) -> None:
        """Write the record in the place of a shim that cannot."""
        ...

    def traces(self, key: Key) -> Traces: ...

    def found(self) -> list[Key]:
        """All of them, oldest first."""
        ...

    def remove(self, key: Key) -> None: ...
