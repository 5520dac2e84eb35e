"""Experiments on a real cluster: submitted, run, looked at, moved, and what is left of them."""

from __future__ import annotations

from experiment_ground import Ground

from clutch.sdk import experiment_calls


def test_a_single_trial_runs_to_its_end_and_is_looked_at(ground: Ground) -> None:
    experiment = ground.start({"steps": 4, "base": 2.0, "save": 2})
    view = ground.until_ended(experiment)
    assert (view.state, view.trials, view.trials_failed) == ("completed", 1, 0)
    assert (view.has_best, view.best, view.best_trial, view.best_step) == (True, 0.5, 1, 4)
    (trial,) = ground.trials(experiment)
    assert (trial.key, trial.state, trial.last_step, trial.checkpoint_step) == (f"{experiment}.1", "completed", 4, 4)
    detail = ground.client.perform(experiment_calls.get_experiment(experiment))
    assert detail.config["hyperparameters"]["steps"] == 4
    assert detail.best is not None and detail.best.key == trial.key
