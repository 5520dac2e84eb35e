"""Gangs that are asked to leave: every rank at the same step, with one checkpoint, and the slots are free at once."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from gang_ground import Gangs

from clutch.testing import namespaces
from clutch.testing.bars import within
from clutch.testing.cluster import until

pytestmark = pytest.mark.skipif(not namespaces.CAN, reason=namespaces.WHY_NOT)

FREE_WITHIN_S = within(1.0)
STEPS = 100_000


def leaves(ground: Gangs, times: int, seed: int) -> None:
    """One gang is paused so often, at random moments of its life, and goes on each time where it had left."""
    chance = random.Random(seed)
    gang = ground.start({"steps": STEPS, "every": 50, "pace_s": 0.003, "shard": True}, seed=seed)
    epoch, saved, steps, free = 1, 0, [], []
    for _ in range(times):
        begun = gang.begun(epoch)
        assert {one.step for one in begun} == {saved}, "all go on where all had left"
        time.sleep(chance.random() * 0.3)  # the moment is the point; nothing is waited for
        gang.move("pause")
        left = gang.left(epoch)
        assert len({one.step for one in left}) == 1, f"ranks left at different steps: {left}"
        assert not any(one.whole for one in left)
        until(lambda: ground.held() == 0, "the slots are free")
        free.append(time.time() - max(one.at for one in left))
        saved = left[0].step
        assert gang.trial.checkpoint_step == saved, f"no checkpoint of step {saved}\n{gang.story()}"
        steps.append(saved - begun[0].step)
        gang.move("resume")
        epoch = gang.next_epoch(epoch, 60)
    print(f"{times} of {times} times all {gang.size} ranks left at the same step, {min(steps)} to {max(steps)} on; "
          f"slots free {sorted(free)[len(free) // 2]:.2f} s after, at most {max(free):.2f} s")  # fmt: skip
    assert len(set(steps)) > 1, "the moments were not random"
    assert gang.trial.restarts == 0, "to leave is not to fail"
    gang.move("cancel")
    gang.ended("cancelled")
    # a machine that does much else may be late now and then
    assert sorted(free)[len(free) * 3 // 4] < FREE_WITHIN_S, sorted(free)


@pytest.mark.timeout(120)
def test_all_ranks_leave_at_the_same_step(tmp_path: Path) -> None:
    with Gangs(tmp_path, 2, 2) as ground:
        leaves(ground, 3, seed=31)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_all_ranks_leave_at_the_same_step_a_hundred_times(tmp_path: Path) -> None:
    with Gangs(tmp_path, 2, 2) as ground:
        leaves(ground, 100, seed=32)
