"""Machines lost, masters killed and disks spoiled under blobs on agents' disks: what was acknowledged is there."""

import asyncio
import hashlib
import shutil
import sys
import time
from pathlib import Path

import pytest
from agents_ground import NAMES, ShelvedCluster

from clutch.sdk import calls
from clutch.testing.blobs_ground import MIB, noise
from clutch.testing.cluster import end_members, until
from clutch.wire.errors import ClutchError

SCRIPT = "import sys\nprint('the code runs', sys.argv[1])\n"


def run_code(cluster: ShelvedCluster, code: Path, word: str) -> None:
    """It must have ended well and printed its word."""
    task = cluster.client.run(sys.executable, "main.py", word, code=str(code), name=f"run-{word}")
    detail = task.wait(60.0)
    assert detail.task.reason == "done", f"{detail.task.reason} {detail.task.detail}"
    assert [line.text for line in task.output() if line.stream == "stdout"] == [f"the code runs {word}"]


async def wait_copies(cluster: ShelvedCluster, count: int, within_s: float = 30.0) -> None:
    """Until every blob is on exactly so many disks."""
    deadline = time.monotonic() + within_s
    while True:
        found = await cluster.shelved()
        if found and all(len(names) == count for names in found.values()):
            return
        assert time.monotonic() < deadline, f"not {count} copies each: {found}"
        await asyncio.sleep(0.1)


def test_uploaded_code_survives_the_loss_of_a_machine_and_has_two_copies_again(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "main.py").write_text(SCRIPT)
    (code / "weights.bin").write_bytes(noise(1, 3 * MIB))
    with ShelvedCluster(tmp_path / "cluster", lost_after_s=3.0) as cluster:
        cluster.start_with_agents(*NAMES)
        run_code(cluster, code, "first")
        asyncio.run(wait_copies(cluster, 2))
        (key,) = {
            key for name in NAMES for key, found in asyncio.run(cluster.entries(name)).items() if found.size_bytes > MIB
        }
        victim = max(asyncio.run(cluster.shelved())[key])
        cluster.agents[victim].kill()
        end_members(cluster.folder / victim)
        shutil.rmtree(cluster.folder / victim)
        run_code(cluster, code, "second")
        cluster.wait_nodes(victim, state="lost")
        asyncio.run(wait_copies(cluster, 2))
        assert victim not in asyncio.run(cluster.shelved())[key]
        cluster.client.perform(calls.remove_node(victim))
        run_code(cluster, code, "third")


@pytest.mark.slow
async def test_a_machine_whose_disk_was_emptied_gets_its_copies_back(tmp_path: Path) -> None:
    with ShelvedCluster(tmp_path) as cluster:
        await asyncio.to_thread(cluster.start_with_agents, *NAMES)
        blobs = await cluster.blobs()
        for number in range(10):
            await blobs.put(f"k{number}", noise(number, 50_000))
        await wait_copies(cluster, 2)
        cluster.agents["one"].kill()
        shutil.rmtree(cluster.shelf("one"))
        cluster.agents["one"].start()
        await wait_copies(cluster, 2)
        for number in range(10):
            assert await blobs.get(f"k{number}") == noise(number, 50_000)
        await blobs.close()


class Puts:
    """Writers that go on whatever happens, and what they were told."""

    def __init__(self, cluster: ShelvedCluster) -> None:
        self.hashes: dict[str, str] = {}
        """Of what was acknowledged last, for every key of which nothing else can have been stored since."""
        self.count = 0
        self._cluster = cluster
        self._stop = asyncio.Event()

    async def write(self, writer: int) -> None:
        blobs = await self._cluster.blobs()
        number = 0
        while not self._stop.is_set():
            number += 1
            key = f"w{writer}/{number % 7}"
            content = noise(writer * 1_000 + number, 200_000 if number % 3 else 2 * MIB)
            known = self.hashes.pop(key, "")  # until it is acknowledged: the old one or the new one, nobody knows
            try:
                await blobs.put(key, content, create=not known and number <= 7)
                self.hashes[key] = hashlib.sha256(content).hexdigest()
                self.count += 1
            except ClutchError:
                continue
        await blobs.close()

    def stop(self) -> None:
        self._stop.set()

    async def more(self, count: int) -> None:
        before = self.count
        await asyncio.to_thread(until, lambda: self.count >= before + count, f"{count} more puts", 60.0)


async def test_what_was_acknowledged_survives_masters_killed_in_the_middle_of_puts(tmp_path: Path) -> None:
    with ShelvedCluster(tmp_path) as cluster:
        await asyncio.to_thread(cluster.start_with_agents, *NAMES)
        puts = Puts(cluster)
        async with asyncio.TaskGroup() as group:
            for writer in range(3):
                group.create_task(puts.write(writer))
            try:
                for _ in range(3):
                    await puts.more(10)
                    cluster.masters[0].kill()
                    cluster.masters[0].start()
                    await asyncio.to_thread(cluster.wait_serving)
                await puts.more(5)
                cluster.agents["two"].kill()  # and now a machine is away, too
            finally:
                puts.stop()
        blobs = await cluster.blobs()
        assert len(puts.hashes) >= 10
        for key, sha256 in sorted(puts.hashes.items()):
            assert hashlib.sha256(await blobs.get(key)).hexdigest() == sha256, key
        await blobs.close()


async def test_a_damaged_file_on_one_shelf_is_noticed_and_mended(tmp_path: Path) -> None:
    content = noise(5, 3 * MIB)
    with ShelvedCluster(tmp_path) as cluster:
        await asyncio.to_thread(cluster.start_with_agents, *NAMES)
        blobs = await cluster.blobs()
        await blobs.put("model", content)
        where = "workspaces/default/model"
        name = (await cluster.holders(where))[0]
        cluster.spoil(name, where)
        assert not await cluster.is_sound(name, where), "the fault did not fire"
        deadline = time.monotonic() + 30.0
        while not await cluster.is_sound(name, where):
            assert time.monotonic() < deadline, "it was not mended"
            assert await blobs.get("model") == content
        assert len(await cluster.holders(where)) == 2
        await blobs.close()
