"""What people do to experiments and what is left of them: paused, cancelled, continued, forked, deleted, kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stories_ground import Ground

from clutch.sdk import experiment_calls
from clutch.testing.cluster import until
from clutch.wire.errors import Conflict, NotFound
from clutch.wire.experiment_words import ContinueExperiment

DO = ["report", "validate"]


def test_paused_it_holds_no_slots_and_resumed_it_goes_on(ground: Ground) -> None:
    gate = ground.gate()
    experiment = ground.start([f"at 3: wait {gate}", *DO], 5, resources={"slots_per_trial": 2})
    ground.reached(f"{experiment}.1", 2)
    ground.move(experiment, "pause")
    ground.until_state(experiment, "paused")
    ground.until_trial(f"{experiment}.1", lambda view: view.state == "paused", "paused")
    until(lambda: ground.held() == 0, "its slots to be free")
    gate.touch()
    ground.move(experiment, "resume")
    ground.ended(experiment)
    assert [step for step, _ in ground.curve(f"{experiment}.1", "validation", "loss")] == [1, 2, 3, 4, 5]
    assert ground.output(f"{experiment}.1") == ["begins at 0 in epoch 1", "begins at 2 in epoch 2"]
    assert ground.kinds(f"{experiment}.1") == ["start", "checkpoint", "preempt", "start", "end"]
    assert ground.trial(f"{experiment}.1").restarts == 0


def test_cancelled_it_saves_and_continued_it_goes_on_and_on(ground: Ground) -> None:
    gate = ground.gate()
    experiment = ground.start([f"at 3: wait {gate}", *DO, "every 2: checkpoint"], 6)
    ground.reached(f"{experiment}.1", 2)
    ground.move(experiment, "cancel")
    ground.ended(experiment, "cancelled")
    assert (ground.trial(f"{experiment}.1").checkpoint_step, ground.held()) == (2, 0)
    gate.touch()
    ground.client.perform(experiment_calls.continue_experiment(experiment, ContinueExperiment()))
    ground.ended(experiment)
    more = ContinueExperiment(hparams={"steps": 8})
    ground.client.perform(experiment_calls.continue_experiment(experiment, more))
    ground.ended(experiment)
    trial = ground.trial(f"{experiment}.1")
    assert (trial.state, trial.last_step, trial.checkpoint_step) == ("completed", 8, 8)
    detail = ground.client.perform(experiment_calls.get_trial(trial.key))
    assert [ground.output(task)[0] for task in detail.tasks] == [
        "begins at 0 in epoch 1",
        "begins at 2 in epoch 1",
        "begins at 6 in epoch 1",
    ]
    assert [step for step, _ in ground.curve(trial.key, "validation", "loss")] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_what_is_done_again_after_a_continuation_counts_once(ground: Ground) -> None:
    """It is continued from step 2 although it had come to 5: what it had done beyond is superseded, not repeated."""
    experiment = ground.start([*DO, "at 2: checkpoint"], 5)
    ground.ended(experiment)
    more = ContinueExperiment(hparams={"steps": 7})
    ground.client.perform(experiment_calls.continue_experiment(experiment, more))
    ground.ended(experiment)
    trial = ground.trial(f"{experiment}.1")
    assert ground.output(trial.task) == ["begins at 2 in epoch 1"]
    curve = ground.curve(trial.key, "training", "chance")
    assert [step for step, _ in curve] == [1, 2, 3, 4, 5, 6, 7]
    every = ground.client.perform(experiment_calls.trial_metrics(trial.key, name="chance")).items
    assert sum(point.superseded for series in every for point in series.points) == 3
    (one,) = (s for s in ground.client.perform(experiment_calls.get_trial(trial.key)).summaries if s.name == "chance")
    assert one.count == 7


def test_forks_and_warm_starts(ground: Ground) -> None:
    """A fork begins anew with what its parent was told; a warm start begins from what another trial saved."""
    seed = {"reproducibility": {"experiment_seed": 5}}
    parent = ground.start([*DO, "at 4: checkpoint"], 4, labels=["family"], **seed)
    ground.ended(parent)
    fork = ground.submit({"name": "child", "hyperparameters": {"steps": 6}}, parent=parent).experiment
    source = {"name": "single", "metric": "loss"}
    by_trial = ground.start(DO, 6, searcher={**source, "source_trial_id": f"{parent}.1"})
    saved = ground.trial(f"{parent}.1").checkpoint
    by_checkpoint = ground.start(DO, 6, searcher={**source, "source_checkpoint_uuid": saved})
    for experiment in (fork, by_trial, by_checkpoint):
        ground.ended(experiment)
    assert (ground.view(fork).parent, ground.view(fork).labels) == (parent, ",family,")
    assert ground.output(f"{fork}.1") == ["begins at 0 in epoch 1"]
    whole = ground.curve(f"{fork}.1", "training", "chance")
    assert whole[:4] == ground.curve(f"{parent}.1", "training", "chance"), "the same seed"
    for experiment in (by_trial, by_checkpoint):
        assert ground.output(f"{experiment}.1") == ["begins at 4 in epoch 1"]
        assert ground.curve(f"{experiment}.1", "training", "chance") == whole[4:]
    with pytest.raises(NotFound):
        ground.start(DO, searcher={**source, "source_trial_id": f"{parent}.9"})
    with pytest.raises(NotFound, match="it has saved no checkpoint"):
        ground.start(DO, searcher={**source, "source_trial_id": f"{by_trial}.1"})
    ground.client.perform(experiment_calls.delete_checkpoint(saved))
    with pytest.raises(Conflict, match="not whole"):
        ground.start(DO, searcher={**source, "source_checkpoint_uuid": saved})


def test_retention_keeps_exactly_what_is_documented(ground: Ground) -> None:
    """Two trials of six checkpoints: the best of the experiment, the best two of each, the latest of each; one is held.

    The first gets better with every step, the second worse.
    """
    storage = {"save_experiment_best": 1, "save_trial_best": 2, "save_trial_latest": 1}
    gate = ground.gate()
    do = [f"at 4: wait {gate}", "validate", "checkpoint"]
    base = {"type": "categorical", "vals": [1.0, -1.0]}
    searcher = {"name": "grid", "metric": "loss"}
    experiment = ground.start(do, 6, searcher=searcher, hparams={"base": base}, checkpoint_storage=storage)
    trials = [f"{experiment}.{number}" for number in (1, 2)]
    for trial in trials:
        ground.until_trial(trial, lambda view: view.checkpoint_step == 3, "at the gate")
    pinned = next(row.key for row in ground.checkpoints(experiment) if (row.trial, row.step) == (trials[1], 3))
    ground.client.perform(experiment_calls.pin_checkpoint(pinned, "a-test"))
    gate.touch()
    ground.ended(experiment)
    rows = ground.checkpoints(experiment)
    stay = {(row.trial, row.step) for row in rows if row.state == "committed"}
    losses = {trial: dict(ground.curve(trial, "validation", "loss")) for trial in trials}
    expected = {(trial, step) for trial in trials for step in sorted(losses[trial], key=losses[trial].__getitem__)[:2]}
    expected |= {(trial, 6) for trial in trials} | {(trials[1], 3)}
    assert len(expected) == 6
    assert stay == expected, ground.story(experiment)
    gone = [row.key for row in rows if row.state != "committed"]
    assert {row.state for row in rows} == {"committed", "deleted"}
    assert ground.files_of(*gone) == []
    for row in rows:
        if row.state == "committed":
            assert ground.file(row.key).startswith(str(row.step).encode())


def test_deleted_no_file_of_it_is_left(ground: Ground) -> None:
    storage = {"save_trial_best": 9, "save_trial_latest": 9}
    experiment = ground.start([*DO, "checkpoint 100"], 3, checkpoint_storage=storage)
    ground.ended(experiment)
    keys = [row.key for row in ground.checkpoints(experiment)]
    assert len(keys) == 3 and ground.files_of(*keys)
    ground.client.perform(experiment_calls.pin_checkpoint(keys[0], "a-test"))
    with pytest.raises(Conflict, match="a-test"):
        ground.move(experiment, "delete")
    with pytest.raises(Conflict, match="a-test"):
        ground.client.perform(experiment_calls.delete_checkpoint(keys[0]))
    ground.client.perform(experiment_calls.unpin_checkpoint(keys[0], "a-test"))
    ground.move(experiment, "delete")
    ground.gone(experiment)
    assert ground.files_of(*keys) == []
    assert ground.output(f"{experiment}.1") == []
    with pytest.raises(NotFound):
        ground.file(keys[0])


def test_of_a_checkpoint_that_lost_some_files_the_others_are_there(ground: Ground, tmp_path: Path) -> None:
    experiment = ground.start(["validate", "at 2: checkpoint 100"], 2)
    ground.ended(experiment)
    (row,) = ground.checkpoints(experiment)
    ground.client.perform(experiment_calls.delete_checkpoint(row.key, ("**/bal*",)))

    def partial() -> Any:
        detail = ground.client.perform(experiment_calls.get_checkpoint(row.key))
        return detail if detail.row.state == "partial" else None

    after = until(partial, "one of its files to be removed")
    (left,) = after.files
    assert (left.path, after.row.size_bytes) == ("state", left.size_bytes)
    assert ground.file(row.key).startswith(b"2 ")
    with pytest.raises(NotFound):
        ground.file(row.key, "ballast")
    folder = ground.client.checkpoint(row.key).download(tmp_path / "here")
    assert [path.name for path in folder.iterdir()] == ["state"]
