"""An experiment from its first trial to its end: what it asks of trials, what they become, what it tells others."""

from __future__ import annotations

import math

import msgspec
import pytest
from laboratory import EXP, ExperimentState, Laboratory, TrialState, make_spec

from clutch.wire import experiment_words as w
from clutch.wire.experiments import (
    Asha,
    OutputRule,
    RandomSearch,
    RuleAction,
    Storage,
    TrialInfo,
)
from clutch.wire.ids import TaskId
from clutch.wire.outcomes import TaskState
from clutch.wire.programs import Program, program_in
from clutch.wire.specs import Members, Split
from clutch.workloads.experiment.controller.reading import best_of, operation_of


@pytest.fixture
def lab() -> Laboratory:
    return Laboratory()


def finish(lab: Laboratory) -> None:
    lab.check_refold()
    lab.check_rows()


def test_a_single_trial_that_runs_to_its_end(lab: Laboratory) -> None:
    lab.open(make_spec())
    task = lab.task(1)
    assert task == "e-1.1" and lab.exp.state is ExperimentState.ACTIVE
    lab.validate(1, 10, 0.5)
    assert lab.trial(1).state is TrialState.RUNNING
    lab.checkpoint(1, 10)
    lab.validate(1, 20, 0.3, accuracy=0.9)
    lab.validate(1, 20, 0.1)  # the first of a step counts
    assert best_of(lab.own).value == 0.3
    lab.ends(task)
    assert lab.closed
    row = lab.view
    assert (row.state, row.best, row.best_step, row.best_trial, row.best_checkpoint, row.progress) == (
        "completed", 0.3, 20, 1, "c1-1-10", 1.0,
    )  # fmt: skip
    assert lab.steps(1) == ["start", "validate", "checkpoint", "validate", "end"]
    assert [told.state for told in lab.owed] == ["active", "completed"]
    assert row.ended_at > 0 and row.trials_ended == 1
    finish(lab)


def test_what_a_trial_is_told(lab: Laboratory) -> None:
    spec = make_spec(
        max_time=100,
        program=Program(argv=("python", "train.py"), environment={"A": "1"}, rendezvous=True),
        storage=Storage(address="s3://x", secret="keys"),
        resources={"slots": 4, "millicpus": 500},
        data={"path": "/data"},
        seed=7,
    )
    lab.open(spec)
    task = lab.state.tasks[lab.task(1)]
    assert task.spec.roles[0].shape == Split(slots=4, millicpus_per_slot=500)
    assert (task.spec.group, task.spec.kind, task.spec.max_restarts) == (EXP, "trial", 5)
    program = program_in(task.spec.payload)
    assert program is not None and program.leave_signal == 0 and program.rendezvous
    assert [(use.name, use.variable) for use in program.secrets] == [("keys", "CLUTCH_STORAGE_SECRET")]
    assert program.environment["A"] == "1"
    info = msgspec.json.decode(program.environment["CLUTCH_TRIAL"], type=TrialInfo)
    assert (info.experiment, info.trial, info.hparams, info.max_time) == (EXP, 1, {"lr": 0.1}, 100)
    assert info.data == {"path": "/data"} and info.storage.address == "s3://x" and info.seed == lab.trial(1).seed


def test_slots_of_one_node_are_one_member(lab: Laboratory) -> None:
    lab.open(make_spec(resources={"slots": 3, "single_node": True, "millicpus": 100}))
    shape = lab.state.tasks[lab.task(1)].spec.roles[0].shape
    assert isinstance(shape, Members) and shape.each.slots == 3 and shape.each.millicpus == 300


def test_a_length_is_done_by_a_validation_and_the_trial_is_asked_to_leave(lab: Laboratory) -> None:
    lab.open(make_spec(max_time=100))
    task = lab.task(1)
    lab.validate(1, 50, 0.5)
    assert operation_of(lab.own, task).state == "train" and operation_of(lab.own, task).length == 100
    lab.validate(1, 100, 0.4)
    assert lab.trial(1).state is TrialState.STOPPING and lab.asked_to_leave(task)
    assert operation_of(lab.own, task).state == "over" and operation_of(lab.own, task).done == 100
    lab.leaves(task)
    assert lab.closed and lab.trial_row(1).state == "completed"
    assert lab.steps(1) == ["train", "start", "validate", "validate", "end"]
    finish(lab)


def test_an_operation_is_done_by_saying_so_once(lab: Laboratory) -> None:
    lab.open(make_spec(max_time=100))
    task = lab.up(lab.task(1))
    lab.say(w.OperationDone(task, 1, 50))  # less than was asked
    assert lab.trial(1).asked
    lab.say(w.OperationDone(task, 1, 100, value=0.25))
    lab.say(w.OperationDone(task, 1, 100, value=0.25))
    assert lab.trial(1).done == 100 and lab.trial(1).state is TrialState.STOPPING
    finish(lab)


def test_time_may_be_a_metric(lab: Laboratory) -> None:
    lab.open(make_spec(max_time=10, time_metric="epochs"))
    lab.validate(1, 5000, 0.5, epochs=4.0)
    assert lab.trial(1).asked
    lab.validate(1, 9000, 0.5, epochs=10.0)
    assert not lab.trial(1).asked


def test_without_its_time_metric_nobody_knows_how_far_a_trial_is(lab: Laboratory) -> None:
    """A step is not taken for an epoch: a trial would be through at its first validation."""
    lab.open(make_spec(max_time=10, time_metric="epochs"))
    lab.validate(1, 5000, 0.5)
    assert lab.trial(1).asked and "'epochs'" in lab.view.detail and "it reported: loss" in lab.view.detail
    lab.validate(1, 6000, 0.5, epochs=10.0)
    assert not lab.trial(1).asked


def test_larger_may_be_better(lab: Laboratory) -> None:
    lab.open(make_spec(smaller_is_better=False, metric="accuracy"))
    lab.validate(1, 1, accuracy=0.2)
    lab.validate(1, 2, accuracy=0.8)
    lab.validate(1, 3, accuracy=0.5)
    assert (lab.view.best, lab.view.best_step, lab.trial_row(1).last) == (0.8, 2, 0.5)
    assert best_of(lab.own).value == 0.8


def test_nan_and_infinity_are_no_numbers(lab: Laboratory) -> None:
    lab.open(make_spec())
    lab.validate(1, 1, math.nan)
    assert not lab.view.has_best and not lab.trial_row(1).has_last
    lab.validate(1, 2, -math.inf)
    assert not lab.view.has_best
    for table, _ in lab.table:
        assert table in ("experiments", "trials", "workloads")
    values = [value for row in lab.table.values() for value in msgspec.to_builtins(row).values()]
    assert all(math.isfinite(value) for value in values if isinstance(value, float))
    assert [row.value for row in lab.rows("workloads")] == ["n0", "nan", "-inf"]


def test_a_missing_metric_is_told_once_and_ends_a_search_that_needs_it(lab: Laboratory) -> None:
    lab.open(make_spec())
    lab.validate(1, 1, accuracy=0.5, f1=0.1)
    text = "validation of trial 1 reported no number called 'loss'; it reported: accuracy, f1"
    assert lab.view.detail == text and lab.exp.state is ExperimentState.ACTIVE
    lab.ends(lab.task(1))
    assert lab.view.state == "completed" and lab.view.detail == text

    other = Laboratory().open(make_spec(Asha(max_trials=4, num_rungs=2), max_time=16))
    other.validate(2, 4, accuracy=0.5)
    assert other.exp.state is ExperimentState.STOPPING
    assert all(trial.state is TrialState.STOPPING for trial in other.exp.trials.values() if trial.live)
    for number in list(other.exp.live):
        if other.placed(other.task(number)):
            other.leaves(other.task(number))
    assert other.view.state == "failed" and "of trial 2 reported no number called 'loss'" in other.view.detail
    finish(other)

    timed = Laboratory().open(make_spec(Asha(max_trials=4, num_rungs=2), max_time=16, time_metric="epochs"))
    timed.validate(2, 4, 0.5)
    assert timed.exp.state is ExperimentState.STOPPING and "by which this search counts time" in timed.view.detail


def test_an_earlier_epoch_is_not_listened_to(lab: Laboratory) -> None:
    lab.open(make_spec())
    task = lab.task(1)
    lab.validate(1, 1, 0.5)
    lab.breaks(task)
    assert lab.trial(1).state is TrialState.QUEUED or lab.placed(task)
    lab.up(task)
    lab.validate(1, 2, 0.4)
    lab.say(w.Validated(task, 1, 3, {"loss": 0.0}))
    lab.say(w.Validated(TaskId("e-1.1-2"), 2, 3, {"loss": 0.0}))
    lab.say(w.Validated(TaskId("e-1.9"), 2, 3, {"loss": 0.0}))
    lab.say(w.Validated(TaskId("other.1"), 2, 3, {"loss": 0.0}))
    assert lab.trial(1).steps == [1, 2] and lab.view.best == 0.4
    assert lab.steps(1) == ["start", "validate", "restart", "start", "validate"]
    finish(lab)


def test_a_trial_whose_restarts_are_used_up_fails_and_so_does_its_experiment(lab: Laboratory) -> None:
    lab.open(make_spec(max_restarts=1))
    task = lab.task(1)
    lab.ends(task, 1)
    assert lab.trial(1).restarts == 1 and lab.trial(1).live
    lab.ends(task, 1)
    assert lab.closed and lab.view.state == "failed" and lab.trial_row(1).state == "failed"
    assert lab.view.detail
    assert lab.steps(1) == ["start", "restart", "start", "end"]
    assert [told.state for told in lab.owed] == ["active", "failed"]
    finish(lab)


def test_some_failed_trials_do_not_fail_an_experiment(lab: Laboratory) -> None:
    lab.open(make_spec(RandomSearch(max_trials=3), max_restarts=0))
    lab.ends(lab.task(1), 1)
    lab.ends(lab.task(2))
    lab.ends(lab.task(3), 1)
    assert lab.closed and lab.view.state == "completed" and lab.view.trials_failed == 2
    finish(lab)


def test_what_the_door_refuses_fails_the_trial_with_its_words(lab: Laboratory) -> None:
    lab.open(make_spec(RandomSearch(max_trials=40, max_concurrent_trials=2), resources={"pool": "nowhere"}))
    assert lab.closed and lab.view.state == "failed"
    assert "nowhere" in lab.trial_row(40).detail
    finish(lab)


def test_invalid_hyperparameters_are_replaced(lab: Laboratory) -> None:
    lab.open(make_spec(RandomSearch(max_trials=2, max_concurrent_trials=1)))
    task = lab.up(lab.task(1))
    lab.say(w.EarlyExit(task, 1, "invalid_hp", "lr too large"))
    assert lab.trial(1).state is TrialState.STOPPING and lab.asked_to_leave(task)
    lab.ends(task, 1)
    assert lab.trial(1).state is TrialState.INVALID and lab.trial(1).detail == "lr too large"
    lab.ends(lab.task(2))
    lab.ends(lab.task(3))
    assert lab.closed and lab.view.state == "completed" and lab.view.trials == 3
    finish(lab)


def test_a_program_may_be_done_early(lab: Laboratory) -> None:
    lab.open(make_spec(max_time=100))
    task = lab.up(lab.task(1))
    lab.say(w.EarlyExit(task, 1, "done"))
    lab.ends(task)
    assert lab.view.state == "completed" and lab.trial_row(1).state == "completed"
    assert lab.steps(1) == ["train dropped", "start", "end"]
    finish(lab)


def test_a_preemption_takes_its_place_among_workloads(lab: Laboratory) -> None:
    lab.open(make_spec())
    task = lab.up(lab.task(1))
    lab.validate(1, 1, 0.5)
    lab.say(w.PauseExperiment())
    lab.leaves(task)
    lab.say(w.ResumeExperiment())
    lab.validate(1, 2, 0.4)
    assert lab.steps(1) == ["start", "validate", "preempt", "start", "validate"]
    assert next(row for row in lab.rows("workloads") if row.kind == "preempt").value == "paused"


def test_a_pause_holds_back_what_would_begin(lab: Laboratory) -> None:
    lab.open(make_spec(RandomSearch(max_trials=4, max_concurrent_trials=2)))
    first = lab.up(lab.task(1))
    lab.up(lab.task(2))
    lab.say(w.PauseExperiment())
    lab.say(w.PauseExperiment())
    assert lab.exp.state is ExperimentState.PAUSED and lab.trial(1).state is TrialState.PAUSED
    lab.ends(first)  # exit 0 without a word: it is done
    assert lab.trial(1).state is TrialState.COMPLETED
    assert list(lab.exp.trials) == [1, 2] and [one.action for one in lab.exp.deferred] == ["make"]
    lab.leaves(lab.task(2))
    assert lab.held_slots() == 0 and lab.state.tasks[lab.task(2)].state is TaskState.PAUSED
    lab.check_refold()
    lab.say(w.ResumeExperiment())
    assert list(lab.exp.trials) == [1, 2, 3] and not lab.exp.deferred
    assert lab.placed(lab.task(2)) and lab.placed(lab.task(3))
    assert [told.state for told in lab.owed] == ["active", "paused", "active"]
    finish(lab)


def test_made_paused_it_makes_nothing(lab: Laboratory) -> None:
    lab.open(make_spec(RandomSearch(max_trials=2), max_time=10), paused=True)
    assert not lab.exp.trials and lab.view.state == "paused"
    assert [one.action for one in lab.exp.deferred] == ["make", "train", "make", "train"]
    lab.say(w.ResumeExperiment())
    assert [trial.length for trial in lab.exp.trials.values()] == [10, 10]
    finish(lab)


def test_cancel_lets_trials_leave_and_kill_does_not_wait(lab: Laboratory) -> None:
    lab.open(make_spec(RandomSearch(max_trials=20, max_concurrent_trials=10)))
    lab.up(lab.task(1))
    lab.up(lab.task(2))
    lab.say(w.CancelExperiment())
    assert lab.exp.state is ExperimentState.STOPPING and lab.asked_to_leave(lab.task(1))
    assert lab.trial(10).state is TrialState.CANCELLED  # it was only queued
    lab.say(w.CancelExperiment())
    lab.leaves(lab.task(1))
    lab.say(w.KillExperiment())
    assert lab.closed and lab.view.state == "cancelled" and lab.view.trials == 10
    assert {row.state for row in lab.rows("trials")} == {"cancelled"}
    assert [told.state for told in lab.owed] == ["active", "cancelled"]
    finish(lab)


def test_one_trial_may_be_stopped(lab: Laboratory) -> None:
    lab.open(make_spec(RandomSearch(max_trials=3, max_concurrent_trials=1)))
    lab.up(lab.task(1))
    lab.say(w.StopTrial(1))
    lab.say(w.StopTrial(1))
    lab.leaves(lab.task(1))
    assert lab.trial(1).state is TrialState.CANCELLED
    lab.up(lab.task(2))
    lab.say(w.StopTrial(2, kill=True))
    assert lab.trial(2).state is TrialState.CANCELLED
    lab.ends(lab.task(3))
    assert lab.view.state == "completed"
    finish(lab)


def test_output_rules_label_forbid_and_exclude(lab: Laboratory) -> None:
    rules = (
        OutputRule(name="oom", pattern="OOM", action=RuleAction.CANCEL_RETRIES),
        OutputRule(name="ecc", pattern="ECC", action=RuleAction.EXCLUDE_NODE),
        OutputRule(name="seen", pattern="x"),
    )
    lab.open(make_spec(output_rules=rules, max_restarts=9))
    task = lab.up(lab.task(1))
    for rule in ("seen", "ecc", "oom", "oom", "unknown"):
        lab.say(w.Matched(task, 1, "n0", rule, "a line"))
    assert lab.state.tasks[task].excluded == ("n0",) and lab.state.tasks[task].final
    assert lab.trial_row(1).labels == ",seen,ecc,oom,"
    told = [(each.told, each.trial, each.state, each.detail) for each in lab.owed if each.event == "matched"]
    assert told == [(f"matched:{rule}", 1, "active", "a line") for rule in ("seen", "ecc", "oom")]
    lab.ends(task, 1)
    assert lab.closed and lab.view.state == "failed" and lab.trial_row(1).restarts == 0
    finish(lab)


def test_metadata_is_laid_over(lab: Laboratory) -> None:
    lab.open(make_spec())
    lab.say(w.SetMetadata("e-1.1", {"a": 1, "b": {"c": 2}}))
    lab.say(w.SetMetadata("e-1.1", {"a": None, "d": [1]}))
    assert msgspec.json.decode(lab.trial_row(1).metadata) == {"b": {"c": 2}, "d": [1]}


def test_a_lower_bound_lets_the_newest_save_themselves_and_wait_a_higher_one_lets_them_run(lab: Laboratory) -> None:
    lab.open(make_spec(RandomSearch(max_trials=5, max_concurrent_trials=5)))
    assert lab.held_slots() == 5
    for number in range(1, 6):
        lab.validate(number, 1, 1.0)
    lab.say(w.EditExperiment(max_slots=2))
    assert [lab.asked_to_leave(lab.task(number)) for number in range(1, 6)] == [False, False, True, True, True]
    for number in (3, 4, 5):
        lab.checkpoint(number, 1)
        lab.leaves(lab.task(number))
    assert [lab.trial(number).state for number in range(1, 6)] == ["running"] * 2 + ["queued"] * 3
    assert lab.held_slots() == 2 and lab.steps(3)[-1] == "preempt"
    lab.say(w.EditExperiment(max_slots=4))
    assert lab.held_slots() == 4 and [lab.trial(3).state, lab.trial(4).state] == ["running"] * 2
    lab.ends(lab.task(1))
    assert lab.held_slots() == 4, "the last one takes the place"
    lab.say(w.EditExperiment(max_slots=0))
    lab.say(w.EditExperiment(max_slots=4))
    assert not any(lab.asked_to_leave(lab.task(number)) for number in range(2, 6)), "four fit"
    finish(lab)


def test_trials_that_may_not_be_preempted_keep_their_slots(lab: Laboratory) -> None:
    lab.open(make_spec(RandomSearch(max_trials=3, max_concurrent_trials=3), preemptible=False))
    lab.say(w.EditExperiment(max_slots=1))
    assert not any(lab.asked_to_leave(lab.task(number)) for number in (1, 2, 3)) and lab.held_slots() == 3
    finish(lab)
