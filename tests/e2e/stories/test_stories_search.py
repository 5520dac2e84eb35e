"""Search methods that are processes: killed at random moments they make the same trials; tpe learns where to look."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path

from stories_ground import Ground, linger, process_of

from clutch.testing.cluster import until

METHOD = Path(__file__).with_name("stories_search.py")


def bases(ground: Ground, experiment: str) -> list[float]:
    return [json.loads(trial.hparams)["base"] for trial in ground.trials(experiment)]


def kill_search(experiment: str, before: int, chance: random.Random) -> int:
    """The process of a search, another one than last time, killed after some of its life."""
    task = f"{experiment}.search"
    pid = until(lambda: (found := process_of(task, str(METHOD))) != before and found, f"a process of {task}", 60.0)
    linger(chance.random() * 0.6)
    os.kill(pid, signal.SIGKILL)
    return pid


def test_a_killed_search_process_goes_on_where_it_was(ground: Ground) -> None:
    chance, before = random.Random(6), 0
    searcher = {"name": "custom", "metric": "loss", "entrypoint": [sys.executable, str(METHOD)]}
    gate = ground.gate()
    do = ["validate", f"at 3: wait {gate}"]
    experiment = ground.start(do, hparams={"base": 1.0, "operations": True}, searcher=searcher, max_restarts=5)
    for _ in range(3):
        before = kill_search(experiment, before, chance)
    gate.touch()
    ground.ended(experiment)
    assert bases(ground, experiment) == [4.0, 2.0, 1.0, 0.5]
    trials = ground.trials(experiment)
    assert {(trial.state, trial.last_step, trial.restarts) for trial in trials} == {("completed", 3, 0)}


def test_tpe_looks_where_it_is_better(ground: Ground) -> None:
    searcher = {"name": "tpe", "metric": "loss", "max_trials": 12, "startup_trials": 4, "max_concurrent_trials": 1}
    base = {"type": "double", "minval": 0.0, "maxval": 10.0}
    seed = {"reproducibility": {"experiment_seed": 3}}
    experiment = ground.start(["validate"], 1, hparams={"base": base}, searcher=searcher, **seed)
    view = ground.ended(experiment)
    tried = bases(ground, experiment)
    assert (view.trials, view.trials_failed) == (12, 0)
    assert min(tried[4:]) < min(min(tried[:4]), 0.5), tried
