"""PyTorch's DDP over two nodes, one of which is cut off: whoever waits inside of PyTorch is ended in it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from gang_ground import Gangs, alive, ranks_of

from clutch.testing import namespaces
from clutch.testing.bars import within

pytestmark = pytest.mark.skipif(not namespaces.CAN, reason=namespaces.WHY_NOT)

EXAMPLE = Path(__file__).parents[3] / "examples" / "ddp" / "train.py"
END_WITHIN_S = within(5.0)
LOST_AFTER_S = 20.0
"""Long after the ranks must have ended: it is not the master that ends them."""

INSIDE = """
import os, sys, time, torch
import torch.distributed as dist
import clutch

dist.init_process_group("gloo")
with clutch.init(distributed="torch") as run:
    begun = run.restore()
    if begun is None and run.rank == 0:
        with run.checkpoint(1) as folder:
            (folder / "begun").write_text("yes")
    run.distributed.barrier()
    print(f"rank {run.rank} adds up", flush=True)
    while begun is None:  # the first time until somebody is lost
        dist.all_reduce(torch.ones(100))
        time.sleep(0.001)
    run.validate(2, loss=0.0, all_ranks=True)
print(f"rank {run.rank} is through", flush=True)
"""
"""Ranks that are in gloo all the time, and never in a call of ours."""


def around() -> dict[str, str]:
    return {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "GLOO_SOCKET_IFNAME": "eth0"}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("launch", ["ranks", "torchrun"])
@pytest.mark.parametrize("far", ["n0", "n1"], ids=["with the chief", "without the chief"])
def test_ranks_inside_of_gloo_are_ended_when_a_node_is_cut_off(tmp_path: Path, launch: str, far: str) -> None:
    program = tmp_path / "inside.py"
    program.write_text(INSIDE)
    with Gangs(tmp_path, 2, 2, lost_after_s=LOST_AFTER_S) as ground:
        gang = ground.start(
            {},
            entrypoint=[sys.executable, str(program)],
            launch=launch,
            environment={"environment_variables": around()},
            max_restarts=0,
        )
        gang.until(lambda: sum("adds up" in line for line in gang.output()) == 4, "all ranks are in gloo", 120)
        ranks = ranks_of(gang.task, "inside.py")
        assert [one.rank for one in ranks] == [0, 1, 2, 3]
        ground.cables[far].cut()
        at = time.monotonic()
        near = [one for one in ranks if one.node != far]
        gang.until(lambda: not any(alive(one.pid) for one in near), "ranks that can be reached have ended", 60)
        gone_s = time.monotonic() - at
        over = gang.over(1)
        print(f"gloo by {launch} without {far}: ranks gone {gone_s:.2f} s: {over.exit}: {over.detail}")
        said = "\n".join(gang.output())
        assert "it has not left within 1 s, so it is ended" in said, gang.story()
        assert "all_reduce" in said, "where it was"
        assert f"node {far} is lost" in over.detail and over.exit == "infrastructure", gang.story()
        ground.cables[far].mend()
        gang.until(lambda: not any(alive(one.pid) for one in ranks), "nothing is left of the first run", 60)
        gang.ended(within_s=120)
        assert gang.trial.restarts == 0
        assert gone_s < END_WITHIN_S


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ddp_whose_node_is_cut_off_goes_on_when_it_is_back(tmp_path: Path) -> None:
    with Gangs(tmp_path, 2, 2, lost_after_s=LOST_AFTER_S) as ground:
        hparams = {"steps": 150, "every": 20, "batch": 2}
        config = {
            "entrypoint": [sys.executable, str(EXAMPLE)],
            "launch": "torchrun",
            "environment": {"environment_variables": around()},
            "max_restarts": 0,
        }
        calm = ground.start(hparams, **config)
        calm.ended(within_s=120)
        gang = ground.start(hparams, **config)
        gang.until(lambda: gang.trial.checkpoint, "a checkpoint", 120)
        ranks = ranks_of(gang.task, "train.py")
        assert [one.rank for one in ranks] == [0, 1, 2, 3]
        far = ranks[3].node
        ground.cables[far].cut()
        at = time.monotonic()
        near = [one for one in ranks if one.node != far]
        gang.until(lambda: not any(alive(one.pid) for one in near), "ranks that can be reached have ended", 60)
        gone_s = time.monotonic() - at
        over = gang.over(1)
        known_s = time.monotonic() - at
        print(f"ddp: ranks gone {gone_s:.2f} s, known {known_s:.2f} s: {over.detail}")
        assert f"node {far} is lost" in over.detail and over.exit == "infrastructure"
        ground.cables[far].mend()
        gang.until(lambda: not any(alive(one.pid) for one in ranks), "nothing is left of the first run", 60)
        gang.ended(within_s=120)
        found, expected = gang.losses(), calm.losses()
        assert [step for step, _ in found] == [step for step, _ in expected], "each step counts once"
        # gloo adds in another order in the first step after a start, so that only the last digits differ
        assert [loss for _, loss in found] == pytest.approx([loss for _, loss in expected], rel=0.01)
        assert gang.trial.restarts == 0
        assert gone_s < END_WITHIN_S
