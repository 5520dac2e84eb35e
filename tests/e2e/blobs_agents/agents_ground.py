"""A real cluster whose blobs are on its agents' disks, and a look at those disks behind its back."""

from __future__ import annotations

import asyncio
from pathlib import Path

from clutch.backends.blobs.base import FullBlobs
from clutch.backends.blobs.directory import DirectoryBlobs
from clutch.backends.blobs.opening import open_blobs
from clutch.backends.blobs.shelf import BlobShelf, place
from clutch.sdk import calls
from clutch.testing.cluster import Cluster
from clutch.wire.ids import PoolName
from clutch.wire.shelf import Entry
from clutch.wire.specs import PoolSpec

NAMES = ("one", "two", "three")


class ShelvedCluster(Cluster):
    """Nothing is shared but the network."""

    def __init__(self, folder: Path, *, lost_after_s: float = 90.0, db: str = "", masters: int = 1) -> None:
        super().__init__(folder, db, masters, blobs="agents:")
        self.lost_after_s = lost_after_s

    def start_with_agents(self, *names: str) -> None:
        client = self.start()
        pool = PoolSpec(name=PoolName("default"), node_lost_after_s=self.lost_after_s)
        client.perform(calls.put_pool(pool))
        for name in names:
            self.add_agent(name)
        self.wait_nodes(*names)

    @property
    def token(self) -> str:
        return (self.folder / "master0" / "local.token").read_text().strip()

    async def blobs(self) -> FullBlobs:
        return await open_blobs(f"served:{self.urls[0]}/default?token={self.token}&part_mib=1")

    def shelf(self, name: str) -> Path:
        return self.folder / name / "blobs"

    async def entries(self, name: str) -> dict[str, Entry]:
        """What lies on a node's disk now, damaged files left out."""
        if not self.shelf(name).exists():
            return {}
        found = await BlobShelf(await DirectoryBlobs.open(self.shelf(name))).entries()
        return {entry.key: entry for entry in found if not entry.gone}

    async def holders(self, key: str) -> list[str]:
        return [name for name in NAMES if key in await self.entries(name)]

    async def shelved(self) -> dict[str, list[str]]:
        """Every key that is on some disk, and on which."""
        found: dict[str, list[str]] = {}
        for name in NAMES:
            for key in await self.entries(name):
                found.setdefault(key, []).append(name)
        return found

    def spoil(self, name: str, key: str) -> None:
        """Change one bit of a copy on a disk."""
        path = self.shelf(name) / place(key)
        content = path.read_bytes()
        with path.open("r+b") as file:
            file.write(bytes([content[0] ^ 1]))

    async def is_sound(self, name: str, key: str) -> bool:
        shelf = BlobShelf(await DirectoryBlobs.open(self.shelf(name)))
        entry = await shelf.find(key)
        if entry is None:
            return False
        try:
            await shelf.verify(entry)
        except Exception:
            return False
        return True


class RealGround:
    """For the suite: through a master's API onto three agents."""

    def __init__(self, cluster: ShelvedCluster, folder: Path) -> None:
        self.folder = folder
        self._cluster = cluster
        self._opened: list[FullBlobs] = []

    async def open(self) -> FullBlobs:
        self._opened.append(await self._cluster.blobs())
        return self._opened[-1]

    async def damage(self, key: str) -> None:
        where = f"workspaces/default/{key}"
        for name in await self._cluster.holders(where):
            self._cluster.spoil(name, where)

    async def leftovers(self) -> int:
        count = 0
        for name in NAMES:
            root = self._cluster.shelf(name)
            count += len(list((root / ".clutch" / "parts").iterdir())) if root.exists() else 0
            count += sum(key.startswith("served/") for key in await self._cluster.entries(name))
        return count

    async def close(self) -> None:
        for blobs in self._opened[:1]:
            keys = [listed.key async for page in blobs.list() for listed in page]
            await asyncio.gather(*(blobs.delete(key) for key in keys))
        for blobs in self._opened:
            await blobs.close()
