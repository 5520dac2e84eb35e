"""TPE with the real optuna, behind the same contract as everybody's method."""

from __future__ import annotations

import subprocess
import sys
from math import log10
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_harness import experiment, run_in_order
from search_world import Killed, MemorySearch

from clutch.wire.errors import Unavailable
from clutch.wire.experiment_words import MakeTrial, SearchEvent, SetProgress, Shutdown, TrainTo
from clutch.wire.experiments import (
    Categorical,
    Const,
    Double,
    Hyperparameter,
    Int,
    Log,
    Nested,
    RandomSearch,
    Tpe,
)
from clutch.workloads.experiment.search.base import Extended, How, Over
from clutch.workloads.experiment.search_process.runner import SearchRunner
from clutch.workloads.experiment.search_process.tpe import (
    STATE_BYTES,
    Known,
    TpeMethod,
    dimensions,
    hparams_at,
    propose,
)

SPACE: dict[str, Hyperparameter] = {
    "x": Double(-5, 5),
    "lr": Log(-4, 0),
    "n": Int(1, 20),
    "o": Nested({"k": Categorical(({"far": 9}, {"near": 1}, {"middle": 4})), "c": Const("c")}),
}


def bowl(hparams: dict[str, Any]) -> float:
    """Least at x = 1, lr = 0.01, n = 7, near."""
    (penalty,) = hparams["o"]["k"].values()
    assert hparams["o"]["c"] == "c"
    return (hparams["x"] - 1) ** 2 + (log10(hparams["lr"]) + 2) ** 2 + ((hparams["n"] - 7) / 4) ** 2 + penalty


def tpe(trials: int, seed: int = 7, *, concurrent: int = 1, max_time: int = 0) -> MemorySearch:
    spec = experiment(Tpe(trials, concurrent), SPACE, seed=seed, max_time=max_time)
    world = MemorySearch(spec, bowl)
    SearchRunner(world, "exp", TpeMethod()).run()
    return world


def best(world: MemorySearch) -> float:
    return min(bowl(trial.made.hparams) for trial in world.search.trials.values())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_finds_better_than_chance_does_with_as_many_trials(seed: int) -> None:
    found = best(tpe(60, seed))
    search = run_in_order(experiment(RandomSearch(60), SPACE, seed=seed), lambda trial, time: 0.0)
    by_chance = min(bowl(trial.made.hparams) for trial in search.trials.values())
    assert found < by_chance


def test_the_same_seed_finds_the_same() -> None:
    one, other = (tpe(20, 5) for _ in range(2))
    assert [t.made for t in one.search.trials.values()] == [t.made for t in other.search.trials.values()]
    assert best(tpe(20, 6)) != best(one)


def test_it_makes_as_many_as_asked_so_many_at_a_time_and_ends() -> None:
    world = tpe(15, concurrent=4, max_time=10)
    assert len(world.search.trials) == 15
    assert world.most == 4
    assert world.search.over == Over()
    assert all(trial.target == 10 for trial in world.search.trials.values())
    assert world.search.state.fraction == 1.0
    points = [str(trial.made.hparams) for trial in world.search.trials.values()]
    assert len(set(points)) == 15


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_a_process_killed_anywhere_proposes_what_it_would_have(seed: int) -> None:
    quiet = tpe(14, concurrent=2)
    world = MemorySearch(quiet.search.spec, bowl, faults=Random(seed))
    for _ in range(1000):
        try:
            SearchRunner(world, "exp", TpeMethod(), patience_s=0.0).run()
        except (Killed, Unavailable):
            continue
        break
    assert world.search.over == Over()
    made = [trial.made for trial in world.search.trials.values()]
    assert made == [trial.made for trial in quiet.search.trials.values()]


def test_trials_that_refuse_are_replaced_and_their_neighbourhood_avoided() -> None:
    class Picky(MemorySearch):
        def _step(self) -> bool:
            for number in self.search.live():
                if self.search.trials[number].made.hparams["x"] > 0:
                    self.search.end(number, How.INVALID)
                    return True
            return super()._step()

    world = Picky(experiment(Tpe(40, 1), SPACE), lambda hparams: bowl({**hparams, "x": 1.0}))
    SearchRunner(world, "exp", TpeMethod()).run()
    hows = [trial.ended for trial in world.search.trials.values()]
    assert hows.count(How.COMPLETED) == 40
    assert hows[-20:].count(How.INVALID) <= 5, "half of them would be by chance"
    assert world.search.over == Over()


def test_when_every_trial_fails_it_has_failed() -> None:
    class Failing(MemorySearch):
        def _step(self) -> bool:
            for number in self.search.live():
                self.search.end(number, How.FAILED)
                return True
            return False

    world = Failing(experiment(Tpe(5, 2), SPACE), bowl)
    SearchRunner(world, "exp", TpeMethod()).run()
    assert world.search.over == Over(True, "every trial failed")
    assert len(world.search.trials) == 5


def test_it_gives_up_when_every_trial_refuses() -> None:
    class Refusing(MemorySearch):
        def _step(self) -> bool:
            for number in self.search.live():
                self.search.end(number, How.INVALID)
                return True
            return False

    world = Refusing(experiment(Tpe(1, 1), {"n": Int(1, 3)}), bowl)
    SearchRunner(world, "exp", TpeMethod()).run()
    assert world.search.over is not None and world.search.over.failed
    assert "refused" in world.search.over.detail


def test_it_goes_on_after_its_end() -> None:
    world = tpe(6, max_time=10)
    world.search.over = None
    world.search.trials[2].ended = None
    world.search.trials[2].told_to_leave = None
    world.search.tell(Extended(max_trials=9, max_time=30, trials=(2,)))
    SearchRunner(world, "exp", TpeMethod()).run()
    assert world.search.over == Over() and world.search.overs == 2
    assert len(world.search.trials) == 9
    assert [world.search.trials[number].target for number in (1, 2, 7, 9)] == [10, 30, 30, 30]


def test_a_space_of_constants_is_no_error() -> None:
    world = MemorySearch(experiment(Tpe(2, 1), {"a": Const(1)}), lambda hparams: 0.0)
    SearchRunner(world, "exp", TpeMethod()).run()
    assert [trial.made.hparams for trial in world.search.trials.values()] == [{"a": 1}, {"a": 1}]


def test_what_it_keeps_stays_within_what_a_master_keeps() -> None:
    method = TpeMethod()
    begin = {"hyperparameters": {"x": {"type": "double", "minval": 0, "maxval": 1}}, "method": {"type": "tpe"}}
    begin["method"]["max_trials"] = 1  # type: ignore[assignment]
    operations = tuple(method.on_event(SearchEvent(number=1, kind="begin", hparams={**begin, "seed": 1})))
    assert [type(one) for one in operations] == [MakeTrial, SetProgress]
    method.memory.known += [Known(number, [0.5] * 50, float(number), False) for number in range(2, 5000)]
    saved = method.save()
    assert len(saved) <= STATE_BYTES
    again = TpeMethod()
    again.load(saved)
    assert again.memory == method.memory
    assert again.memory.known[0].number == 1, "one that lives is not forgotten"
    assert again.memory.known[-1].number == 4999
    ended = tuple(again.on_event(SearchEvent(number=2, kind="closed", request="tpe-1", reason="completed")))
    assert ended == (SetProgress(1.0), Shutdown())


def test_points_and_hyperparameters() -> None:
    space = dimensions(SPACE)
    assert [dimension.path for dimension in space] == [("lr",), ("n",), ("o", "k"), ("x",)]
    assert hparams_at(space, [-2.0, 7.0, 1.0, 0.5]) == {
        "lr": pytest.approx(0.01), "n": 7, "o": {"k": {"near": 1}}, "x": 0.5
    }  # fmt: skip
    assert dimensions(dict(reversed(SPACE.items()))) == space
    known = [Known(number, [-1.0, 3.0, 0.0, 1.0], float("inf"), number > 20) for number in range(1, 25)]
    point = propose(space, known, 1, 5)
    assert point == propose(space, known, 1, 5) != propose(space, known, 2, 5)


def test_without_optuna_its_process_says_what_to_install() -> None:
    hidden = "import sys; sys.modules['optuna'] = None; from clutch.workloads.experiment.search_process import tpe"
    ran = subprocess.run([sys.executable, "-c", f"{hidden}; tpe.main()"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1
    assert "pip install 'clutch[search]'" in ran.stderr and "Traceback" not in ran.stderr


def test_outside_a_task_its_process_says_so() -> None:
    module = "clutch.workloads.experiment.search_process.tpe"
    ran = subprocess.run([sys.executable, "-m", module], capture_output=True, text=True, timeout=60, env={})
    assert ran.returncode == 1
    assert "no task of a cluster" in ran.stderr and "Traceback" not in ran.stderr


def test_a_length_is_asked_for_once() -> None:
    world = tpe(3, max_time=10)
    asked = [one for answer in world.answers for one in answer.operations if isinstance(one, TrainTo)]
    assert asked == [TrainTo(f"tpe-{number}", 10) for number in (1, 2, 3)]
