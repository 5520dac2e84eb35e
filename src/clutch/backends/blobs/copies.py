"""The hands of the blobs on agents' disks: which shelves can be asked, and how a version gets onto two of them.

One process writes, the master that leads, so a lock in memory decides between two writers of a key. It knows what each
shelf has, from a list when the shelf connects and from its own writes after that, so finding a key asks nobody.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Protocol, TypeVar

import msgspec
import structlog

from clutch.backends.blobs.files import corrupt
from clutch.backends.blobs.placing import COPIES, Catalogue, Standing, ranked
from clutch.backends.blobs.shelf import Shelf, Writing
from clutch.wire.errors import ClutchError, Conflict, Corrupt, DiskFull, NotFound, Unavailable
from clutch.wire.shelf import Entry, Mark

WAIT_S = 20.0
"""How long a call waits for nodes that are not there."""
LOOK_EVERY_S = 0.5
Result = TypeVar("Result")
_EMPTY = hashlib.sha256().hexdigest()


class Shelves(Protocol):
    """The shelves of a cluster."""

    def nodes(self) -> Mapping[str, bool]:
        """Every node, and whether it is expected to come back when it is away. ``Unavailable`` if not known yet."""
        ...

    def connected(self) -> Mapping[str, Shelf]:
        """The shelves that can be asked now; another object whenever a node has come back."""
        ...


class Writer(msgspec.Struct, frozen=True):
    """What makes this process the one that writes."""

    confirm: Callable[[], Awaitable[None]]
    """Returns if it still was after the call; ``NotLeader`` otherwise."""
    first_stamp: Callable[[], int]
    """Above every stamp that a writer before it gave."""
    now: Callable[[], float]


class Replaced(Exception):
    """Another version has taken the place of the one being read."""


class Copies:
    def __init__(self, shelves: Shelves, writer: Writer, *, wait_s: float = WAIT_S) -> None:
        self.catalogue = Catalogue()
        self.writer = writer
        self.wait_s = wait_s
        self.seen: set[str] = set()
        """Nodes of which the catalogue knows what they have, or had when they were here last."""
        self.damaged: dict[tuple[str, str], Entry] = {}
        """By node and key."""
        self.dirty: dict[str, None] = {}
        """Keys of which there may be too few or too many copies."""
        self.all_dirty = True
        self.fewest = COPIES
        """The fewest copies on connected nodes that any blob had when it was put, or looked at after that."""
        self.nudged = asyncio.Event()
        """Set when there may be something to mend, or nodes have changed."""
        self._shelves = shelves
        self._loaded: dict[str, Shelf] = {}
        self._locks: dict[str, list[asyncio.Lock]] = {}
        self._works: set[asyncio.Task[Any]] = set()
        self._turned = asyncio.Event()
        self._turns = 0
        self._log = structlog.get_logger("clutch.blobs")

    # -- who is there --------------------------------------------------------------------------------------------

    def standing(self) -> Standing:
        nodes = self._shelves.nodes()
        here = frozenset(self._here())
        away = frozenset(node for node, expected in nodes.items() if expected and node not in here)
        lost = frozenset(node for node, expected in nodes.items() if not expected and node not in here)
        return Standing(here, away, lost)

    def _here(self) -> dict[str, Shelf]:
        connected = self._shelves.connected()
        return {node: shelf for node, shelf in connected.items() if self._loaded.get(node) is shelf}

    def shelf(self, node: str) -> Shelf:
        found = self._here().get(node)
        if found is None:
            raise Unavailable("its agent is not connected now", object=f"node {node}", next_step="Try again soon.")
        return found

    def unloaded(self) -> dict[str, Shelf]:
        """Shelves that can be asked and were not asked yet what they have."""
        connected = self._shelves.connected()
        return {node: shelf for node, shelf in connected.items() if self._loaded.get(node) is not shelf}

    async def load(self, node: str, shelf: Shelf) -> None:
        before = self.catalogue.last_stamp
        self.catalogue.load(node, await shelf.entries(), before)
        self._loaded[node] = shelf
        self.seen.add(node)
        self.all_dirty = True
        self.nudge()

    def _doubt(self, node: str) -> None:
        """What is known of this shelf may be wrong: it is asked again before it is used again."""
        self._loaded.pop(node, None)
        self.nudge()

    def forget(self) -> None:
        """Leave out what is said of nodes that the cluster does not have any more."""
        nodes, connected = self._shelves.nodes(), self._shelves.connected()
        for node in [node for node in self.seen if node not in nodes and node not in connected]:
            self.catalogue.forget(node)
            self._loaded.pop(node, None)
            self.seen.discard(node)

    def nudge(self) -> None:
        """There is something to do, and whoever waits looks again."""
        self.nudged.set()
        self._turn()

    def _turn(self) -> None:
        turned, self._turned = self._turned, asyncio.Event()
        turned.set()

    async def turned(self, within_s: float) -> None:
        """Until something changes, or so long."""
        try:
            async with asyncio.timeout(within_s):
                await self._turned.wait()
        except TimeoutError:
            return

    async def _wait(self, deadline: float) -> bool:
        """Until something changes; False when the time is over."""
        left_s = deadline - asyncio.get_running_loop().time()
        if left_s > 0:
            await self.turned(min(left_s, LOOK_EVERY_S))
        return left_s > 0

    def deadline(self) -> float:
        return asyncio.get_running_loop().time() + self.wait_s

    async def settled(self, subject: str) -> Standing:
        """The nodes, when enough of them are here to see all that was acknowledged."""
        deadline = self.deadline()
        while not (standing := self.standing()).is_settled:
            if not await self._wait(deadline):
                raise Unavailable(
                    f"of {len(standing.here) + len(standing.away)} nodes that keep copies only "
                    f"{len(standing.here)} can be reached",
                    object=subject,
                    next_step=_missing(standing),
                )
        return standing

    @asynccontextmanager
    async def lock(self, key: str) -> AsyncIterator[None]:
        """One at a time changes a key."""
        locks = self._locks.setdefault(key, [asyncio.Lock()])
        locks.append(locks[0])  # counts who needs it
        try:
            async with locks[0]:
                yield
        finally:
            locks.pop()
            if len(locks) == 1:
                del self._locks[key]

    # -- reading -------------------------------------------------------------------------------------------------

    async def read(self, entry: Entry, start: int, stop: int, but: str = "") -> AsyncGenerator[bytes, None]:
        """The bytes, from whoever has them (``but`` one node), going on with another where one fails.

        ``Replaced`` when this version is not the valid one any more; ``Corrupt`` when no copy is sound.
        """
        refused: dict[str, ClutchError] = {}
        deadline = self.deadline()
        while start < stop:
            node = self._next_holder(entry, {*refused, but})
            if node is None:
                if self.catalogue.newest(entry.key) != entry:
                    raise Replaced
                self._raise_corrupt(entry, refused)
                if not await self._wait(deadline):
                    raise self._out_of_reach(entry)
                refused = {one: error for one, error in refused.items() if isinstance(error, Corrupt)}
                continue
            try:
                async with aclosing(self.shelf(node).read(entry, start, stop)) as pieces:
                    async for piece in pieces:
                        start += len(piece)
                        yield piece
                if start < stop:
                    raise corrupt(entry.key, "fewer bytes came than it has")
            except ClutchError as error:
                refused[node] = error
                self._suspect(node, entry, error)

    def _next_holder(self, entry: Entry, but: set[str]) -> str | None:
        """Each time another one, so that the work is shared and damage is found."""
        here = self._here()
        nodes = [node for node in self.catalogue.holders(entry) if node in here and node not in but]
        self._turns += 1
        return nodes[self._turns % len(nodes)] if nodes else None

    def _suspect(self, node: str, entry: Entry, error: ClutchError) -> None:
        if self.catalogue.copies(entry.key).get(node) != entry:
            return  # replaced meanwhile
        self._log.warning("a copy cannot be read", node=node, key=entry.key, error=str(error))
        if isinstance(error, Corrupt):
            self.damaged[node, entry.key] = entry
            self.nudged.set()
        elif isinstance(error, NotFound) and entry.key not in self._locks:
            self._doubt(node)

    def _raise_corrupt(self, entry: Entry, refused: Mapping[str, ClutchError]) -> None:
        """Unless somebody who is away may have a sound copy."""
        for node in self.catalogue.holders(entry):
            if not isinstance(refused.get(node), Corrupt):
                return
        if refused:
            raise corrupt(entry.key, f"none of its copies, on {', '.join(sorted(refused))}, is sound")

    def _out_of_reach(self, entry: Entry) -> Unavailable:
        nodes = ", ".join(self.catalogue.holders(entry))
        return Unavailable(
            f"its copies are on {nodes or 'nodes that are gone'}, out of reach now",
            object=f"blob {entry.key}",
            next_step="Start the agent of one of them.",
        )

    # -- writing -------------------------------------------------------------------------------------------------

    async def store(self, key: str, content: AsyncIterable[bytes], create: bool) -> Entry:
        """The new version, when as many nodes as there should be have it, and this process still is the writer."""
        writings = await self._begin(key, ())
        failed: dict[str, ClutchError] = {}
        digest = hashlib.sha256()
        try:
            async for chunk in content:
                if len(chunk) > 1 << 16:
                    await asyncio.to_thread(digest.update, chunk)
                else:
                    digest.update(chunk)
                await self._write(key, writings, chunk, failed)
        except BaseException:
            await _abort(writings)
            raise

        async def seal() -> Entry:
            try:
                async with self.lock(key):
                    await self.settled(f"blob {key}")
                    if create:
                        self.refuse_existing(key)
                    return await self._seal(key, writings, digest.hexdigest(), failed)
            finally:
                await _abort(writings)

        return await self._to_its_end(seal())

    async def remove(self, key: str) -> None:
        """Remember on as many nodes as there should be that it is gone."""

        async def seal() -> None:
            async with self.lock(key):
                await self.settled(f"blob {key}")
                newest = self.catalogue.newest(key)
                if newest is None or newest.gone:
                    return
                writings = await self._begin(key, tuple(self.catalogue.holders(newest)))
                try:
                    await self._seal(key, writings, None, {})
                finally:
                    await _abort(writings)

        await self._to_its_end(seal())

    async def _to_its_end(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Also when nobody waits for it any more: a change half done is not known to be done."""
        task = asyncio.ensure_future(work)
        self._works.add(task)
        task.add_done_callback(self._over)
        return await asyncio.shield(task)

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._works.discard(task)
        if not task.cancelled():
            task.exception()

    async def close(self) -> None:
        """Nothing is under way any more."""
        works = list(self._works)
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    def refuse_existing(self, key: str) -> None:
        found = self.catalogue.newest(key)
        if found is not None and not found.gone:
            raise Conflict("it exists already", object=f"blob {key}", next_step="Use it, or another key.")

    async def _begin(self, key: str, first: tuple[str, ...]) -> dict[str, Writing]:
        """Begin on as many nodes as there should be copies, these ones first."""
        deadline = self.deadline()
        writings: dict[str, Writing] = {}
        try:
            while True:
                standing = self.standing()
                order = sorted(ranked(key, standing.here), key=lambda node: node not in first)
                missing = standing.wanted - len(writings)
                if missing > 0:
                    chosen = [node for node in order if node not in writings][:missing]
                    for node in sorted(chosen):  # everybody in the same order, so that nobody waits in a circle
                        try:
                            writings[node] = await self.shelf(node).begin(key)
                        except ClutchError as error:
                            self._log.warning("a copy cannot be begun", node=node, key=key, error=str(error))
                if writings and len(writings) >= standing.wanted:
                    return writings
                if not await self._wait(deadline):
                    raise self._too_few(key, len(writings), standing)
        except BaseException:
            await _abort(writings)
            raise

    @staticmethod
    def _too_few(key: str, count: int, standing: Standing) -> Unavailable:
        return Unavailable(
            f"only {count} of {standing.wanted} nodes that should have it can be reached",
            object=f"blob {key}",
            next_step=_missing(standing),
        )

    async def _write(
        self, key: str, writings: dict[str, Writing], chunk: bytes, failed: dict[str, ClutchError]
    ) -> None:
        nodes = list(writings)
        done = await asyncio.gather(*(writings[node].write(chunk) for node in nodes), return_exceptions=True)
        for node, error in zip(nodes, done, strict=True):
            if isinstance(error, ClutchError):
                failed[node] = error
                await _quietly(writings.pop(node).abort())
            elif isinstance(error, BaseException):
                raise error
        if not writings:
            raise _telling(key, failed)

    async def _seal(
        self, key: str, writings: dict[str, Writing], sha256: str | None, failed: dict[str, ClutchError]
    ) -> Entry:
        """Make it valid on all of them at once; without a hash, what is valid is that it is gone."""
        standing = self.standing()
        others = [node for node in standing.here if node not in writings and node not in failed]
        if failed and len(writings) + len(others) < standing.wanted:
            raise _telling(key, failed)  # nothing has changed yet
        stamp = max(self.catalogue.last_stamp, self.writer.first_stamp()) + 1
        self.catalogue.last_stamp = stamp
        mark = Mark(stamp, sha256 or _EMPTY, self.writer.now(), gone=sha256 is None)
        nodes = list(writings)
        done = await asyncio.gather(*(writings.pop(node).commit(mark) for node in nodes), return_exceptions=True)
        entry = None
        for node, result in zip(nodes, done, strict=True):
            if isinstance(result, Entry):
                self.catalogue.put(node, entry := result)
            elif isinstance(result, ClutchError):
                failed[node] = result
                if not isinstance(result, DiskFull | Conflict | Corrupt):
                    self._doubt(node)  # nobody knows whether it was done
            else:
                raise result
        self._turn()
        if set(self.catalogue.copies(key)) != set(nodes) or failed:
            self.dirty[key] = None
            self.nudged.set()
        if entry is None:
            raise _telling(key, failed)
        await self._complete(entry, failed)
        await self.writer.confirm()
        return entry

    async def _complete(self, entry: Entry, failed: dict[str, ClutchError]) -> None:
        """Until there are as many copies as there should be."""
        deadline = self.deadline()
        while True:
            standing = self.standing()
            holders = [node for node in self.catalogue.holders(entry) if node in standing.here]
            if len(holders) >= standing.wanted:
                self.fewest = min(self.fewest, len(holders))
                return
            others = ranked(entry.key, [node for node in standing.here if node not in holders and node not in failed])
            if others:
                try:
                    await self.copy(entry, others[0], locked=True)
                except ClutchError as error:
                    failed[others[0]] = error
                continue
            if any(isinstance(error, DiskFull) for error in failed.values()) or not await self._wait(deadline):
                raise self._too_few(entry.key, len(holders), standing)
            failed.clear()

    async def copy(self, entry: Entry, node: str, *, locked: bool = False) -> bool:
        """Give a node a copy of a version; False if that is not the valid one any more."""
        writing = await self.shelf(node).begin(entry.key)
        try:
            async with aclosing(self.read(entry, 0, entry.size_bytes, but=node)) as pieces:
                async for piece in pieces:
                    await writing.write(piece)
            mark = Mark(entry.stamp, entry.sha256, entry.modified_at, entry.gone)
            if locked:
                kept = await writing.commit(mark)
            else:
                async with self.lock(entry.key):
                    if self.catalogue.newest(entry.key) != entry:
                        await writing.abort()
                        return False
                    kept = await writing.commit(mark)
                    self.catalogue.put(node, kept)
                    return True
            self.catalogue.put(node, kept)
            return True
        except Replaced:
            await _quietly(writing.abort())
            return False
        except BaseException:
            await _quietly(writing.abort())
            raise

    async def drop(self, entry: Entry, node: str) -> None:
        """Take a version from a node. Call it with the lock."""
        await self.shelf(node).drop(entry.key, entry.stamp)
        if self.catalogue.copies(entry.key).get(node) == entry:
            self.catalogue.drop(node, entry.key)


def _missing(standing: Standing) -> str:
    names = ", ".join(sorted(standing.away)[:5])
    return f"Start the agents of {names}, or remove nodes that are gone." if names else "Start an agent."


def _telling(key: str, failed: Mapping[str, ClutchError]) -> ClutchError:
    """Of several errors the one that says most, with the node's name and about the blob."""
    order = sorted(failed.items(), key=lambda item: not isinstance(item[1], DiskFull))
    node, error = order[0]
    return type(error)(f"node {node}: {error.cause}", object=f"blob {key}", next_step=error.next_step)


async def _abort(writings: dict[str, Writing]) -> None:
    while writings:
        await _quietly(writings.popitem()[1].abort())


async def _quietly(work: Awaitable[None]) -> None:
    """For what need not succeed: the other end cleans up by itself."""
    try:
        await work
    except ClutchError:
        return
