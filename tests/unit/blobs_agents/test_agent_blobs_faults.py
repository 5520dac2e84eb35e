"""Nodes that die, lie, come back and lose their disks, under blobs on shelves."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from shelves_ground import (
    Dies,
    DiesAfterCommit,
    DiesWhileReading,
    Lead,
    Nodes,
    running,
    until,
)

from clutch.backends.blobs.shelf import place
from clutch.testing.blobs_ground import MIB, all_keys, noise, refused
from clutch.wire.errors import Conflict, NotFound, NotLeader, Unavailable


async def test_a_put_is_on_two_nodes_when_it_returns() -> None:
    nodes = Nodes("one", "two", "three")
    async with running(nodes) as blobs:
        for number in range(30):
            await blobs.put(f"k{number}", noise(number, 1_000))
            assert len(nodes.holders(f"k{number}")) == 2
        assert all(sum(name in nodes.holders(f"k{n}") for n in range(30)) > 5 for name in nodes.all)


async def test_too_few_nodes_are_said_and_waited_for() -> None:
    nodes = Nodes("one", "two", "three")
    nodes["two"].go()
    nodes["three"].go()
    async with running(nodes, wait_s=0.3) as blobs:
        for call in (blobs.put("k", b"x"), blobs.get("k"), blobs.delete("k"), all_keys(blobs)):
            assert "three, two" in (await refused(Unavailable, call)).next_step
        nodes["two"].come()
        await until(lambda: blobs.copies.standing().is_settled, "two nodes")
        await blobs.put("k", b"x")
        assert nodes.holders("k") == ["one", "two"]


async def test_no_node_at_all() -> None:
    async with running(Nodes(), wait_s=0.2) as blobs:
        await refused(NotFound, blobs.get("k"))
        assert await all_keys(blobs) == []
        assert (await refused(Unavailable, blobs.put("k", b"x"))).next_step == "Start an agent."


async def test_a_put_waits_for_a_node_that_comes() -> None:
    nodes = Nodes("one", "two")
    nodes["two"].go()
    async with running(nodes) as blobs:
        await until(lambda: blobs.copies.standing().here, "the first node")
        putting = asyncio.ensure_future(blobs.put("k", b"x"))
        done, _ = await asyncio.wait([putting], timeout=0.1)
        assert not done, "it returned with one copy"
        nodes["two"].come()
        blobs.nudge()
        await putting
        assert nodes.holders("k") == ["one", "two"]


async def test_a_node_that_dies_in_the_middle_of_a_stream_is_replaced() -> None:
    nodes = Nodes("one", "two", "three")
    for node in nodes.all.values():
        node.come(Dies)
    content = noise(1, 5 * MIB)
    victim = nodes.order("k")[0]

    async def stream() -> AsyncIterator[bytes]:
        for first in range(0, len(content), MIB):
            if first == 2 * MIB:
                nodes[victim].go()
            yield content[first : first + MIB]

    async with running(nodes) as blobs:
        await until(lambda: len(blobs.copies.standing().here) == 3, "all nodes")
        await blobs.put("k", stream())
        assert sorted(nodes.holders("k")) == sorted(set(nodes.all) - {victim})
        assert await blobs.get("k") == content


async def test_a_read_goes_on_with_the_other_copy() -> None:
    nodes = Nodes("one", "two")
    content = noise(1, 5 * MIB)
    async with running(nodes) as blobs:
        await blobs.put("k", content)
        nodes["one"].come(DiesWhileReading)
        await until(lambda: len(blobs.copies.standing().here) == 2, "the node again")
        DiesWhileReading.fired = 0
        for _ in range(4):
            assert await blobs.get("k") == content
        assert DiesWhileReading.fired >= 1, "the fault did not fire"


async def test_an_answer_that_was_lost_is_found_out() -> None:
    """Both nodes did it and neither could say so: what is stored is the new version, and it is found."""
    nodes = Nodes("one", "two")
    DiesAfterCommit.fired = 0
    async with running(nodes, wait_s=5.0) as blobs:
        await blobs.put("k", b"before")
        for node in nodes.all.values():
            node.come(DiesAfterCommit)
        await until(lambda: len(blobs.copies.standing().here) == 2, "both nodes again")
        await refused(Unavailable, blobs.put("k", b"after"))
        assert DiesAfterCommit.fired == 2
        assert await blobs.get("k") == b"after"
        await refused(Conflict, blobs.put("k", b"x", create=True))


async def test_damage_of_one_copy_is_noticed_and_mended() -> None:
    nodes = Nodes("one", "two", "three")
    for size in (5_000, 4 * MIB):
        async with running(nodes) as blobs:
            content = noise(1, size)
            await blobs.put("k", content)
            name = nodes.holders("k")[0]
            nodes[name].disk.damage(place("k"))
            for _ in range(4):
                assert await blobs.get("k", 0, 10) == content[:10]
                assert await blobs.get("k") == content
            entry = blobs.copies.catalogue.newest("k")
            assert entry is not None
            await until(lambda: not blobs.copies.damaged, "nothing damaged")
            shelf = nodes[name].shelf
            assert shelf is not None
            await shelf.verify(entry)
            await blobs.delete("k")


async def test_damage_that_nobody_reads_is_found_by_reading_through() -> None:
    nodes = Nodes("one", "two")
    async with running(nodes) as blobs:
        await blobs.put("k", noise(1, 5_000))
        await until(lambda: blobs.copies.fewest == 2, "a first look")
        nodes["one"].disk.damage(place("k"))
        damaged = nodes["one"].disk.find(place("k"))[1]
        await until(lambda: nodes["one"].disk.find(place("k"))[1] != damaged, "it is mended")


async def test_a_lost_node_is_replaced_and_gives_up_its_surplus_when_it_returns() -> None:
    nodes = Nodes("one", "two", "three")
    async with running(nodes) as blobs:
        keys = [f"k{n}" for n in range(20)]
        for key in keys:
            await blobs.put(key, noise(1, 2_000))
        nodes["one"].go()
        blobs.nudge()
        await until(lambda: "one" in blobs.copies.standing().away, "it is away")
        assert [len(await blobs.get(key)) for key in keys] == [2_000] * 20
        nodes["one"].expected = False
        await until(lambda: all(nodes["two"].has(key) and nodes["three"].has(key) for key in keys), "two copies")
        nodes["one"].expected = True
        nodes["one"].come()
        await until(lambda: all(len(nodes.holders(key)) == 2 for key in keys), "no third copy")
        assert [len(await blobs.get(key)) for key in keys] == [2_000] * 20


async def test_a_node_that_is_only_away_makes_no_copies() -> None:
    nodes = Nodes("one", "two", "three")
    async with running(nodes) as blobs:
        await blobs.put("k", b"x")
        first = nodes.holders("k")
        nodes[first[0]].go()
        await until(lambda: first[0] in blobs.copies.standing().away, "it is away")
        await blobs.put("other", b"x")  # what was to be mended before this, was
        nodes[first[0]].come()
        await until(lambda: len(blobs.copies.standing().here) == 3, "it is back")
        assert nodes.holders("k") == first


async def test_a_shelf_that_lost_its_disk_gets_its_copies_back() -> None:
    nodes = Nodes("one", "two")
    async with running(nodes) as blobs:
        await blobs.put("k", b"x")
        nodes["one"].go()
        nodes["one"].lose_its_disk()
        nodes["one"].come()
        await until(lambda: nodes["one"].has("k"), "a second copy")
        assert await blobs.get("k") == b"x"


async def test_one_node_keeps_one_copy_and_a_second_one_gets_another() -> None:
    nodes = Nodes("one")
    async with running(nodes) as blobs:
        await blobs.put("k", b"x")
        await until(lambda: blobs.copies.fewest == 1, "it is known")
        more = Nodes("two")
        nodes.all["two"] = more["two"]
        await until(lambda: nodes["two"].has("k") and blobs.copies.fewest == 2, "a second copy")


async def test_what_was_deleted_or_replaced_does_not_come_back_with_a_node_that_was_away() -> None:
    nodes = Nodes("one", "two", "three")
    async with running(nodes) as blobs:
        await blobs.put("gone", b"x")
        await blobs.put("new", b"old")
        name = nodes.holders("gone")[0]
        nodes[name].go()
        await blobs.delete("gone")
        await blobs.put("new", b"new")
        nodes[name].come()
        await until(lambda: len(blobs.copies.standing().here) == 3, "it is back")
        await refused(NotFound, blobs.get("gone"))
        assert await blobs.get("new") == b"new"
        assert await all_keys(blobs) == ["new"]
    async with running(nodes) as again:  # another master, which has only what the shelves say
        await refused(NotFound, again.get("gone"))
        assert await again.get("new") == b"new"


async def test_the_next_master_finds_everything_and_goes_on_above() -> None:
    nodes, lead = Nodes("one", "two", "three"), Lead()
    async with running(nodes, lead) as blobs:
        for number in range(20):
            await blobs.put(f"k{number}", b"%d" % number)
        lead.is_ours = False
        await refused(NotLeader, blobs.put("k0", b"deposed"))
        await refused(NotLeader, blobs.delete("k1"))
    lead = Lead()
    lead.term = 2
    nodes["two"].go()
    async with running(nodes, lead) as blobs:
        assert [await blobs.get(f"k{number}") for number in range(2, 20)] == [b"%d" % n for n in range(2, 20)]
        nodes["two"].come()
        await blobs.put("k0", b"after")
        assert await blobs.get("k0") == b"after"
        entry = blobs.copies.catalogue.newest("k0")
        assert entry is not None and entry.stamp > 2 << 32


async def test_a_cancelled_put_is_done_or_not_done() -> None:
    nodes = Nodes("one", "two")
    async with running(nodes) as blobs:
        await blobs.put("k", b"0")
        for number in range(1, 40):
            putting = asyncio.ensure_future(blobs.put("k", b"%d" % number))
            for _ in range(number):
                await asyncio.sleep(0)
            putting.cancel()
            await asyncio.gather(putting, return_exceptions=True)
            assert int(await blobs.get("k")) <= number
        await blobs.put("k", b"last")
        assert await blobs.get("k") == b"last"


@pytest.mark.parametrize("count", [2, 3])
async def test_copies_are_on_different_nodes_however_names_are(count: int) -> None:
    nodes = Nodes(*(f"node-{n}" for n in range(count)))
    async with running(nodes) as blobs:
        await asyncio.gather(*(blobs.put(f"k{n}", b"x") for n in range(50)))
        assert all(len(nodes.holders(f"k{n}")) == 2 for n in range(50))
