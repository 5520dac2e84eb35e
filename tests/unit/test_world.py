"""The seeded world: order, time, chance, network and disk."""

from __future__ import annotations

import asyncio

import pytest

from clutch.testing.disk import Disk
from clutch.testing.network import FAIR, Network, Weather
from clutch.testing.virtual_loop import VirtualLoop
from clutch.testing.world import World


def test_things_due_at_once_happen_in_the_order_they_were_planned() -> None:
    world, seen = World(1), []
    world.after(2.0, lambda: seen.append("later"))
    world.after(1.0, lambda: seen.append("first"))
    world.after(1.0, lambda: seen.append("second"))
    world.run_until(world.now + 5)
    assert seen == ["first", "second", "later"]


def test_a_cancelled_entry_does_not_happen_and_does_not_count() -> None:
    world, seen = World(1), []
    world.after(1.0, lambda: seen.append("x")).cancel()
    assert world.next_at() is None
    assert not world.step()
    assert seen == []


def test_streams_of_chance_are_independent_and_repeatable() -> None:
    one, other = World(7), World(7)
    other.chance("else").random()
    assert [one.chance("a").random() for _ in range(3)] == [other.chance("a").random() for _ in range(3)]
    assert World(8).chance("a").random() != World(7).chance("a").random()


def test_a_cut_is_one_way_and_loses_what_is_under_way() -> None:
    world = World(1)
    network, got = Network(world, FAIR), []
    network.attach("a", lambda sender, message: got.append(("a", message)))
    network.attach("b", lambda sender, message: got.append(("b", message)))
    network.send("a", "b", 1)
    network.cut("a", "b")
    network.send("a", "b", 2)
    network.send("b", "a", 3)
    world.run_until(world.now + 1)
    assert got == [("a", 3)]
    network.mend("a", "b")
    network.send("a/process", "b", 4)
    world.run_until(world.now + 1)
    assert got[-1] == ("b", 4)


def test_processes_share_the_links_of_their_machine() -> None:
    world = World(1)
    network, got = Network(world, FAIR), []
    network.attach("b", lambda sender, message: got.append(message))
    network.cut("a", "b")
    network.send("a/process", "b", 1)
    world.run_until(world.now + 1)
    assert got == []


def test_weather_loses_doubles_and_reorders() -> None:
    world = World(3)
    network, got = Network(world, Weather(loss=0.2, duplication=0.2, straggling=0.2)), []
    network.attach("b", lambda sender, message: got.append(message))
    for number in range(300):
        network.send("a", "b", number)
    world.run_until(world.now + 5)
    assert len(set(got)) < 300
    assert len(got) > len(set(got))
    assert got != sorted(got)


def test_a_disk_keeps_what_was_synced_and_tears_the_rest() -> None:
    torn = False
    for seed in range(40):
        disk = Disk(World(seed).chance("disk"))
        disk.append("log", b"synced")
        disk.sync("log")
        disk.append("log", b"cached-1")
        disk.append("log", b"cached-2")
        disk.crash()
        kept = disk.read("log")
        assert kept[0] == b"synced"
        assert len(kept) <= 3
        torn = torn or any(record not in (b"synced", b"cached-1", b"cached-2") for record in kept)
    assert torn


def test_a_full_disk_refuses_and_changes_nothing() -> None:
    disk = Disk(World(1).chance("disk"), capacity_bytes=10)
    disk.append("log", b"12345678")
    with pytest.raises(OSError, match="space"):
        disk.append("log", b"9abc")
    assert disk.read("log") == [b"12345678"]


def test_a_virtual_loop_runs_coroutines_on_the_worlds_time() -> None:
    world = World(1)
    loop = VirtualLoop(world, "p")
    begun, seen = world.now, []

    async def main() -> None:
        await asyncio.sleep(3)
        seen.append(world.now - begun)
        async with asyncio.timeout(1):
            await asyncio.Event().wait()

    task = loop.start(main())
    world.run_until(world.now + 10)
    assert seen == [3.0]
    assert isinstance(task.exception(), TimeoutError)


def test_a_killed_process_runs_nothing_more_and_a_stopped_one_goes_on() -> None:
    world, seen = World(1), []

    async def count(name: str) -> None:
        try:
            for number in range(10):
                await asyncio.sleep(1)
                seen.append((name, number))
        finally:
            seen.append((name, "cleaned up"))

    killed, stopped = VirtualLoop(world, "k"), VirtualLoop(world, "s")
    tasks = [killed.start(count("k")), stopped.start(count("s"))]
    world.run_until(world.now + 2.5)
    killed.kill()
    stopped.stop()
    world.run_until(world.now + 20)
    assert [n for who, n in seen if who == "k"] == [0, 1]
    assert [n for who, n in seen if who == "s"] == [0, 1]
    stopped.resume()
    world.run_until(world.now + 20)
    assert seen[-1] == ("s", "cleaned up")
    assert tasks[1].done()
    killed.bury()
    assert tasks[0].cancelled()
