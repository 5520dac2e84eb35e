"""Whole clusters from seeds: every promise holds, every planned fault fires, the same seed gives the same history."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from clutch.testing.sim.cluster import Cluster
from clutch.testing.sim.plan import FaultKind, make_plan
from clutch.testing.sim.run import Outcome, live, run, run_plan, tell
from clutch.wire.errors import NotFound
from clutch.wire.facts import FACTS

BLOCKS = [range(first, first + 15) for first in range(0, 120, 15)]


def _explain(outcome: Outcome) -> str:
    return "\n".join([f"seed {outcome.seed}: {outcome.broken}", *outcome.story])


@pytest.mark.parametrize("seeds", BLOCKS, ids=lambda block: f"{block[0]}-{block[-1]}")
def test_every_promise_holds_under_faults(seeds: range) -> None:
    for seed in seeds:
        outcome = run(seed)
        assert not outcome.broken, _explain(outcome)
        assert outcome.checks > 100
        assert outcome.tasks > 0


def test_every_kind_of_fault_fires() -> None:
    """A fault that was planned and never happened would prove nothing."""
    fired: dict[str, int] = {}
    for seed in range(30):
        for kind, count in run(seed).faults.items():
            fired[kind] = fired.get(kind, 0) + count
    assert all(fired.get(kind, 0) >= 3 for kind in FaultKind), fired


def test_every_kind_of_fact_is_decided_somewhere() -> None:
    """What the simulator never reaches, it does not test."""
    seen: dict[str, None] = {}
    for seed in range(60):
        history = _finished(seed).truth.history
        seen.update(dict.fromkeys(str(recorded.fact.__struct_config__.tag) for recorded in history))
    missing = [kind for kind in FACTS if kind not in seen]
    assert missing == [], missing


def _finished(seed: int) -> Cluster:
    cluster = Cluster(make_plan(seed))
    live(cluster)
    cluster.close()
    return cluster


def test_a_day_without_faults_loses_nothing_to_infrastructure() -> None:
    for seed in range(5):
        outcome = run(seed, faults=False)
        assert not outcome.broken, _explain(outcome)
        assert outcome.terms == 1


def test_the_same_seed_gives_the_same_history_in_another_process() -> None:
    """P8, with another hash seed too: no decision may depend on the order of a set or a hash."""
    expected = [run(seed).digest for seed in (3, 11, 17)]
    code = "from clutch.testing.sim.run import run; print(*[run(s).digest for s in (3, 11, 17)])"
    for hash_seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert out.stdout.split() == expected


def test_seeds_differ() -> None:
    assert len({run(seed).digest for seed in range(4)}) == 4


def test_a_plan_is_a_value() -> None:
    plan = make_plan(5)
    assert plan == make_plan(5)
    calm = msgspec.structs.replace(plan, faults=())
    assert run_plan(calm).digest != run_plan(plan).digest


def test_a_story_tells_the_whole_life_of_a_task() -> None:
    task = next(name for name in _finished(7).truth.submitted if name.startswith("trial"))
    lines = tell(7, task)
    assert "task submitted" in lines[0]
    assert "task ended" in lines[-1]
    with pytest.raises(NotFound, match="Try: "):
        tell(7, "nobody")
