"""Whole clusters from seeds: every promise holds, every planned fault fires, the same seed gives the same history."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from clutch.testing.sim.plan import FaultKind, make_plan
from clutch.testing.sim.run import Outcome, lived, run, run_plan, tell
from clutch.wire.errors import NotFound
from clutch.wire.facts import FACTS

SEEDS = range(60)
"""``make sim`` runs more of them."""


def test_every_promise_holds_every_kind_of_fault_fires_and_every_kind_of_fact_is_decided() -> None:
    """A fault that was planned and never happened would prove nothing; what is never reached is not tested."""
    fired: dict[str, int] = {}
    seen: dict[str, None] = {}
    for seed in SEEDS:
        cluster, outcome = lived(make_plan(seed))
        _check(outcome)
        for kind, count in outcome.faults.items():
            fired[kind] = fired.get(kind, 0) + count
        history = cluster.truth.history
        seen.update(dict.fromkeys(str(recorded.fact.__struct_config__.tag) for recorded in history))
    assert all(fired.get(kind, 0) >= 3 for kind in FaultKind), fired
    missing = [kind for kind in FACTS if kind not in seen]
    assert missing == [], missing


def _check(outcome: Outcome) -> None:
    assert not outcome.broken, "\n".join([f"seed {outcome.seed}: {outcome.broken}", *outcome.story])
    assert outcome.checks > 100
    assert outcome.tasks > 0


def test_a_day_without_faults_loses_nothing_to_infrastructure() -> None:
    for seed in range(5):
        outcome = run(seed, faults=False)
        _check(outcome)
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
    task = next(name for name in lived(make_plan(7))[0].truth.submitted if name.startswith("trial"))
    lines = tell(7, task)
    assert "task submitted" in lines[0]
    assert "task ended" in lines[-1]
    with pytest.raises(NotFound, match="Try: "):
        tell(7, "nobody")
