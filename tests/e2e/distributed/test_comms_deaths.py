"""Ranks that die, stop, stay away, leave, or are somewhere else: every other rank hears which, in time."""

import random
import signal
from functools import partial

import pytest
from comms_ground import at_once, house, hurt, play

from clutch.testing.bars import within

WITHIN_S = within(3.0)
AT_ONCE_S = within(0.5)
SHAPES = [[4], [2, 2], [1, 1, 1], [5], [3, 1], [1, 2, 1, 2]]
QUICK_SEEDS = (0, 1, 3, 5, 7, 14, 17, 20, 26)
"""Every shape, the chief and others, messages of every size."""
SEEDS = [seed if seed in QUICK_SEEDS else pytest.param(seed, marks=pytest.mark.slow) for seed in range(30)]


def kill(seed: int) -> tuple[list[int], int, float, int]:
    chance = random.Random(seed)
    nodes = chance.choice(SHAPES)
    return nodes, chance.randrange(sum(nodes)), chance.random() * 0.3, chance.choice([0, 0, 50_000, 300_000])


@pytest.mark.parametrize("seed", SEEDS)
def test_who_is_killed_is_named_by_all_the_others_in_time(seed: int) -> None:
    nodes, victim, after, size = kill(seed)
    ranks, hurt_at = hurt(nodes, "busy", [[after, victim, int(signal.SIGKILL)]], size=size)
    assert set(hurt_at) == {victim}
    assert "silent" in ranks[victim]
    for one in ranks[:victim] + ranks[victim + 1 :]:
        assert (one.get("error"), one.get("ranks")) == ("peer_lost", [victim]), f"{nodes} {one}"
        assert f"rank {victim}" in one["said"]
        assert one["at"] - hurt_at[victim] < WITHIN_S


def test_who_is_stopped_is_named_by_all_the_others_in_time() -> None:
    def stop(nodes: list[int], victim: int) -> None:
        ranks, hurt_at = hurt(nodes, "busy", [[0.1, victim, int(signal.SIGSTOP)]])
        for one in ranks[:victim] + ranks[victim + 1 :]:
            assert (one.get("error"), one.get("ranks")) == ("peer_lost", [victim]), one
            assert one["at"] - hurt_at[victim] < WITHIN_S

    at_once([lambda: stop([3], 1), lambda: stop([2, 2], 2), lambda: stop([1, 1, 1], 0)])


@pytest.mark.parametrize("victim", [0, 3])
def test_a_death_while_nobody_speaks_fails_the_next_call_at_once(victim: int) -> None:
    ranks, _ = hurt([2, 2], "idle", [[0.1, victim, int(signal.SIGKILL)]], seconds=1.0)
    for one in ranks[:victim] + ranks[victim + 1 :]:
        assert one["result"]["ranks"] == [victim]
        assert one["result"]["took_s"] < AT_ONCE_S


def test_who_stays_away_is_named_when_the_time_is_over() -> None:
    shapes = ([4], [2, 2], [1, 1, 1, 1])
    for ranks in at_once([partial(play, nodes, "late", who=[1, 3], seconds=3.0) for nodes in shapes]):
        for rank, one in enumerate(ranks):
            assert one["code"] == "timed_out", one
            assert "2 ranks (1, 3) did not come to allgather() #3 within 1 s" in one["said"]
            assert one["took_s"] < (WITHIN_S if rank in (0, 2) else AT_ONCE_S)


@pytest.mark.parametrize("who", [0, 1, 3])
def test_who_leaves_is_missed_only_in_calls_after_its_last(who: int) -> None:
    with house([2, 2], "leaves", options={"who": who}) as ranks:
        found, _ = ranks.finish()
    assert found[who]["result"] == "left"
    for one in found[:who] + found[who + 1 :]:
        assert (one.get("error"), one.get("ranks")) == ("peer_lost", [who])
        assert f"rank {who}: it closed its group before allgather() #3" in one["said"]


GATHERS = ("rank 0 is in barrier() #5 while rank 2 is in gather() #5", "while rank 2 is in barrier() #6")
"""Who gathers and is not the root has sent its share and gone on: the others may see it there first."""
MIXED = [
    ([3], [["barrier"], ["barrier"], ["gather", 1]], GATHERS),
    ([1, 1, 1], [["barrier"], ["barrier"], ["gather", 1]], GATHERS),
    (
        [1, 1, 1],
        [["broadcast", 1, 2], ["broadcast", 1, 2], ["broadcast", 1, 1]],
        "is in broadcast(root=2) #5 while rank 2 is in broadcast(root=1) #5",
    ),
    ([2, 1], [["broadcast", 1, 0], ["broadcast", 1, 1], ["broadcast", 1, 0]], "broadcast(root=1) #5"),
    ([4], [["allreduce", 1, "sum"]] * 3 + [["allreduce", 1, "max"]], "allreduce(sum) #5 while rank 3 is in"),
    ([2], [["barrier"], ["barrier_local"]], "rank 0 is in barrier() #5 while rank 1 is in barrier_local() #1"),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "calls", "named"), MIXED)
def test_ranks_in_different_calls_are_named_with_both_calls(
    nodes: list[int], calls: list[object], named: str | tuple[str, ...]
) -> None:
    with house(nodes, "mixed", options={"calls": calls}) as ranks:
        found, _ = ranks.finish()
    for one in found:
        assert one.get("error") == "conflict", one
        assert any(words in one["said"] for words in ((named,) if isinstance(named, str) else named)), one


def test_groups_on_one_machine_do_not_disturb_each_other() -> None:
    found = at_once([partial(play, [2, 1], "every_collective")] * 3)
    assert [len(ranks) for ranks in found] == [3] * 3
