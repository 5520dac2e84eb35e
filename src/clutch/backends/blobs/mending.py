"""Keeps two copies of every blob on agents' disks: asks each shelf what it has, copies what is missing, takes away what
is too much, and reads through everything in the course of days to find damage before it matters.

At a bounded rate, one after the other: a lost node must not become a storm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from clutch.backends.blobs.copies import Copies
from clutch.backends.blobs.placing import CopyTo, Standing, Step, copies_held, steps
from clutch.backends.blobs.shelf import Shelf
from clutch.wire.errors import ClutchError, Corrupt
from clutch.wire.shelf import Entry

TICK_S = 1.0
ALL_AGAIN_S = 600.0
"""What was deleted is forgotten by and by, so all is looked at again now and then."""
RATE_BYTES_S = 64 << 20
LOADS_AT_ONCE = 8
LOAD_WITHIN_S = 300.0
LOAD_AGAIN_S = 30.0
_BATCH = 500


class Mender:
    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._loading: dict[str, Shelf] = {}
        self._refusals: dict[str, int] = {}
        self._gate = asyncio.Semaphore(LOADS_AT_ONCE)
        self._last: Standing | None = None
        self._again_at = 0.0
        self._scrub: list[tuple[str, Entry]] = []
        self._log = structlog.get_logger("clutch.blobs")

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_mended())
            while True:
                for node, shelf in self._copies.unloaded().items():
                    if self._loading.get(node) is not shelf:
                        self._loading[node] = shelf
                        group.create_task(self._load(node, shelf))
                await self._copies.turned(TICK_S)

    async def _load(self, node: str, shelf: Shelf) -> None:
        try:
            async with self._gate, asyncio.timeout(LOAD_WITHIN_S):
                await self._copies.load(node, shelf)
            self._refusals.pop(node, None)
        except (ClutchError, TimeoutError) as failed:
            self._log.warning("a node's blobs cannot be listed", node=node, error=str(failed) or "too slow")
            self._refusals[node] = self._refusals.get(node, 0) + 1
            await asyncio.sleep(min(LOAD_AGAIN_S, TICK_S * 2 ** self._refusals[node]))
        finally:
            if self._loading.get(node) is shelf:
                del self._loading[node]

    # -- mending -------------------------------------------------------------------------------------------------

    async def _keep_mended(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            try:
                async with asyncio.timeout(TICK_S):
                    await self._copies.nudged.wait()
            except TimeoutError:
                pass
            try:
                self._copies.forget()
                standing = self._copies.standing()
            except ClutchError:
                self._copies.nudged.clear()
                continue  # it is not known yet which nodes there are
            self._copies.nudged.clear()
            await self._mend_damaged()
            if not standing.away <= self._copies.seen:
                self._last = None  # until it is known what they have, nobody can tell what is missing
            elif self._copies.all_dirty or standing != self._last or now() > self._again_at:
                self._copies.all_dirty = False
                self._copies.dirty.clear()
                await self._pass(self._copies.catalogue.keys(), standing)
                self._count(standing)
                self._last, self._again_at = standing, now() + ALL_AGAIN_S
            elif self._copies.dirty:
                keys = list(self._copies.dirty)
                self._copies.dirty.clear()
                await self._pass(keys, standing)
                if not self._copies.dirty and self._copies.fewest < standing.wanted:
                    self._count(standing)
            else:
                await self._scrub_one(standing)

    def _count(self, standing: Standing) -> None:
        catalogue = self._copies.catalogue
        self._copies.fewest = copies_held(catalogue, catalogue.keys(), standing.here)

    async def _pass(self, keys: Sequence[str], standing: Standing) -> None:
        """Look at these keys once; those that are not right then are looked at again."""
        for first in range(0, len(keys), _BATCH):
            for key in keys[first : first + _BATCH]:
                for step in list(steps(self._copies.catalogue, key, standing, self._copies.writer.now())):
                    if not await self._try(step):
                        self._copies.dirty[key] = None
            await asyncio.sleep(0)

    async def _try(self, step: Step) -> bool:
        try:
            if isinstance(step, CopyTo):
                if await self._copies.copy(step.entry, step.node):
                    self._log.info("a copy was made", key=step.entry.key, node=step.node)
                await asyncio.sleep(step.entry.size_bytes / RATE_BYTES_S)
                return False  # what is too much elsewhere can go in the next round
            async with self._copies.lock(step.entry.key):
                now = self._copies.writer.now()
                if step in steps(self._copies.catalogue, step.entry.key, self._copies.standing(), now):
                    await self._copies.drop(step.entry, step.node)
            return True
        except ClutchError as failed:
            self._log.warning("a copy cannot be mended", key=step.entry.key, node=step.node, error=str(failed))
            return False

    async def _mend_damaged(self) -> None:
        for (node, key), entry in list(self._copies.damaged.items()):
            others = [one for one in self._copies.catalogue.holders(entry) if one != node]
            others = [one for one in others if (one, key) not in self._copies.damaged]
            if self._copies.catalogue.copies(key).get(node) != entry:
                del self._copies.damaged[node, key]
            elif others:
                del self._copies.damaged[node, key]
                await self._try(CopyTo(entry, node))

    async def _scrub_one(self, standing: Standing) -> None:
        """Have one node read one blob that it has."""
        if not self._scrub:
            catalogue = self._copies.catalogue
            keys = catalogue.keys()
            self._scrub = [(node, copy) for key in keys for node, copy in catalogue.copies(key).items()]
        while self._scrub:
            node, entry = self._scrub.pop()
            if node in standing.here and self._copies.catalogue.copies(entry.key).get(node) == entry:
                try:
                    await self._copies.shelf(node).verify(entry)
                except Corrupt:
                    self._log.warning("a copy is damaged", key=entry.key, node=node)
                    self._copies.damaged[node, entry.key] = entry
                except ClutchError:
                    self._copies.nudged.set()
                await asyncio.sleep(entry.size_bytes / RATE_BYTES_S)
                return
