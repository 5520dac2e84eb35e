"""A minute of bad luck for real processes: kills, stops, hand-overs, snapshots, while clients append and read."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

from clutch.consensus.replicated_log import ReplicatedLog
from clutch.consensus.state import Limits
from clutch.testing.raft_processes import ProcessGroup
from clutch.wire.errors import ClutchError
from clutch.wire.raft import Applied, Restore

LASTS_S = 60.0


class Client:
    """Appends one key after the other, each until it is acknowledged, and reads in between."""

    def __init__(self, group: ProcessGroup, name: str, seed: int) -> None:
        self.group = group
        self.name = name
        self.chance = random.Random(seed)
        self.acknowledged: dict[str, int] = {}
        self.highest_seen = 0
        self.reads = 0

    async def run(self, stop: asyncio.Event) -> None:
        count = 0
        while not stop.is_set():
            key = f"{self.name}-{count}"
            target = self.chance.choice(list(self.group.members))
            began_at = self.highest_seen
            try:
                socket = self.group.members[target].settings.socket
                async with await ReplicatedLog.connect(socket, timeout_s=0.3) as log:
                    size = self.chance.choice([50, 50, 50, 1000, 200_000])
                    data = (key.encode() + b" ").ljust(size, b".")
                    index = await log.append(data, key, timeout_s=2.0)
                    assert index > began_at, "an append stands before something that had ended before it began"
                    self.acknowledged[key] = index
                    self.highest_seen = max(self.highest_seen, index)
                    count += 1
                    if self.chance.random() < 0.3:
                        began_at = self.highest_seen
                        seen = await log.barrier(timeout_s=2.0)
                        assert seen >= began_at, "a read missed what had ended before it began"
                        self.highest_seen = max(self.highest_seen, seen)
                        self.reads += 1
            except (ClutchError, OSError):
                await asyncio.sleep(0.02)


async def misfortune(group: ProcessGroup, chance: random.Random, folder: Path) -> str:
    names = list(group.members)
    name = chance.choice(names)
    member = group.members[name]
    what = chance.choice(["kill", "kill", "kill leader", "stop", "transfer", "snapshot", "kill all"])
    if what == "kill leader":
        name = await group.leader()
        member = group.members[name]
    if what in ("kill", "kill leader"):
        member.kill()
        await asyncio.sleep(chance.uniform(0.0, 1.5))
        member.start()
    elif what == "kill all":
        for each in group.members.values():
            each.kill()
        group.start()
    elif what == "stop":
        member.pause()
        await asyncio.sleep(chance.uniform(0.1, 1.5))
        member.proceed()
    else:
        try:
            async with await group.connect(await group.leader()) as log:
                if what == "transfer":
                    await log.transfer(member.id, 3.0)
                else:
                    index = (await log.status()).applied
                    state = folder / "state"
                    state.write_bytes(b"state up to %d" % index)
                    await log.save_snapshot(index, state)
        except ClutchError:
            return f"{what} refused"
    return what


async def survivors_view(group: ProcessGroup, name: str, upto: int) -> tuple[int, dict[str, int]]:
    """Where a member's log begins now, and every key after that."""
    keys: dict[str, int] = {}
    begins = 0
    async with await group.connect(name) as log, asyncio.timeout(30):
        async for event in log.follow():
            if isinstance(event, Restore):
                begins = event.index
            elif isinstance(event, Applied):
                for entry in event.entries:
                    assert entry.key not in keys, f"{entry.key} was applied twice"
                    keys[entry.key] = entry.index
                if event.upto >= upto:
                    break
    return begins, keys


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_minute_of_bad_luck(tmp_path: Path) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    chance = random.Random(seed)
    group = ProcessGroup(tmp_path / "group", limits=Limits(keep_entries=50, keep_bytes=100_000))
    group.start()
    try:
        await group.leader()
        stop = asyncio.Event()
        clients = [Client(group, f"c{i}", seed + i) for i in range(4)]
        running = [asyncio.create_task(c.run(stop)) for c in clients]
        seen: dict[str, int] = {}
        end = time.monotonic() + LASTS_S
        while time.monotonic() < end:
            what = await misfortune(group, chance, tmp_path)
            seen[what] = seen.get(what, 0) + 1
            await asyncio.sleep(chance.uniform(0.2, 1.0))
        stop.set()
        await asyncio.gather(*running)
        acknowledged = {k: i for c in clients for k, i in c.acknowledged.items()}
        last = max(acknowledged.values())
        views = {}
        for name in group.members:
            await group.until_applied(name, last, timeout_s=30)
            views[name] = await survivors_view(group, name, last)
        for name, (begins, keys) in views.items():
            expected = {k: i for k, i in acknowledged.items() if i > begins}
            assert {k: keys.get(k) for k in expected} == expected, f"{name} lost something (seed {seed})"
        assert len(acknowledged) > 200, f"{len(acknowledged)} appends in a minute (seed {seed}, {seen})"
        assert sum(seen.get(k, 0) for k in ("kill", "kill leader", "kill all")) >= 5, seen
    finally:
        group.close()
