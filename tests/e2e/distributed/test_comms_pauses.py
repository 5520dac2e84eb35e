"""Pauses that are no deaths: of one rank, of all, of a thread, of the network. And a cut that is one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from comms_ground import at_once, house

from clutch.testing import namespaces
from clutch.testing.bars import within

STOP, GO_ON = int(signal.SIGSTOP), int(signal.SIGCONT)
QUICK = {"heartbeat_s": 0.15, "dead_after_s": 0.8}
"""All limits a third of what they are, so that a long pause is a short test."""
WITHIN_S = within(3.0)
cuts_cables = pytest.mark.skipif(not namespaces.CAN, reason=namespaces.WHY_NOT)


def went_on(nodes: list[int], story: str, wounds: list[list[Any]], **orders: Any) -> None:
    """All ranks lived through it and saw the same."""
    with house(nodes, story, hurt=wounds, **orders) as ranks:
        found, hurt_at = ranks.finish()
    assert set(hurt_at) == {wound[1] for wound in wounds}
    assert all("result" in one for one in found), found
    assert len({str(one["result"]) for one in found}) == 1


def test_who_stops_for_a_second_is_waited_for() -> None:
    def stop(nodes: list[int], victim: int) -> None:
        wounds = [[0.2, victim, STOP], [1.2, victim, GO_ON]]
        went_on(nodes, "goes_on", wounds, options={"seconds": 1.6, "size": 30_000})

    at_once([lambda: stop([1, 1], 0), lambda: stop([2, 2], 2), lambda: stop([3], 1)])


def all_stop(size: int, for_s: float) -> list[list[Any]]:
    """They neither stop nor go on at quite the same moment."""
    return [[0.2 + 0.01 * rank, rank, STOP] for rank in range(size)] + [
        [0.2 + for_s + 0.05 * rank, rank, GO_ON] for rank in range(size)
    ]


def test_nobody_is_called_dead_when_all_were_stopped() -> None:
    def stop(nodes: list[int]) -> None:
        wounds = all_stop(sum(nodes), 1.6)
        went_on(nodes, "goes_on", wounds, options={"seconds": 2.2, "size": 30_000}, meeting=QUICK)

    at_once([lambda: stop([2]), lambda: stop([1, 1]), lambda: stop([2, 2])])


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [[2], [2, 2]])
@pytest.mark.parametrize("for_s", [2.0, 2.4, 4.0])
def test_nobody_is_called_dead_when_the_machine_stood_still(nodes: list[int], for_s: float) -> None:
    went_on(nodes, "goes_on", all_stop(sum(nodes), for_s), options={"seconds": for_s + 1.0, "size": 30_000})


def test_a_rank_whose_program_lets_no_thread_run_is_alive() -> None:
    """As compiled code does that keeps the interpreter's lock."""

    def hold(who: int) -> None:
        went_on([2, 1], "holds_on", [], options={"who": who, "seconds": 1.6}, meeting=QUICK)

    at_once([lambda: hold(0), lambda: hold(2)])


@pytest.fixture
def cable() -> Iterator[namespaces.Namespace]:
    with namespaces.namespace(60) as made:
        yield made


def apart(cable: namespaces.Namespace) -> dict[str, Any]:
    return {"namespace": cable.name, "cable": cable.cable, "meeting": {"address": cable.outside}}


@cuts_cables
def test_a_network_that_is_gone_for_a_second_is_waited_for(cable: namespaces.Namespace) -> None:
    wounds = [[0.2, 2, "down"], [1.2, 2, "up"]]
    went_on([2, 2], "goes_on", wounds, options={"seconds": 1.6, "size": 30_000}, **apart(cable))


@cuts_cables
@pytest.mark.parametrize("size", [0, 300_000])
def test_who_is_cut_off_is_named_on_both_sides_in_time(cable: namespaces.Namespace, size: int) -> None:
    wounds = [[0.2, 2, "down"]]
    with house([2, 2], "busy", hurt=wounds, options={"size": size}, **apart(cable)) as ranks:
        found, hurt_at = ranks.finish()
    for rank, one in enumerate(found):
        assert one.get("error") == "peer_lost", one
        assert one["ranks"] in ([[2], [3]] if rank < 2 else [[0]]), one
        assert "nothing was heard of it for" in one["said"]
        assert one["at"] - hurt_at[2] < WITHIN_S
    assert found[0]["ranks"] == found[1]["ranks"], "one story on each side"
