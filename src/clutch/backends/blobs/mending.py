"""Keeps two copies of every blob on agents' disks: asks each shelf what it has, copies what is missing, takes away what
is too much, and reads through everything in the course of days to find damage before it matters.

At a bounded rate, one after the other: a lost node must not become a storm.
"""

from __future__ import annotations

import asyncio

import structlog

from clutch.backends.blobs.copies import Copies
from clutch.backends.blobs.placing import COPIES, CopyTo, Standing, Step, copies_held, steps
from clutch.backends.blobs.shelf import Shelf
from clutch.wire.errors import ClutchError, Corrupt
from clutch.wire.shelf import Entry

TICK_S = 1.0
ALL_AGAIN_S = 600.0
"""What was deleted is forgotten by and by, so all is looked at again now and then."""
RATE_BYTES_S = 64 << 20
LOADS_AT_ONCE = 8
LOAD_WITHIN_S = 120.0
_BATCH = 500


class Mender:
    def __init__(self, copies: Copies) -> None:
        self.fewest = COPIES
        """The fewest copies that any blob had on connected nodes when it was looked at last."""
        self._copies = copies
        self._loading: dict[str, Shelf] = {}
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
        except (ClutchError, TimeoutError) as failed:
            self._log.warning("a node's blobs cannot be listed", node=node, error=str(failed) or "too slow")
            await asyncio.sleep(TICK_S)
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
            dirty = self._copies.nudged.is_set() or standing != self._last or now() > self._again_at
            self._copies.nudged.clear()
            await self._mend_damaged()
            if not dirty:
                await self._scrub_one(standing)
            elif not [node for node in standing.away if node not in self._copies.seen]:
                self._last = standing if await self._pass(standing) else None
                self._again_at = now() + ALL_AGAIN_S
            else:
                self._last = None  # until it is known what they have, nobody can tell what is missing

    async def _pass(self, standing: Standing) -> bool:
        """Look at every key once; whether all that was to be done was done."""
        catalogue, well = self._copies.catalogue, True
        keys = catalogue.keys()
        for first in range(0, len(keys), _BATCH):
            for key in keys[first : first + _BATCH]:
                for step in list(steps(catalogue, key, standing, self._copies.writer.now())):
                    well = await self._try(step, standing) and well
            await asyncio.sleep(0)
        self.fewest = copies_held(catalogue, keys, standing.here)
        return well

    async def _try(self, step: Step, planned: Standing) -> bool:
        try:
            if isinstance(step, CopyTo):
                await self._copies.copy(step.entry, step.node)
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
                await self._try(CopyTo(entry, node), self._copies.standing())

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
