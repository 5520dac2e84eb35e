"""What people do to experiments: pause, cancel, stop a trial, edit, continue, fork, delete; one or many."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path

import pytest
from experiment_ground import Ground

from clutch.sdk import experiment_calls
from clutch.testing.cluster import until
from clutch.wire.errors import BadRequest, Conflict, IllegalMove, NotFound
from clutch.wire.experiment_api import ExperimentIds
from clutch.wire.experiment_words import ContinueExperiment, EditExperiment


def move(ground: Ground, experiment: str, action: str) -> None:
    ground.client.perform(experiment_calls.move_experiment(experiment, action))


def test_paused_it_saves_and_holds_nothing_resumed_it_goes_on_from_there(ground: Ground) -> None:
    gate = ground.gate()
    experiment = ground.start({"steps": 4, "gate": str(gate)})
    (gate / "1").touch()
    (gate / "2").touch()
    ground.until_trial(f"{experiment}.1", lambda t: t.last_step == 2, "validated at 2")
    move(ground, experiment, "pause")
    move(ground, experiment, "pause")
    trial = ground.until_trial(f"{experiment}.1", lambda t: t.checkpoint_step == 2, "saved")
    until(lambda: ground.cluster.state(trial.task) == "paused", "its task to be paused")
    assert ground.view(experiment).state == "paused"
    (gate / "all").touch()
    move(ground, experiment, "resume")
    assert ground.until_ended(experiment).state == "completed"
    trial = ground.trials(experiment)[0]
    assert (trial.epoch, trial.last_step, trial.restarts) == (2, 4, 0)
    assert "begins at 2" in ground.output(trial.task)


def test_made_paused_it_waits(ground: Ground) -> None:
    found = ground.submit(ground.config({"steps": 1}), paused=True)
    assert ground.view(found.experiment).state == "paused"
    move(ground, found.experiment, "resume")
    assert ground.until_ended(found.experiment).state == "completed"


def test_cancelled_its_trials_save_and_leave_and_killed_they_do_not(ground: Ground) -> None:
    gate = ground.gate()
    (gate / "1").touch()
    polite, rude = (ground.start({"steps": 4, "gate": str(gate)}) for _ in range(2))
    for experiment in (polite, rude):
        ground.until_trial(f"{experiment}.1", lambda t: t.last_step == 1, "validated")
    move(ground, polite, "cancel")
    move(ground, rude, "kill")
    assert ground.until_ended(polite).state == "cancelled" and ground.until_ended(rude).state == "cancelled"
    assert ground.trials(polite)[0].checkpoint_step == 1
    assert ground.trials(rude)[0].checkpoint == ""
    move(ground, polite, "cancel")  # twice is as once
    with pytest.raises(Conflict):
        move(ground, polite, "pause")


def test_one_trial_is_stopped_and_the_others_go_on(ground: Ground) -> None:
    gate = ground.gate()
    (gate / "1").touch()
    hparams = {"steps": 3, "gate": str(gate), "base": {"type": "categorical", "vals": [1.0, 2.0]}}
    experiment = ground.start(hparams, {"name": "grid", "metric": "loss"})
    for number in (1, 2):
        ground.until_trial(f"{experiment}.{number}", lambda t: t.last_step == 1, "validated")
    ground.client.perform(experiment_calls.move_trial(f"{experiment}.1", "stop"))
    ground.until_trial(f"{experiment}.1", lambda t: t.state == "cancelled", "cancelled")
    (gate / "all").touch()
    assert ground.until_ended(experiment).state == "completed"
    assert [trial.state for trial in ground.trials(experiment)] == ["cancelled", "completed"]
    with pytest.raises(IllegalMove):
        ground.client.perform(experiment_calls.move_trial(f"{experiment}.2", "kill"))


def test_what_is_over_is_edited_by_many_at_once(ground: Ground) -> None:
    experiment = ground.start({"steps": 1})
    ground.until_ended(experiment)
    edits = [
        EditExperiment(notes="written later"), EditExperiment(labels=("a", "b")), EditExperiment(description="said"),
        EditExperiment(archived=True), EditExperiment(name="renamed"),
    ]  # fmt: skip
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda edit: ground.client.perform(experiment_calls.edit_experiment(experiment, edit)), edits))
    view = until(lambda: (v := ground.view(experiment)).state == "completed" and v, "put away again")
    said = (view.notes, view.labels, view.description, view.archived, view.name)
    assert said == ("written later", ",a,b,", "said", True, "renamed"), "no edit took another's place"
    with pytest.raises(NotFound):
        ground.client.perform(experiment_calls.edit_experiment(experiment, EditExperiment(project="nowhere")))
    move(ground, experiment, "unarchive")
    assert not ground.view(experiment).archived


def test_continued_it_goes_on_from_its_last_checkpoint_under_the_same_number(ground: Ground) -> None:
    experiment = ground.start({"steps": 2, "save": 2})
    ground.until_ended(experiment)
    more = ContinueExperiment(hparams={"steps": 4})
    ground.client.perform(experiment_calls.continue_experiment(experiment, more))
    view = ground.until_ended(experiment)
    (trial,) = ground.trials(experiment)
    assert (view.state, trial.trial, trial.last_step, trial.task) == ("completed", 1, 4, f"{experiment}.1-2")
    assert "begins at 2" in ground.output(trial.task)
    assert ground.client.perform(experiment_calls.get_trial(trial.key)).tasks == (
        f"{experiment}.1",
        f"{experiment}.1-2",
    )
    (curve,) = ground.client.perform(experiment_calls.experiment_metrics(experiment)).items
    assert [point.step for point in curve.points] == [1, 2, 3, 4]
    with pytest.raises(NotFound):
        again = ContinueExperiment(trials=(9,))
        ground.client.perform(experiment_calls.continue_experiment(experiment, again))


def test_a_fork_takes_what_it_does_not_say_from_its_parent(ground: Ground) -> None:
    parent = ground.start({"steps": 2, "base": 8.0}, labels=["family"])
    ground.until_ended(parent)
    fork = ground.submit({"name": "child", "hyperparameters": {"steps": 3}}, parent=parent).experiment
    view = ground.until_ended(fork)
    assert (view.state, view.parent, view.name, view.labels) == ("completed", parent, "child", ",family,")
    assert ground.trials(fork)[0].last_step == 3 and view.best == 8.0 / 3


def test_deleted_nothing_is_left_of_it(ground: Ground) -> None:
    experiment = ground.start(
        {"steps": 3, "save": 1}, checkpoint_storage={"save_trial_best": 3, "save_trial_latest": 3}
    )
    ground.until_ended(experiment)
    rows = ground.client.perform(experiment_calls.list_checkpoints(experiment)).items
    assert len(rows) == 3
    blobs = ground.cluster.folder / "blobs"
    assert stored(blobs, rows[0].key)
    ground.client.perform(experiment_calls.pin_checkpoint(rows[0].key))
    with pytest.raises(Conflict, match="held by user:admin"):
        move(ground, experiment, "delete")
    ground.client.perform(experiment_calls.unpin_checkpoint(rows[0].key))
    move(ground, experiment, "delete")

    def gone() -> bool:
        try:
            ground.view(experiment)
        except NotFound:
            return True
        return False

    until(gone, "the experiment to be gone", 60.0)
    assert not any(stored(blobs, row.key) for row in rows)
    for trial in (f"{experiment}.1",):
        assert ground.output(trial) == []
        with pytest.raises(NotFound):
            ground.client.perform(experiment_calls.get_trial(trial))
    with pytest.raises(NotFound):
        ground.client.perform(experiment_calls.get_checkpoint(rows[0].key))
    with pytest.raises(NotFound):
        move(ground, experiment, "delete")


def stored(blobs: Path, checkpoint: str) -> list[Path]:
    return [path for path in blobs.rglob(f"*{checkpoint}*") if "push" not in path.parts]


def test_a_key_whose_experiment_was_deleted_makes_another(ground: Ground) -> None:
    config = ground.config({"steps": 1})
    first = ground.submit(config, key="deleted").experiment
    ground.until_ended(first)
    move(ground, first, "delete")
    until(lambda: ground.submit(config, key="deleted").experiment != first, "another experiment", 60.0)
    second = ground.submit(config, key="deleted").experiment
    assert ground.until_ended(second).state == "completed"


def test_many_are_moved_at_once_and_each_is_answered_for(ground: Ground) -> None:
    made = [ground.start({"steps": 1}, labels=["bulk"]) for _ in range(3)]
    for experiment in made:
        ground.until_ended(experiment)
    which = ExperimentIds(experiments=(made[0], "nobody", made[1]))
    answers = ground.client.perform(experiment_calls.move_experiments("archive", which)).items
    assert [bool(answer.error) for answer in answers] == [False, True, False]
    ground.client.perform(experiment_calls.move_experiments("archive", ExperimentIds(label="bulk")))
    assert all(ground.view(experiment).archived for experiment in made)
    with pytest.raises(BadRequest):
        ground.client.perform(experiment_calls.move_experiments("delete", ExperimentIds()))
    with pytest.raises(BadRequest):
        ground.client.perform(experiment_calls.move_experiments("explode", which))


def test_files_of_a_checkpoint_are_read_and_removed(ground: Ground) -> None:
    experiment = ground.start({"steps": 2, "save": 2})
    ground.until_ended(experiment)
    (row,) = ground.client.perform(experiment_calls.list_checkpoints(experiment)).items
    detail = ground.client.perform(experiment_calls.get_checkpoint(row.key))
    assert "step" in [file.path for file in detail.files]
    call = experiment_calls.get_checkpoint_file(row.key, "step")
    assert ground.download(call) == b"2"
    with pytest.raises(NotFound):
        ground.download(experiment_calls.get_checkpoint_file(row.key, "nothing"))
    ground.client.perform(experiment_calls.delete_checkpoint(row.key))

    def removed() -> bool:
        return ground.client.perform(experiment_calls.get_checkpoint(row.key)).row.state == "deleted"

    until(removed, "the checkpoint's files to be removed", 60.0)
    with pytest.raises(Conflict, match="gone"):
        ground.download(call)
    way = ground.client.perform(experiment_calls.get_storage("default"))
    assert (Path(way.folder) / way.proof).read_text() == way.content


def test_its_bound_of_slots_is_lowered_and_raised_while_it_runs(ground: Ground) -> None:
    gate = ground.gate()
    (gate / "1").touch()
    bases = {"type": "categorical", "vals": [1.0, 2.0, 3.0]}
    experiment = ground.start({"steps": 2, "gate": str(gate), "base": bases}, {"name": "grid", "metric": "loss"})
    for number in (1, 2, 3):
        ground.until_trial(f"{experiment}.{number}", lambda t: t.last_step == 1, "validated")
    ground.client.experiment(experiment).edit(max_slots=1)
    for number in (2, 3):
        trial = f"{experiment}.{number}"
        ground.until_trial(trial, lambda t: t.state == "queued" and t.checkpoint_step == 1, "saved and waits")
    assert ground.trials(experiment)[0].state == "running"
    why = ground.client.perform(experiment_calls.why_experiment(experiment))
    assert any("may hold 1 slots at once" in line for line in why.story), why.story
    ground.client.experiment(experiment).edit(max_slots=3)
    ground.until_trial(f"{experiment}.3", lambda t: t.state == "running" and t.epoch == 2, "runs again")
    (gate / "all").touch()
    assert ground.until_ended(experiment).state == "completed"
    assert [(t.last_step, t.restarts) for t in ground.trials(experiment)] == [(2, 0)] * 3


def test_what_an_experiment_begins_from_is_held_until_it_is_over(ground: Ground) -> None:
    source = ground.start({"steps": 2, "save": 1})
    ground.until_ended(source)
    checkpoint = ground.trials(source)[0].checkpoint
    gate = ground.gate()
    searcher = {"name": "single", "metric": "loss", "source_checkpoint_uuid": checkpoint}
    heir = ground.start({"steps": 3, "gate": str(gate)}, searcher)
    holder = f"experiment:{heir}"
    assert ground.client.checkpoint(checkpoint).detail().row.pins.strip(",") == holder
    ground.client.experiment(source).edit(save_trial_best=0, save_trial_latest=0, save_experiment_best=0)
    ground.until_state(source, "completed")
    assert ground.client.checkpoint(checkpoint).there, "retention leaves it"
    with pytest.raises(Conflict, match=holder):
        ground.client.checkpoint(checkpoint).delete()
    with pytest.raises(Conflict, match=holder):
        move(ground, source, "delete")
    (gate / "all").touch()
    assert ground.until_ended(heir).state == "completed"
    assert "begins at 2" in ground.output(f"{heir}.1")
    until(lambda: not ground.client.checkpoint(checkpoint).detail().row.pins, "it to be let go")
    more = ContinueExperiment(hparams={"steps": 4, "gate": str(ground.gate())})
    ground.client.perform(experiment_calls.continue_experiment(heir, more))
    assert ground.client.checkpoint(checkpoint).detail().row.pins.strip(",") == holder
    move(ground, heir, "kill")
    until(lambda: not ground.client.checkpoint(checkpoint).detail().row.pins, "it to be let go again")
