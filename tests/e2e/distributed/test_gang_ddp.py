"""PyTorch's DDP over two nodes, one of which is cut off: whoever waits inside of PyTorch is ended by the cluster."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from gang_ground import Gangs, alive, ranks_of

from clutch.testing import namespaces

pytestmark = pytest.mark.skipif(not namespaces.CAN, reason=namespaces.WHY_NOT)

EXAMPLE = Path(__file__).parents[3] / "examples" / "ddp" / "train.py"
END_WITHIN_S = 10.0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ddp_whose_node_is_cut_off_goes_on_when_it_is_back(tmp_path: Path) -> None:
    around = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "GLOO_SOCKET_IFNAME": "eth0"}
    with Gangs(tmp_path, 2, 2) as ground:
        hparams = {"steps": 150, "every": 20, "batch": 2}
        config = {
            "entrypoint": [sys.executable, str(EXAMPLE)],
            "launch": "torchrun",
            "environment": {"environment_variables": around},
            "max_restarts": 3,
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
        ground.cables[far].mend()
        gang.until(lambda: not any(alive(one.pid) for one in ranks), "nothing is left of the first run", 60)
        gang.ended(within_s=120)
        found, expected = gang.losses(), calm.losses()
        assert [step for step, _ in found] == [step for step, _ in expected], "each step counts once"
        # gloo adds in another order in the first step after a start, so that only the last digits differ
        assert [loss for _, loss in found] == pytest.approx([loss for _, loss in expected], rel=0.01)
        assert known_s < END_WITHIN_S
