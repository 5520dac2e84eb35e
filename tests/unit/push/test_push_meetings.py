"""Meetings whose members change, rosters from what was announced, and bells that wake whom they concern."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clutch.core.barriers import Kind, convene, join
from clutch.master.push.bells import Bells
from clutch.master.push.meetings import round_name, seated
from clutch.master.push.roster import check_announce, local_ranks
from clutch.master.push.service import meeting_s, poll_s
from clutch.runtime.launch.plain import Plain
from clutch.runtime.rendezvous import chief_address
from clutch.wire.errors import BadRequest, Unavailable
from clutch.wire.ids import Fence, NodeId
from clutch.wire.push import Announce, Peer, Roster

SEATS = (("main", 0), ("main", 1))
FENCE = Fence(0, 1, 1)


def opened(kind: Kind) -> Any:
    barrier = convene("m", kind, SEATS, 0.0, 60.0)
    for seat in SEATS:
        barrier, _ = join(barrier, seat, FENCE, b"x", str(seat))
    return barrier


def test_a_meeting_follows_its_members() -> None:
    barrier = opened(Kind.RENDEZVOUS)
    assert seated(barrier, SEATS) is barrier
    grown = seated(barrier, (*SEATS, ("main", 2)))
    assert not grown.is_open and grown.missing == (("main", 2),)
    shrunk = seated(barrier, SEATS[:1])
    assert shrunk.is_open and shrunk.version == barrier.version + 1
    swapped = seated(barrier, (SEATS[0], ("other", 0)))
    assert not swapped.is_open and swapped.missing == (("other", 0),)
    done = opened(Kind.ALL_GATHER)
    assert seated(done, SEATS[:1]) is done, "a complete round is history"


def test_rounds_count_from_one() -> None:
    assert round_name(1) == "round-1"
    for number in (0, -1, 2**60):
        with pytest.raises(BadRequest):
            round_name(number)


def test_waits_are_bounded() -> None:
    assert (poll_s(5.0), poll_s(1e6)) == (5.0, 60.0)
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(BadRequest):
            poll_s(wrong)
        with pytest.raises(BadRequest):
            meeting_s(wrong)


def test_local_ranks_count_on_each_node() -> None:
    nodes = [NodeId(name) for name in ("a", "b", "a", "", "b")]
    assert local_ranks(nodes) == ([0, 0, 1, 0, 1], {"a": 2, "b": 2, "": 1})


@pytest.mark.parametrize("address", ["10.0.0.1", "host.example", "fe80::1%eth0", "::1", "::", "a"])
def test_addresses_that_can_be(address: str) -> None:
    check_announce(Announce(addresses=(address,)))


def peer(rank: int, node: str, address: str) -> Peer:
    return Peer(rank=rank, role="main", role_rank=rank, node=node, addresses=(address,), ports=(4000 + rank,))


def test_the_plain_launcher_says_who_the_peers_are() -> None:
    peers = (peer(0, "n1", "10.0.0.1"), peer(1, "n2", "10.0.0.2"))
    roster = Roster(ready=True, rank=1, size=2, local_rank=0, local_size=1, peers=peers)
    launch = Plain().launch(("train", "--x"), {"PATH": "/bin"}, roster)
    assert launch.argv == ("train", "--x") and launch.environment["PATH"] == "/bin"
    wanted = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4000"}
    assert wanted.items() <= launch.environment.items()
    assert Plain().launch(("x",), {}, None).environment == {}


def test_members_of_one_machine_meet_on_its_loopback() -> None:
    same = Roster(ready=True, rank=0, size=2, peers=(peer(0, "n1", "10.0.0.1"), peer(1, "n1", "10.0.0.1")))
    boxed = Roster(ready=True, rank=0, size=2, peers=(peer(0, "n1", "172.17.0.2"), peer(1, "n1", "172.17.0.3")))
    assert chief_address(same) == "127.0.0.1" and chief_address(boxed) == "172.17.0.2"


async def test_a_bell_wakes_those_it_concerns() -> None:
    bells = Bells(waiters_max=3)
    heard: list[str] = []

    async def wait(topic: str, timeout_s: float) -> None:
        await bells.wait(topic, timeout_s)
        heard.append(topic)

    tasks = [asyncio.create_task(wait(topic, 60.0)) for topic in ("a", "a", "b")]
    await asyncio.sleep(0)
    assert bells.count == 3
    with pytest.raises(Unavailable):
        await bells.wait("c", 1.0)
    bells.ring("nobody")
    bells.ring("a")
    await asyncio.gather(*tasks[:2])
    assert heard == ["a", "a"] and bells.count == 1
    await wait("b", 0.01)
    bells.close()
    with pytest.raises(Unavailable):
        await tasks[2]
    with pytest.raises(Unavailable):
        await bells.wait("a", 1.0)
    assert bells.count == 0 and not bells._waiting
