"""A cluster of shelves in memory: nodes that come, go, lose their disks and misbehave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from clutch.backends.blobs.agents import AgentBlobs
from clutch.backends.blobs.base import FullBlobs
from clutch.backends.blobs.copies import Writer
from clutch.backends.blobs.memory import MemoryBlobs, MemoryShelf
from clutch.backends.blobs.placing import ranked
from clutch.backends.blobs.shelf import BlobShelf, BlobWriting, Shelf, place
from clutch.wire.errors import NotLeader, Unavailable
from clutch.wire.shelf import Entry, Mark

TERM = 1 << 32


class Node:
    """A machine with a disk, on which a shelf is opened each time it comes."""

    def __init__(self, capacity_bytes: int = 1 << 30) -> None:
        self.disk = MemoryShelf(capacity_bytes=capacity_bytes)
        self.expected = True
        self.shelf: Shelf | None = None

    def come(self, kind: Callable[[FullBlobs], Shelf] = BlobShelf) -> None:
        self.shelf = kind(MemoryBlobs(self.disk))

    def go(self) -> None:
        if isinstance(self.shelf, Dies):
            self.shelf.is_dead = True
        self.shelf = None

    def lose_its_disk(self) -> None:
        self.disk = MemoryShelf()

    def has(self, key: str) -> bool:
        return any(listed.key == place(key) for listed in self.disk.listed(""))


class Nodes:
    """The ``Shelves`` of such a cluster."""

    def __init__(self, *names: str) -> None:
        self.all = {name: Node() for name in names}
        for node in self.all.values():
            node.come()

    def __getitem__(self, name: str) -> Node:
        return self.all[name]

    def nodes(self) -> dict[str, bool]:
        return {name: node.expected for name, node in self.all.items()}

    def connected(self) -> dict[str, Shelf]:
        return {name: node.shelf for name, node in self.all.items() if node.shelf is not None}

    def holders(self, key: str) -> list[str]:
        return [name for name, node in self.all.items() if node.has(key)]

    def order(self, key: str) -> list[str]:
        return ranked(key, self.all)


class Lead:
    """Whether the one who writes may."""

    def __init__(self) -> None:
        self.is_ours = True
        self.term = 1

    async def confirm(self) -> None:
        if not self.is_ours:
            raise NotLeader("another master has taken over", object="master")

    def writer(self) -> Writer:
        return Writer(confirm=self.confirm, first_stamp=lambda: self.term * TERM, now=time.time)


@asynccontextmanager
async def running(nodes: Nodes, lead: Lead | None = None, wait_s: float = 20.0) -> AsyncIterator[AgentBlobs]:
    blobs = AgentBlobs(nodes, (lead or Lead()).writer(), wait_s=wait_s)
    task = asyncio.create_task(blobs.run())
    try:
        yield blobs
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await blobs.close()


async def until(look: Callable[[], Any], what: str, within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not look():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(0.01)


class Dies(BlobShelf):
    """Works until its machine dies; then nothing of it answers."""

    is_dead = False

    def check(self) -> None:
        if self.is_dead:
            raise Unavailable("the connection to its node is gone", object="tunnel 1")

    async def entries(self) -> list[Entry]:
        self.check()
        return await super().entries()

    async def begin(self, key: str) -> DyingWriting:
        self.check()
        await super().begin(key)
        return DyingWriting(self, key)


class DyingWriting(BlobWriting):
    def __init__(self, shelf: Dies, key: str) -> None:
        super().__init__(shelf, key)
        self._dying = shelf

    async def write(self, data: bytes) -> None:
        self._dying.check()
        await super().write(data)

    async def commit(self, mark: Mark) -> Entry:
        self._dying.check()
        return await super().commit(mark)


class DiesWhileReading(BlobShelf):
    """Gives the first piece of what it is asked for and no more."""

    fired = 0

    async def read(self, entry: Entry, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        async for piece in super().read(entry, start, stop):
            yield piece
            type(self).fired += 1
            raise Unavailable("the connection to its node is gone", object="tunnel 1")


class DiesAfterCommit(BlobShelf):
    """Does what it was told, and is gone before it can say so."""

    fired = 0

    async def begin(self, key: str) -> SilentWriting:
        await super().begin(key)
        return SilentWriting(self, key)


class SilentWriting(BlobWriting):
    async def commit(self, mark: Mark) -> Entry:
        await super().commit(mark)
        DiesAfterCommit.fired += 1
        raise Unavailable("the connection to its node is gone", object="tunnel 1")


class AgentsGround:
    """For the suite. All who open it get the same blobs: there is one writer, the master that leads."""

    def __init__(self, nodes: Nodes, blobs: AgentBlobs, folder: Path) -> None:
        self.nodes = nodes
        self.folder = folder
        self._blobs = blobs

    async def open(self) -> FullBlobs:
        return self._blobs

    async def damage(self, key: str) -> None:
        """Every copy: of one alone nobody would notice."""
        for name in self.nodes.holders(key):
            self.nodes[name].disk.damage(place(key))

    async def leftovers(self) -> int:
        """Files that are no valid version of a key, nor remember that one is gone."""
        keys = self._blobs.copies.catalogue.keys()
        known = {place(key) for key in keys}
        return sum(listed.key not in known for node in self.nodes.all.values() for listed in node.disk.listed(""))

    async def free_space(self) -> None:
        for node in self.nodes.all.values():
            node.disk.capacity_bytes = 1 << 30
