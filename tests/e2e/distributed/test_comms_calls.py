"""Every call between real processes, in many shapes: alone, on one node, on several, uneven, small and large."""

from typing import Any

import pytest
from comms_ground import play

SHAPES = [[1], [2], [1, 1], [2, 1], [1, 1, 1], [4, 1, 3, 1], [9], [1] * 9, [1] * 17 + [2]]
MORE_SHAPES = [[3], [16], [5, 1, 7, 3]]


@pytest.mark.parametrize(
    "nodes",
    [*SHAPES, *(pytest.param(nodes, marks=pytest.mark.slow) for nodes in MORE_SHAPES)],
    ids=lambda nodes: "-".join(map(str, nodes)),
)
def test_every_call_gives_what_it_promises(nodes: list[int]) -> None:
    size = sum(nodes)
    ranks = list(range(size))
    homes = [node for node, count in enumerate(nodes) for _ in range(count)]
    for me, seen in enumerate(play(nodes, "every_collective", large=20_000)):
        mine = [rank for rank in ranks if homes[rank] == homes[me]]
        assert seen["where"] == [mine.index(me), len(mine), homes[me], len(nodes)]
        everybody: Any = [{"rank": rank, "pair": [rank, None]} for rank in ranks]
        assert seen["gather"] == (everybody if me == 0 else None)
        assert seen["allgather"] == [[rank, "x" * rank] for rank in ranks]
        assert seen["broadcast"] == [["root", root] for root in {0, size - 1, (size - 1) // 2}]
        assert seen["reduce"] == ({"loss": float(sum(ranks))} if me == 0 else None)
        assert seen["allreduce"] == [sum(ranks) + size, size, 1, (sum(ranks) + size) / size]
        assert seen["allreduce own"] == [rank * 2 for rank in ranks]
        assert seen["gather_local"] == (mine if me == mine[0] else None)
        assert seen["allgather_local"] == mine
        assert seen["broadcast_local"] == mine[-1]
        assert seen["reduce_local"] == (mine[-1] if me == mine[0] else None)
        assert seen["allreduce_local"] == sum(mine)
        assert seen["large"] == [size, size]


def test_tensors_travel_as_tensors() -> None:
    assert play([2, 1], "torch_values") == [[[0.0, 1.0, 2.0], 19999.0]] * 3


def test_a_reducers_mistake_is_everybodys_error_and_the_group_goes_on() -> None:
    first, *others = play([2, 2], "reducer_fails")
    assert first == ["own no such thing", 4]
    assert others == [["reducer on rank 0: ValueError: no such thing.", 4]] * 3


@pytest.mark.slow
def test_a_gigabyte_travels() -> None:
    assert play([2, 1], "giant", size=1 << 30) == [[1 << 30, 1024, 1]] * 3


def test_a_fork_cannot_speak_for_its_rank() -> None:
    for me, (said, everybody) in enumerate(play([2, 1], "forked")):
        assert f"group of rank {me}: it belongs to process" in said
        assert everybody == [0, 1, 2]
