"""Three members in three network namespaces, each pair joined by its own cable, cut with iptables or black holes.

Needs root and ``ip``. Nothing outside the namespaces is touched: there is no bridge and no route to the
host, and tests speak to members through their local sockets only.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from clutch.consensus.replicated_log import ReplicatedLog
from clutch.testing.raft_processes import ProcessGroup
from clutch.wire.errors import ClutchError, TimedOut
from clutch.wire.raft import Applied

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip"),
    reason="network namespaces need root and ip (iproute2)",
)
IPTABLES = shutil.which("iptables") is not None
"""Without it a cut is a black hole in the sender's routes: the same for TCP, but the sender's kernel knows."""
COUNT = 3


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=20)


class Cables:
    """Namespaces that see only each other."""

    def __init__(self) -> None:
        tag = f"cl{os.getpid() % 100_000}"
        self.names = [f"{tag}n{i}" for i in range(COUNT)]
        self.hosts = [f"10.88.77.{i + 1}" for i in range(COUNT)]
        self._made: list[str] = []

    def make(self) -> None:
        for name, host in zip(self.names, self.hosts, strict=True):
            run("ip", "netns", "add", name)
            self._made.append(name)
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "addr", "add", f"{host}/32", "dev", "lo")
        for one, other in itertools.combinations(range(COUNT), 2):
            a, b = f"to{other}", f"to{one}"
            run("ip", "-n", self.names[one], "link", "add", a, "type", "veth", "peer", b, "netns", self.names[other])
            for index, device, far in ((one, a, other), (other, b, one)):
                run("ip", "-n", self.names[index], "link", "set", device, "up")
                self._route(index, far)

    def cut(self, sender: int, receiver: int) -> None:
        """What the sender sends no longer reaches the receiver."""
        if IPTABLES:
            rule = ("-A", "INPUT", "-s", self.hosts[sender], "-j", "DROP")
            run("ip", "netns", "exec", self.names[receiver], "iptables", *rule)
        else:
            run("ip", "-n", self.names[sender], "route", "replace", "blackhole", f"{self.hosts[receiver]}/32")

    def mend(self) -> None:
        for index, name in enumerate(self.names):
            if IPTABLES:
                run("ip", "netns", "exec", name, "iptables", "-F", "INPUT")
            else:
                for far in range(COUNT):
                    if far != index:
                        self._route(index, far)

    def _route(self, index: int, far: int) -> None:
        route = ("route", "replace", f"{self.hosts[far]}/32", "dev", f"to{far}", "src", self.hosts[index])
        run("ip", "-n", self.names[index], *route)

    def remove(self) -> None:
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20)


@pytest.fixture
def cables() -> Iterator[Cables]:
    found = Cables()
    try:
        found.make()
        yield found
    finally:
        found.remove()


@pytest.fixture
async def group(tmp_path: Path, cables: Cables) -> AsyncIterator[ProcessGroup]:
    found = ProcessGroup(tmp_path, COUNT)
    addresses = tuple(
        found.make_address(a.id, found.keys[a.id.member], host)
        for a, host in zip(found.addresses, cables.hosts, strict=True)
    )
    found.addresses = addresses
    found.members.clear()
    for address, namespace in zip(addresses, cables.names, strict=True):
        found.add(address, found.keys[address.id.member], founder=True, namespace=namespace)
    found.start()
    try:
        yield found
    finally:
        found.close()


def number(name: str) -> int:
    return int(name[1])


async def keys_of(group: ProcessGroup, name: str, upto: int) -> list[str]:
    keys: list[str] = []
    async with await group.connect(name) as log, asyncio.timeout(20):
        async for event in log.follow():
            assert isinstance(event, Applied)
            keys += [e.key for e in event.entries]
            if event.upto >= upto:
                break
    return keys


async def test_a_leader_that_is_cut_off_is_replaced_and_acknowledges_nothing(
    group: ProcessGroup, cables: Cables
) -> None:
    old = await group.leader()
    others = [n for n in group.members if n != old]
    async with await group.connect(old) as log:
        await log.append(b"before", key="before")
        for name in others:
            cables.cut(number(old), number(name))
            cables.cut(number(name), number(old))
        lonely = asyncio.create_task(log.append(b"lonely", key="lonely", timeout_s=2.0))
        reading = asyncio.create_task(log.barrier(timeout_s=2.0))
        new = await group.leader(among=others)
        async with await group.connect(new) as there:
            index = await there.append(b"during", key="during")
        with pytest.raises(TimedOut):
            await lonely
        with pytest.raises(TimedOut):
            await reading  # a leader that is cut off serves no read, however sure it is
        status = await group.status(old)
        assert status is not None
        assert status.role != "leader"
        assert status.applied < index
    cables.mend()
    await group.until_applied(old, index, timeout_s=30)
    async with await group.connect(old) as log:
        last = await log.append(b"after", key="after", timeout_s=15)
    for name in group.members:
        await group.until_applied(name, last)
        keys = await keys_of(group, name, last)
        assert [k for k in keys if k != "lonely"] == ["before", "during", "after"]
        assert keys.count("lonely") <= 1  # its fate was unknown; it may not be doubled


async def test_one_way_cuts_do_not_stop_the_group(group: ProcessGroup, cables: Cables) -> None:
    """The leader is heard by nobody but hears everybody: the others elect another, who is heard."""
    old = await group.leader()
    others = [n for n in group.members if n != old]
    for name in others:
        cables.cut(number(old), number(name))
    new = await group.leader(among=others, timeout_s=20)
    async with await group.connect(new) as log:
        index = await log.append(b"heard", key="heard")
    cables.mend()
    await group.until_applied(old, index, timeout_s=30)


async def test_rolling_cuts_lose_no_acknowledged_entry(group: ProcessGroup, cables: Cables) -> None:
    acknowledged: dict[str, int] = {}
    await group.leader()
    stop = asyncio.Event()

    async def write(name: str) -> None:
        count = 0
        async with await ReplicatedLog.connect(group.members[name].settings.socket) as log:
            while not stop.is_set():
                key = f"{name}-{count}"
                try:
                    acknowledged[key] = await log.append(os.urandom(100), key=key, timeout_s=1.0)
                    count += 1
                except ClutchError:
                    await asyncio.sleep(0.02)  # the same key again

    writers = [asyncio.create_task(write(name)) for name in group.members]
    for lonely in range(COUNT):
        before = len(acknowledged)
        for other in range(COUNT):
            if other != lonely:
                cables.cut(lonely, other)
                cables.cut(other, lonely)
        async with asyncio.timeout(20):
            while True:
                if len(acknowledged) > before + 30:
                    break
                await asyncio.sleep(0.02)
        cables.mend()
    stop.set()
    await asyncio.gather(*writers)
    last = max(acknowledged.values())
    for name in group.members:
        status = await group.until_applied(name, last, timeout_s=30)
        assert msgspec.structs.asdict(status)["applied"] >= last
        keys = await keys_of(group, name, last)
        assert len(keys) == len(dict.fromkeys(keys))
        assert [k for k in acknowledged if k not in keys] == []
