"""How an experiment's notes change it. Each handler only writes down what its note says; the tables check the moves."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import msgspec

from clutch.wire.experiments import TRIAL_ENDED, CheckpointState, Retention, TrialState
from clutch.workloads.experiment.machine import experiment as experiments
from clutch.workloads.experiment.machine import notes as n
from clutch.workloads.experiment.machine import trial as trials
from clutch.workloads.experiment.machine.experiment import Cleanup, Experiment
from clutch.workloads.experiment.machine.trial import Ask, Checkpoint, Trial


def fold(exp: Experiment, fact: n.Fact) -> None:
    """Let a note be so. What the search method remembers is its own business, and folded beside this."""
    handler = OF_TRIAL.get(type(fact))
    if handler is None:
        OF_EXPERIMENT[type(fact)](exp, fact)
        return
    handler(exp, exp.trials[fact.trial], fact)  # type: ignore[union-attr]  # every handler there is of a trial's note


# -- the experiment -----------------------------------------------------------------------------------------------


def _began(exp: Experiment, fact: n.Began) -> None:
    exp.submitted_at = fact.at


def _moved(exp: Experiment, fact: n.Moved) -> None:
    if fact.state is not exp.state:  # its first word repeats the state it begins in
        exp.state = experiments.TABLE.move(exp.state, fact.state, exp.experiment)
    exp.detail = fact.detail
    exp.owed = max(exp.owed, fact.owed)
    exp.ended_at = fact.at if exp.ended else 0.0


def _remarked(exp: Experiment, fact: n.Remarked) -> None:
    exp.detail = fact.detail
    if fact.metric_missing:
        exp.metric_missing, exp.reason = True, fact.detail


def _search_over(exp: Experiment, fact: n.SearchOver) -> None:
    exp.over = True
    exp.failed = fact.failed
    exp.reason = fact.detail or exp.reason


def _cancelled(exp: Experiment, fact: n.Cancelled) -> None:
    exp.cancelled = exp.over = True


def _edited(exp: Experiment, fact: n.Edited) -> None:
    edit = fact.edit
    for field in ("name", "description", "notes", "labels", "project", "archived", "priority", "max_slots"):
        value = getattr(edit, field)
        if value is not None:
            setattr(exp, field, value)
    kept = {field: value for field in Retention.__struct_fields__ if (value := getattr(edit, field, None)) is not None}
    if kept:
        exp.retention = msgspec.structs.replace(exp.retention, **kept)
        exp.tidied = False


def _extended(exp: Experiment, fact: n.Extended) -> None:
    exp.cancelled = exp.failed = exp.tidied = exp.searcher_leaves = exp.archived = False
    exp.over, exp.reason = False, ""
    exp.max_time = max(exp.max_time, fact.max_time)
    if fact.max_restarts >= 0:
        exp.max_restarts = fact.max_restarts


def _deferred(exp: Experiment, fact: n.Deferred) -> None:
    exp.deferred.append(fact)


def _deferred_taken(exp: Experiment, fact: n.DeferredTaken) -> None:
    exp.deferred.pop(0)


def _searcher_began(exp: Experiment, fact: n.SearcherBegan) -> None:
    exp.searcher = fact.task
    exp.searchers += 1


def _searcher_stopped(exp: Experiment, fact: n.SearcherStopped) -> None:
    exp.searcher_leaves = True


def _searcher_ended(exp: Experiment, fact: n.SearcherEnded) -> None:
    exp.searcher = ""


def _tidied(exp: Experiment, fact: n.Tidied) -> None:
    exp.tidied = True


def _cleanup_began(exp: Experiment, fact: n.CleanupBegan) -> None:
    exp.cleanups[fact.task] = Cleanup(fact.checkpoints, fact.globs)
    exp.cleanups_made += 1
    for name in fact.checkpoints:
        _move(exp.checkpoints[name], CheckpointState.DELETING)


def _cleanup_ended(exp: Experiment, fact: n.CleanupEnded) -> None:
    cleanup = exp.cleanups.pop(fact.task)
    after = CheckpointState.DELETED if fact.well else CheckpointState.LOST
    for name in cleanup.checkpoints:
        checkpoint = exp.checkpoints[name]
        checkpoint.removed = [*checkpoint.removed, *(glob for glob in cleanup.globs if glob not in checkpoint.removed)]
        _move(checkpoint, CheckpointState.PARTIAL if cleanup.globs else after)


def _move(checkpoint: Checkpoint, state: CheckpointState) -> None:
    checkpoint.state = trials.CHECKPOINTS.move(checkpoint.state, state, f"checkpoint {checkpoint.checkpoint}")


def _pinned(exp: Experiment, fact: n.Pinned) -> None:
    for name in fact.checkpoints:
        others = [by for by in exp.checkpoints[name].pins if by != fact.by]
        exp.checkpoints[name].pins = [*others, fact.by] if fact.hold else others


def _described(exp: Experiment, fact: n.Described) -> None:
    exp.checkpoints[fact.checkpoint].metadata = fact.metadata


def _heard_forgotten(exp: Experiment, fact: n.HeardForgotten) -> None:
    exp.forgotten = True


def _nothing(exp: Experiment, fact: n.Fact) -> None:
    """It shows in rows only."""


# -- its trials ---------------------------------------------------------------------------------------------------


def _trial_made(exp: Experiment, fact: n.TrialMade) -> None:
    exp.trials[fact.trial] = Trial(
        number=fact.trial,
        hparams=fact.hparams,
        seed=fact.seed,
        task=fact.task,
        tasks=[fact.task],
        request=fact.request,
        warm_start=fact.warm_start,
    )
    exp.live[fact.trial] = True
    _count(exp, TrialState.QUEUED, 1)


def _count(exp: Experiment, state: TrialState, by: int) -> None:
    exp.counts[state] = exp.counts.get(state, 0) + by


def _set_state(exp: Experiment, trial: Trial, state: TrialState) -> None:
    moved = trials.TABLE.move(trial.state, state, f"{exp.experiment}.{trial.number}")
    _count(exp, trial.state, -1)
    _count(exp, moved, 1)
    trial.state = moved
    if moved in TRIAL_ENDED:
        exp.live.pop(trial.number, None)
    else:
        exp.live[trial.number] = True


def _trial_continued(exp: Experiment, trial: Trial, fact: n.TrialContinued) -> None:
    _set_state(exp, trial, TrialState.QUEUED)
    if fact.task != trial.task:  # a detached one goes on as the same, in its next epoch
        trial.task = fact.task
        trial.tasks.append(fact.task)
        trial.epoch = 0
    trial.hparams = fact.hparams
    trial.warm_start = fact.warm_start
    trial.end, trial.detail, trial.ended_at = None, "", 0.0
    trial.restarts = 0
    trial.final = trial.finishing = trial.running = trial.heard = False
    trial.length = trial.done


def _trial_moved(exp: Experiment, trial: Trial, fact: n.TrialMoved) -> None:
    _set_state(exp, trial, fact.state)


def _trial_over(exp: Experiment, trial: Trial, fact: n.TrialOver) -> None:
    _set_state(exp, trial, fact.state)
    trial.rows = max(trial.rows, fact.row)
    trial.detail = fact.detail
    trial.ended_at = fact.at
    trial.running = False
    trial.heard = fact.told


def _end_wished(exp: Experiment, trial: Trial, fact: n.EndWished) -> None:
    trial.end = fact.end
    trial.rows = max(trial.rows, fact.row)
    trial.detail = fact.detail or trial.detail


def _finishing(exp: Experiment, trial: Trial, fact: n.Finishing) -> None:
    trial.finishing = True


def _asked(exp: Experiment, trial: Trial, fact: n.Asked) -> None:
    trial.asked.append(Ask(fact.length, fact.row, fact.at))
    trial.asked.sort(key=lambda ask: (ask.length, ask.row))
    trial.length = max(trial.length, fact.length)
    trial.rows = max(trial.rows, fact.row)


def _operation_over(exp: Experiment, trial: Trial, fact: n.OperationOver) -> None:
    trial.asked = [ask for ask in trial.asked if ask.row != fact.row]
    if fact.done:
        trial.done = max(trial.done, fact.length)


def _run_started(exp: Experiment, trial: Trial, fact: n.RunStarted) -> None:
    trial.epoch = fact.epoch
    trial.running = True
    trial.rows = max(trial.rows, fact.row)
    trial.began_at = trial.began_at or fact.at


def _run_over(exp: Experiment, trial: Trial, fact: n.RunOver) -> None:
    trial.running = False
    trial.restarts = fact.failures
    trial.rows = max(trial.rows, fact.row)


def _validation_heard(exp: Experiment, trial: Trial, fact: n.ValidationHeard) -> None:
    exp.validations += 1
    place = bisect_left(trial.steps, fact.step)
    trial.steps.insert(place, fact.step)
    trial.values.insert(place, fact.value)
    trial.orders.insert(place, exp.validations)
    trial.rows = max(trial.rows, fact.row)
    trial.time = max(trial.time, fact.time)
    if place == len(trial.steps) - 1:
        trial.last, trial.last_step = fact.value, fact.step
    if math.isinf(fact.value):
        return
    if fact.value < trial.best:
        trial.best, trial.best_step = fact.value, fact.step
    if fact.value < exp.best:
        exp.best, exp.best_trial, exp.best_step = fact.value, trial.number, fact.step


def _saved(exp: Experiment, trial: Trial, fact: n.Saved) -> None:
    exp.checkpoints[fact.checkpoint] = Checkpoint(
        checkpoint=fact.checkpoint,
        trial=trial.number,
        task=fact.task,
        epoch=fact.epoch,
        step=fact.step,
        order=len(exp.checkpoints) + 1,
        at=fact.at,
        size_bytes=fact.size_bytes,
        storage=fact.storage,
    )
    trial.checkpoints.append(fact.checkpoint)
    trial.rows = max(trial.rows, fact.row)


def _labelled(exp: Experiment, trial: Trial, fact: n.Labelled) -> None:
    if fact.label not in trial.labels:
        trial.labels.append(fact.label)
    if fact.node and fact.node not in trial.excluded:
        trial.excluded.append(fact.node)
    trial.final = trial.final or fact.final
    exp.owed = max(exp.owed, fact.owed)


def _metadata_set(exp: Experiment, trial: Trial, fact: n.MetadataSet) -> None:
    merged = {**trial.metadata, **fact.metadata}
    trial.metadata = {key: value for key, value in merged.items() if value is not None}


def _exit_told(exp: Experiment, trial: Trial, fact: n.ExitTold) -> None:
    trial.heard = True


OF_EXPERIMENT: dict[type[n.Fact], Callable[[Experiment, Any], None]] = {
    n.Began: _began,
    n.Moved: _moved,
    n.Remarked: _remarked,
    n.Remembered: _nothing,
    n.SearchOver: _search_over,
    n.Cancelled: _cancelled,
    n.Edited: _edited,
    n.Extended: _extended,
    n.Deferred: _deferred,
    n.DeferredTaken: _deferred_taken,
    n.SearcherBegan: _searcher_began,
    n.SearcherStopped: _searcher_stopped,
    n.SearcherEnded: _searcher_ended,
    n.Tidied: _tidied,
    n.CleanupBegan: _cleanup_began,
    n.CleanupEnded: _cleanup_ended,
    n.Pinned: _pinned,
    n.Described: _described,
    n.HeardForgotten: _heard_forgotten,
    n.Removed: _nothing,
    n.Closing: _nothing,
    n.TrialMade: _trial_made,
}

OF_TRIAL: dict[type[n.Fact], Callable[[Experiment, Trial, Any], None]] = {
    n.TrialContinued: _trial_continued,
    n.TrialMoved: _trial_moved,
    n.TrialOver: _trial_over,
    n.EndWished: _end_wished,
    n.Finishing: _finishing,
    n.Asked: _asked,
    n.OperationOver: _operation_over,
    n.RunStarted: _run_started,
    n.RunOver: _run_over,
    n.ValidationHeard: _validation_heard,
    n.Saved: _saved,
    n.Labelled: _labelled,
    n.MetadataSet: _metadata_set,
    n.ExitTold: _exit_told,
}
