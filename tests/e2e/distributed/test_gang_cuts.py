"""Gangs that lose a node, or each other, or a rank by its own fault: what is free, what counts, and what is said."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gang_ground import Begun, Gang, Gangs, alive

from clutch.testing import namespaces
from clutch.testing.bars import within

cuts_cables = pytest.mark.skipif(not namespaces.CAN, reason=namespaces.WHY_NOT)

END_WITHIN_S = within(5.0)
HPARAMS = {"steps": 60, "every": 5, "pace_s": 0.02, "shard": True}


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gangs]:
    with Gangs(tmp_path_factory.mktemp("gangs"), 2, 2, cables=False) as made:
        yield made


def training(ground: Gangs, gate: Path, **hparams: object) -> tuple[Gang, list[Begun]]:
    """A gang that may fail by itself not once, in the middle of its training."""
    gang = ground.start({**HPARAMS, "gate": str(gate), **hparams}, max_restarts=0)
    ranks = gang.begun(1)
    gang.until(lambda: gang.trial.checkpoint, "a checkpoint")
    return gang, ranks


def cut(gang: Gang, node: str, ranks: list[Begun]) -> float:
    """How long the ranks that can be reached go on."""
    gang.ground.cables[node].cut()
    at = time.monotonic()
    near = [one for one in ranks if one.node != node]
    gang.until(lambda: not any(alive(one.pid) for one in near), "the ranks that can be reached have ended", 30)
    return time.monotonic() - at


@cuts_cables
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("node", ["n0", "n1"], ids=["with the chief", "without the chief"])
def test_a_lost_node_costs_no_restart_though_the_others_end_before_it_is_lost(tmp_path: Path, node: str) -> None:
    with Gangs(tmp_path, 2, 2, lost_after_s=9.0) as ground:
        gang, ranks = training(ground, gate := tmp_path / "gate")
        gone_s = cut(gang, node, ranks)
        why = gang.until(lambda: said if "given up in" in (said := gang.why()) else "", "it says what it waits for")
        over = gang.over(1)
        print(f"{node}: ranks gone {gone_s:.2f} s\n{why}\n{over.exit}: {over.detail}")
        assert f"It waits for what ran on {node} (given up in" in why and "open whether this counts" in why
        assert over.exit == "infrastructure" and f"node {node} is lost" in over.detail, gang.story()
        ground.cables[node].mend()
        gate.touch()
        gang.ended()
        assert gang.trial.restarts == 0
        assert gone_s < END_WITHIN_S


@cuts_cables
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_network_that_fails_for_a_moment_is_free(tmp_path: Path) -> None:
    """No node is lost and no rank has failed: both sides of the cut say that they lost the other."""
    with Gangs(tmp_path, 2, 2, lost_after_s=60.0) as ground:
        gang, ranks = training(ground, gate := tmp_path / "gate")
        cut(gang, "n1", ranks)
        gang.until(lambda: not any(alive(one.pid) for one in ranks), "the others have ended as well")
        ground.cables["n1"].mend()
        over = gang.over(1)
        print(f"{over.exit}: {over.detail}")
        assert over.exit == "infrastructure" and "no rank failed and no node was lost" in over.detail, gang.story()
        assert "time 1 of 3" in over.detail
        gate.touch()
        gang.ended()
        assert gang.trial.restarts == 0


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("rank", "lingers_s"), [(0, 0.0), (3, 0.0), (3, 30.0)], ids=["rank 0", "rank 3", "rank 3, which ends slowly"]
)
def test_a_rank_that_fails_is_the_reason_and_counts(ground: Gangs, rank: int, lingers_s: float) -> None:
    """Whoever else ends because of it, whichever end is heard of first, and though it is ended before it has exited."""
    gang = ground.start({"steps": 6, "every": 2, "fails": rank, "lingers": lingers_s}, max_restarts=1)
    over = gang.over(1)
    said = rf"main\.{rank // 2} exited with code 1 \(own\): rank {rank} (failed|exited with code 1)\b.*told to fail"
    assert over.exit == "failed" and re.search(said, over.detail), gang.story()
    gang.ended()
    assert gang.trial.restarts == 1


@cuts_cables
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_program_that_handles_the_loss_has_its_time(tmp_path: Path) -> None:
    """The master ends it only when another member is gone; here all of them stay for a while."""
    with Gangs(tmp_path, 2, 2, lost_after_s=60.0) as ground:
        gang, ranks = training(ground, gate := tmp_path / "gate", alone=3.0)
        gone_s = cut(gang, "n1", ranks)
        assert gone_s > 3.0
        marks = gang.until(lambda: sorted(gang.marks.glob("1.[01].alone")), "they went on alone")
        assert len(marks) >= 1
        ground.cables["n1"].mend()
        gate.touch()
        gang.ended()
        assert gang.trial.restarts == 0
