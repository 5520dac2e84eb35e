"""What goes wrong in trials: refused hyperparameters, failures, lines of output that mean something, data not there."""

from __future__ import annotations

import json
from pathlib import Path

from stories_ground import Ground

from clutch.sdk import experiment_calls

DO = ["report", "validate"]


def test_refused_hyperparameters_are_replaced(ground: Ground) -> None:
    """Of a grid of what a trial does, two points are refused: a random search still gets its three trials."""
    do = {"type": "categorical", "vals": [["invalid too large"], DO]}
    searcher = {"name": "random", "metric": "loss", "max_trials": 3}
    seeds = {"reproducibility": {"experiment_seed": 4}}
    experiment = ground.start([], 2, searcher=searcher, hparams={"do": do}, **seeds)
    view = ground.ended(experiment)
    states = [trial.state for trial in ground.trials(experiment)]
    assert states.count("completed") == 3 and "invalid" in states, states
    assert view.trials == len(states) and view.trials_failed == 0
    refused = next(trial for trial in ground.trials(experiment) if trial.state == "invalid")
    assert "too large" in refused.detail, refused.detail
    assert json.loads(refused.hparams)["do"] == ["invalid too large"]


def test_a_trial_fails_as_often_as_it_may_and_not_once_more(ground: Ground) -> None:
    often, once = (
        ground.start([*DO, failing, "checkpoint"], 4, max_restarts=2)
        for failing in ("at 3: fail 7", "at 3 first: fail")
    )
    ground.ended(often, "failed")
    trial = ground.trial(f"{often}.1")
    assert (trial.state, trial.restarts, trial.epoch) == ("failed", 2, 3), ground.story(often)
    assert "7" in trial.detail, trial.detail
    begun = ["begins at 0 in epoch 1", "begins at 2 in epoch 2", "begins at 2 in epoch 3"]
    assert ground.output(trial.task) == begun
    assert ground.kinds(trial.key).count("restart") == 2
    ground.ended(once)
    trial = ground.trial(f"{once}.1")
    assert (trial.state, trial.restarts, trial.epoch, trial.last_step) == ("completed", 1, 2, 4)


def test_rules_for_output(ground: Ground) -> None:
    """One forbids restarts, one only labels, one sends a trial to another node than the one that failed it."""
    do = [*DO, "at 2: log the disk is on fire", "at 2 first: fail"]
    rules = {
        action: [{"name": f"fire-{action}", "pattern": "disk .* fire", "action": action}]
        for action in ("cancel_retries", "exclude_node", "none")
    }
    made = {action: ground.start(do, 3, max_restarts=3, output_rules=rule) for action, rule in rules.items()}
    ground.ended(made["cancel_retries"], "failed")
    ground.ended(made["exclude_node"])
    ground.ended(made["none"])
    trials = {action: ground.trial(f"{experiment}.1") for action, experiment in made.items()}
    assert {action: trial.labels for action, trial in trials.items()} == {a: f",fire-{a}," for a in made}
    assert {action: trial.epoch for action, trial in trials.items()} == {
        "cancel_retries": 1, "exclude_node": 2, "none": 2
    }  # fmt: skip
    nodes = [row.value for row in ground.workloads(trials["exclude_node"].key) if row.kind == "start"]
    assert len(nodes) == 2 and nodes[0] != nodes[1], nodes


def test_data_that_no_node_has_is_named(ground: Ground, tmp_path: Path) -> None:
    """Every node is tried, then it fails and says what was missing; when that is there it is continued."""
    missing = tmp_path / "share" / "digits"
    experiment = ground.start(DO, 2, data={"path": str(missing)}, max_restarts=0)
    ground.ended(experiment, "failed")
    why = ground.client.perform(experiment_calls.why_experiment(experiment))
    assert "no node of pool default has what it needs" in why.sentence and f"{missing} is not there on" in why.sentence
    missing.mkdir(parents=True)
    ground.client.experiment(experiment).go_on()
    ground.ended(experiment)


def test_a_folder_of_the_node_appears_in_the_working_directory(ground: Ground, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "gate").touch()
    mounts = [{"host_path": str(tmp_path / "data"), "container_path": "inputs/digits"}]
    experiment = ground.start(["wait inputs/digits/gate", *DO, "touch inputs/digits/seen"], 2, bind_mounts=mounts)
    ground.ended(experiment)
    assert (tmp_path / "data" / "seen").exists()
    missing = [{"host_path": str(tmp_path / "nothing"), "container_path": "inputs"}]
    lost = ground.start(DO, 2, bind_mounts=missing)
    ground.ended(lost, "failed")
    assert str(tmp_path / "nothing") in ground.client.experiment(lost).view.detail
