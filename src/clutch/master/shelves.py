"""The agents' shelves of blobs as the master reaches them: over tunnels of each agent's own bulk connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from clutch.backends.blobs.agents import AgentBlobs
from clutch.backends.blobs.copies import Writer
from clutch.backends.blobs.shelf import Shelf
from clutch.master.loop import Loop
from clutch.master.push.lead import Lead
from clutch.master.push.names import first_token
from clutch.master.tunnels import NodeTunnels, Tunnel, Tunnels
from clutch.wire import errors
from clutch.wire.errors import ClutchError, ErrorView, TimedOut, Unavailable
from clutch.wire.ids import Epoch, Fence, Incarnation, MemberId, NodeId, TaskId
from clutch.wire.link import SHELF_PORT
from clutch.wire.outcomes import NodeState
from clutch.wire.shelf import (
    Answer,
    Entry,
    Mark,
    Messages,
    Question,
    ShelfBegin,
    ShelfCommit,
    ShelfDone,
    ShelfDrop,
    ShelfFailed,
    ShelfGet,
    ShelfKept,
    ShelfList,
    ShelfPage,
    ShelfPiece,
    ShelfSweep,
    ShelfVerify,
    packed,
)

SCHEME = "agents:"
TALKS_AT_ONCE = 128
"""Reads on one node, and as many writes; more wait. They wait apart: a write may wait for a read, never the reverse."""
IDLE_MAX = 4
STEP_WITHIN_S = 30.0
"""For each piece of an answer, and for each piece to be taken."""
COMMIT_WITHIN_S = 60.0
DISK_BYTES_S = 20 << 20
"""A disk may take its time to read a large blob, or to make it durable, but not more than this means."""
LIST_WITHIN_S = 300.0
"""An agent that has just started looks at every file of its shelf first."""
PIECE_BYTES = 64 * 2**10
NOBODY = MemberId(TaskId(""), "", 0), Fence(0, Epoch(0), Incarnation(0))

Result = TypeVar("Result")


class Talk:
    """One tunnel to a shelf."""

    def __init__(self, tunnel: Tunnel) -> None:
        self.is_clean = True
        """Whether nothing is under way on it."""
        self.gate = asyncio.Semaphore(0)
        """What is released when it is given back."""
        self._tunnel = tunnel
        self._messages = Messages(Answer)

    @property
    def is_over(self) -> bool:
        return self._tunnel.is_over

    async def say(self, question: Question) -> None:
        self.is_clean = False
        await _within(STEP_WITHIN_S, self._tunnel.write(packed(question)))

    async def hear(self, within_s: float = STEP_WITHIN_S) -> object:
        """The next answer; raises the error that it is."""
        while (message := self._messages.next()) is None:
            data = await _within(within_s, self._tunnel.read())
            if not data:
                raise Unavailable("its agent ended the tunnel", object="shelf", next_step="Try again soon.")
            self._messages.feed(data)
        if isinstance(message, ShelfFailed):
            self.is_clean = True
            raise _error(message.error)
        self.is_clean = isinstance(message, ShelfDone | ShelfKept)
        return message

    async def close(self) -> None:
        with suppress(ClutchError, ConnectionError, TimeoutError):
            await self._tunnel.close()


async def _within(timeout_s: float, work: Awaitable[Result]) -> Result:
    try:
        async with asyncio.timeout(timeout_s):
            return await work
    except TimeoutError:
        raise TimedOut(f"its agent said nothing for {timeout_s:g} s", object="shelf") from None
    except (ConnectionError, OSError) as broken:
        raise Unavailable(str(broken) or "the connection broke", object="shelf") from broken


def _error(view: ErrorView) -> ClutchError:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ClutchError)]
    kind = next((kind for kind in kinds if kind.code == view.code and kind is not errors.IllegalMove), Unavailable)
    return kind(view.cause, object=view.object, next_step=view.next_step, path=view.path)


class TunnelShelf:
    """The shelf at the other end of one bulk connection."""

    def __init__(self, node: NodeId, tunnels: NodeTunnels) -> None:
        self.tunnels = tunnels
        self._node = node
        self._gates = asyncio.Semaphore(TALKS_AT_ONCE), asyncio.Semaphore(TALKS_AT_ONCE)
        self._idle: list[Talk] = []

    async def take(self, writes: bool = False) -> Talk:
        """A tunnel for one question; give it back."""
        gate = self._gates[writes]
        await _within(STEP_WITHIN_S, gate.acquire())
        try:
            while self._idle and self._idle[-1].is_over:
                self._idle.pop()
            if self._idle:
                talk = self._idle.pop()
            else:
                talk = Talk(await _within(STEP_WITHIN_S, self.tunnels.open(*NOBODY, SHELF_PORT)))
        except BaseException:
            gate.release()
            raise
        talk.gate = gate
        return talk

    async def give(self, talk: Talk) -> None:
        talk.gate.release()
        if talk.is_clean and len(self._idle) < IDLE_MAX:
            self._idle.append(talk)
        else:
            await talk.close()

    @asynccontextmanager
    async def _talk(self) -> AsyncIterator[Talk]:
        talk = await self.take()
        try:
            yield talk
        finally:
            await self.give(talk)

    async def entries(self) -> list[Entry]:
        found: list[Entry] = []
        async with self._talk() as talk:
            await talk.say(ShelfList())
            while isinstance(page := await talk.hear(LIST_WITHIN_S), ShelfPage):
                found += page.entries
        return found

    async def begin(self, key: str) -> TunnelWriting:
        talk = await self.take(writes=True)
        try:
            await talk.say(ShelfBegin(key))
        except BaseException:
            await self.give(talk)
            raise
        return TunnelWriting(self, talk)

    async def read(self, entry: Entry, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        async with self._talk() as talk:
            await talk.say(ShelfGet(entry.key, entry.stamp, start, stop))
            while isinstance(piece := await talk.hear(), ShelfPiece):
                yield piece.data

    async def verify(self, entry: Entry) -> None:
        async with self._talk() as talk:
            await talk.say(ShelfVerify(entry.key, entry.stamp))
            await talk.hear(COMMIT_WITHIN_S + entry.size_bytes / DISK_BYTES_S)

    async def drop(self, key: str, stamp: int) -> None:
        async with self._talk() as talk:
            await talk.say(ShelfDrop(key, stamp))
            await talk.hear()

    async def sweep(self, older_than_s: float) -> int:
        async with self._talk() as talk:
            await talk.say(ShelfSweep(older_than_s))
            done = await talk.hear(COMMIT_WITHIN_S)
            return done.count if isinstance(done, ShelfDone) else 0


class TunnelWriting:
    """A version on its way to a shelf."""

    def __init__(self, shelf: TunnelShelf, talk: Talk) -> None:
        self._shelf = shelf
        self._talk: Talk | None = talk
        self._size_bytes = 0

    def _open(self) -> Talk:
        if self._talk is None:
            raise Unavailable("it was given up", object="shelf")
        return self._talk

    async def write(self, data: bytes) -> None:
        talk = self._open()
        self._size_bytes += len(data)
        for first in range(0, len(data), PIECE_BYTES):
            await talk.say(ShelfPiece(data[first : first + PIECE_BYTES]))

    async def commit(self, mark: Mark) -> Entry:
        talk = self._open()
        try:
            await talk.say(ShelfCommit(mark))
            kept = await talk.hear(COMMIT_WITHIN_S + self._size_bytes / DISK_BYTES_S)
        finally:
            await self.abort()
        if not isinstance(kept, ShelfKept):
            raise Unavailable("this is no answer of a shelf", object="shelf")
        return kept.entry

    async def abort(self) -> None:
        """A tunnel on which a write was not finished is closed, and its agent forgets the write."""
        talk, self._talk = self._talk, None
        if talk is not None:
            await self._shelf.give(talk)


class LinkShelves:
    """The shelves of all agents that are connected to this master. ``serve`` before it is used."""

    def __init__(self) -> None:
        self._loop: Loop | None = None
        self._lead: Lead | None = None
        self._tunnels = Tunnels()
        self._shelves: dict[NodeId, TunnelShelf] = {}

    def serve(self, loop: Loop, tunnels: Tunnels, changed: Callable[[], None]) -> None:
        self._loop = loop
        self._lead = Lead(loop)
        self._tunnels = tunnels
        tunnels.changed = changed

    @property
    def loop(self) -> Loop:
        if self._loop is None or not self._loop.serving.is_set():
            raise Unavailable("this master does not lead yet", object="blobs", next_step="Try again soon.")
        return self._loop

    def nodes(self) -> dict[str, bool]:
        return {str(name): node.state is not NodeState.LOST for name, node in self.loop.state.nodes.items()}

    def connected(self) -> Mapping[str, Shelf]:
        now = self._tunnels.nodes()
        for node in [node for node, shelf in self._shelves.items() if now.get(node) is not shelf.tunnels]:
            del self._shelves[node]
        for node, tunnels in now.items():
            if node not in self._shelves:
                self._shelves[node] = TunnelShelf(node, tunnels)
        return {str(node): shelf for node, shelf in self._shelves.items()}

    async def confirm(self) -> None:
        if self._lead is None:
            raise Unavailable("this master does not lead yet", object="blobs", next_step="Try again soon.")
        await self._lead.confirm()

    def first_stamp(self) -> int:
        return first_token(self.loop.state.generation, self.loop.state.term)


def agent_blobs(now: Callable[[], float]) -> tuple[AgentBlobs, LinkShelves]:
    """Blobs on the disks of this master's agents. The shelves must be served, and the blobs run."""
    shelves = LinkShelves()
    return AgentBlobs(shelves, Writer(shelves.confirm, shelves.first_stamp, now)), shelves
