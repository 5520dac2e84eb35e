"""Trials and masters that die at random moments: in the end nobody can tell.

What a trial computes depends on every step before, so equal numbers and files mean that no step was lost, repeated or
taken from the wrong checkpoint.
"""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path

import pytest
from stories_ground import PROGRAM, Ground, linger, process_of

from clutch.testing.cluster import until

STEPS = 24
ASHA = {
    "name": "asha", "metric": "loss", "max_time": 16, "max_trials": 8, "num_rungs": 3, "divisor": 2,
    "max_concurrent_trials": 3,
}  # fmt: skip


def kill_trial(task: str, chance: random.Random, before: int) -> int:
    """The process of a trial, another one than last time, killed after some of its life."""
    pid = until(lambda: (found := process_of(task, str(PROGRAM))) != before and found, f"a process of {task}", 60.0)
    linger(chance.random() * 0.7)
    os.kill(pid, signal.SIGKILL)
    return pid


def results(ground: Ground, experiment: str) -> tuple[object, ...]:
    trial = ground.trial(f"{experiment}.1")
    curves = [ground.curve(trial.key, *which) for which in (("training", "chance"), ("validation", "loss"))]
    assert [step for step, _ in curves[0]] == list(range(1, STEPS + 1)), "each step counts once"
    return (*curves, trial.best, trial.checkpoint_step, ground.file(trial.checkpoint))


def killed_trials(ground: Ground, seed: int, trials: int, kills: int) -> None:
    """Each of so many trials is killed so often; an undisturbed one with the same seed runs beside them."""
    chance, gate = random.Random(seed), ground.gate()
    do = ["report", "validate", "sleep 0.02", "every 5: checkpoint", f"at {STEPS}: checkpoint"]
    more = {"max_restarts": kills, "reproducibility": {"experiment_seed": seed}}
    calm = ground.start(do, STEPS, **more)
    shaken = [ground.start([f"at {STEPS - 1}: wait {gate}", *do], STEPS, **more) for _ in range(trials)]
    last = dict.fromkeys(shaken, 0)
    for experiment in shaken * kills:
        last[experiment] = kill_trial(f"{experiment}.1", chance, last[experiment])
    gate.touch()
    ground.ended(calm)
    expected = results(ground, calm)
    for experiment in shaken:
        ground.ended(experiment, within_s=120.0)
        trial = ground.trial(f"{experiment}.1")
        assert (trial.restarts, trial.epoch) == (kills, kills + 1), "every kill that was planned happened"
        assert results(ground, experiment) == expected, ground.story(experiment)


def killed_masters(ground: Ground, seed: int, kills: int) -> None:
    chance = random.Random(seed)
    do = ["validate", "sleep 0.05", "every 4: checkpoint"]
    base = {"type": "double", "minval": 1.0, "maxval": 9.0}
    more = {"searcher": ASHA, "hparams": {"base": base}, "reproducibility": {"experiment_seed": seed}}
    experiment = ground.start(do, 16, **more)
    until(lambda: any(trial.last_step for trial in ground.trials(experiment)), "a validation", 60.0)
    for _ in range(kills):
        linger(chance.random() * 0.8)
        assert ground.view(experiment).state == "active", "it is killed while it searches"
        ground.restart_master()
    ended = ground.ended(experiment, within_s=120.0)
    calm = ground.start(do, 16, **more)
    ground.ended(calm)
    assert (ended.trials, ended.trials_failed, ended.progress) == (8, 0, 1.0)
    assert drawn(ground, experiment) == drawn(ground, calm), "the same trials"
    for trial in ground.trials(experiment):
        steps = [row.step for row in ground.workloads(trial.key) if row.kind == "validate"]
        assert steps == list(range(1, trial.last_step + 1)), ground.story(experiment)
        curve = ground.curve(trial.key, "validation", "loss")
        assert [step for step, _ in curve][: len(steps)] == steps, "every step once, nothing lost"
        assert len(curve) == len({step for step, _ in curve})
        whole = trial.last_step == 16  # one that went on while no master could stop it may be stopped there, too
        assert trial.state == "stopped" or (whole and trial.state == "completed"), ground.story(experiment)
        assert trial.restarts == 0


def drawn(ground: Ground, experiment: str) -> dict[int, float]:
    return {trial.trial: json.loads(trial.hparams)["base"] for trial in ground.trials(experiment)}


def test_a_killed_trial_ends_as_if_it_had_not_been(ground: Ground) -> None:
    killed_trials(ground, seed=1, trials=1, kills=3)


def test_a_search_whose_masters_are_killed_ends_as_if_they_had_not_been(ground: Ground) -> None:
    killed_masters(ground, seed=2, kills=2)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_fifty_kills_of_trials(tmp_path: Path) -> None:
    with Ground(tmp_path, 6) as ground:
        killed_trials(ground, seed=3, trials=5, kills=10)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", range(5))
def test_ten_kills_of_masters(tmp_path: Path, seed: int) -> None:
    with Ground(tmp_path, 4) as ground:
        killed_masters(ground, seed=10 + seed, kills=2)
