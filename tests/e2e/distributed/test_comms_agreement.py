"""Agreement between real processes: all ranks stop at the same call, whoever is asked, whenever."""

import pytest
from comms_ground import play


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [[2, 2], [16]], ids=["4", "16"])
def test_a_hundred_times_all_ranks_stop_at_the_same_call(nodes: list[int]) -> None:
    first, *others = play(nodes, "agree_often", rounds=100)
    assert len(first) == 100
    assert all(other == first for other in others)


@pytest.mark.parametrize("asker", [0, 3])
def test_slow_steps_stop_soon_and_never_wait(asker: int) -> None:
    found = play([2, 2], "agree", after=0.3, asker=asker, pace_s=0.05)
    assert len({one["calls"] for one in found}) == 1
    assert found[0]["calls"] <= 0.3 / 0.05 + 6
