"""Agents, masters and links killed at random while many members come and go: every byte once, every member once."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from random import Random

import pytest
from agent_cluster import Cluster, until

SCRIPT = """
import random, sys, time
chance = random.Random({seed})
for _ in range({pieces}):
    piece = bytes(chance.choices(range(256), k=chance.choice((1, 80, 4000, 100_000))))
    sys.stdout.buffer.write(piece); sys.stdout.buffer.flush()
    time.sleep(chance.choice((0, 0, 0.01, 0.1)))
sys.exit({code})
"""


def written(seed: int, pieces: int) -> str:
    """The digest of what such a member writes."""
    chance, digest = Random(seed), hashlib.sha256()
    for _ in range(pieces):
        digest.update(bytes(chance.choices(range(256), k=chance.choice((1, 80, 4000, 100_000)))))
        chance.choice((0, 0, 0.01, 0.1))
    return digest.hexdigest()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", [1, 2])
async def test_killed_at_random(cluster: Cluster, seed: int) -> None:
    chance = Random(seed)
    agents = {name: cluster.agent(name) for name in ("n1", "n2")}
    tasks = {f"t{number}": (seed * 1000 + number, chance.randrange(1, 60)) for number in range(40)}

    async def submit() -> None:
        for task, (member_seed, pieces) in tasks.items():
            script = SCRIPT.format(seed=member_seed, pieces=pieces, code=member_seed % 3)
            while True:
                try:
                    await cluster.master.run(task, sys.executable, "-c", script, on_lost="wait")
                    break
                except (AssertionError, OSError):  # the master was just killed; the same key makes it safe to repeat
                    await asyncio.sleep(0.2)
            await asyncio.sleep(chance.uniform(0, 0.2))

    submitting = asyncio.create_task(submit())
    for _ in range(12):
        await asyncio.sleep(chance.uniform(0.3, 1.5))
        victim = chance.choice(("n1", "n2", "master"))
        if victim == "master":
            async with cluster.master.alone():
                await cluster.master.kill()
                await cluster.master.start()
        else:
            agents[victim].kill()
            agents[victim] = cluster.agent(victim)
    await submitting

    async def all_over() -> bool:
        return not (await cluster.master.ask("state"))["tasks"]

    await until(all_over, "not all of them end", 200)
    for task, (member_seed, pieces) in tasks.items():
        found = hashlib.sha256(await cluster.master.output(task)).hexdigest()
        assert found == written(member_seed, pieces), f"{task} is not what it wrote"
    for name in agents:

        async def is_clean(name: str = name) -> bool:
            return not list((cluster.folder / name / "members").iterdir())

        await until(is_clean, f"directories stay on {name}")
