"""Rows for lists and pages: those that a few notes have changed, made of the notes and of the experiment after them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import msgspec

from clutch.wire.experiment_views import (
    CheckpointRow,
    ExperimentArchive,
    ExperimentView,
    TrialView,
    WorkloadView,
)
from clutch.wire.experiments import TRIAL_ENDED, CheckpointState, Step, TrialState
from clutch.wire.journal import Gone
from clutch.workloads.experiment.controller.own import Own
from clutch.workloads.experiment.machine import notes as n
from clutch.workloads.experiment.machine.experiment import Experiment
from clutch.workloads.experiment.machine.trial import Checkpoint, Trial

Row = ExperimentView | TrialView | WorkloadView | CheckpointRow | ExperimentArchive


def changed(own: Own, facts: list[n.Fact]) -> Iterator[Row | Gone]:
    """Each changed row once, as it is now."""
    exp = own.exp
    if any(isinstance(fact, n.Removed) for fact in facts):
        yield from _all_gone(exp)
        return
    trials: dict[int, None] = {}
    checkpoints: dict[str, None] = {}
    workloads: dict[str, WorkloadView] = {}
    for fact in facts:
        if isinstance(fact, n.OfTrial):
            trials[fact.trial] = None
            row = _workload(exp, fact)
            if row is not None:
                workloads[row.key] = row
        checkpoints.update(dict.fromkeys(_checkpoints(exp, fact)))
    yield experiment_view(own)
    yield from (trial_view(exp, exp.trials[number]) for number in trials)
    yield from (checkpoint_row(exp, exp.checkpoints[name]) for name in checkpoints)
    yield from workloads.values()


def _all_gone(exp: Experiment) -> Iterator[Gone]:
    yield Gone(ExperimentView.table, exp.experiment)
    yield Gone(ExperimentArchive.table, exp.experiment)
    for trial in exp.trials.values():
        key = trial_key(exp, trial)
        yield Gone(TrialView.table, key)
        yield from (Gone(WorkloadView.table, _workload_key(key, number)) for number in range(1, trial.rows + 1))
    yield from (Gone(CheckpointRow.table, name) for name in exp.checkpoints)


def _checkpoints(exp: Experiment, fact: n.Fact) -> Iterable[str]:
    match fact:
        case n.Saved(checkpoint=checkpoint):
            return (checkpoint,)
        case n.CleanupBegan(checkpoints=checkpoints) | n.Pinned(checkpoints=checkpoints):
            return checkpoints
        case n.CleanupEnded():  # what it was about is known no more; it is rare
            return (name for name, one in exp.checkpoints.items() if one.state not in (CheckpointState.COMMITTED,))
        case n.ValidationHeard(trial=number, step=step):
            mine = exp.trials[number].checkpoints
            return (name for name in mine if exp.checkpoints[name].step >= step)
        case _:
            return ()


# -- one row each -------------------------------------------------------------------------------------------------


def trial_key(exp: Experiment, trial: Trial) -> str:
    return f"{exp.experiment}.{trial.number}"


def words(labels: Iterable[str]) -> str:
    """With commas before, between and behind them."""
    joined = ",".join(labels)
    return f",{joined}," if joined else ""


def _number(exp: Experiment, value: float) -> tuple[bool, float]:
    """Whether there is one, and it as it was reported."""
    if not math.isfinite(value):
        return False, 0.0
    return True, value if exp.spec.search.smaller_is_better else -value


def experiment_view(own: Own) -> ExperimentView:
    exp = own.exp
    spec = exp.spec
    counts = exp.counts
    has_best, best = _number(exp, exp.best)
    progress = 1.0 if exp.ended else own.method.progress(own.search)
    return ExperimentView(
        key=exp.experiment,
        name=exp.name,
        owner=spec.owner,
        workspace=spec.workspace,
        project=exp.project,
        state=exp.state,
        detail=exp.detail,
        description=exp.description,
        labels=words(exp.labels),
        notes=exp.notes,
        archived=exp.archived,
        method=str(spec.search.method.__struct_config__.tag),
        metric=spec.search.metric,
        smaller_is_better=spec.search.smaller_is_better,
        has_best=has_best,
        best=best,
        best_trial=exp.best_trial,
        best_step=exp.best_step,
        best_checkpoint=_best_checkpoint(exp),
        trials=len(exp.trials),
        trials_running=counts.get(TrialState.RUNNING, 0),
        trials_ended=sum(counts.get(state, 0) for state in TRIAL_ENDED),
        trials_failed=counts.get(TrialState.FAILED, 0),
        progress=min(1.0, max(0.0, progress)) if math.isfinite(progress) else 0.0,
        priority=exp.priority,
        max_slots=exp.max_slots,
        parent=spec.parent,
        seed=spec.seed,
        submitted_at=exp.submitted_at,
        ended_at=exp.ended_at,
    )


def _best_checkpoint(exp: Experiment) -> str:
    """The whole one of the best trial with the best value; of equal ones the first, as retention keeps them."""
    trial = exp.trials.get(exp.best_trial)
    if trial is None:
        return ""
    best, found = math.inf, ""
    for name in trial.checkpoints:
        one = exp.checkpoints[name]
        if one.state is not CheckpointState.COMMITTED:
            continue
        known = trial.value_at(one.step)
        value = known[0] if known is not None else math.inf
        if not found or value < best:
            best, found = value, name
    return found


def trial_view(exp: Experiment, trial: Trial) -> TrialView:
    has_best, best = _number(exp, trial.best)
    has_last, last = _number(exp, trial.last)
    checkpoint = exp.checkpoints[trial.checkpoints[-1]] if trial.checkpoints else None
    return TrialView(
        key=trial_key(exp, trial),
        experiment=exp.experiment,
        trial=trial.number,
        task=trial.task,
        state=trial.state,
        detail=trial.detail,
        labels=words(trial.labels),
        hparams=msgspec.json.encode(trial.hparams).decode(),
        seed=trial.seed,
        restarts=_restarts(exp, trial),
        epoch=trial.epoch,
        has_best=has_best,
        best=best,
        best_step=trial.best_step,
        has_last=has_last,
        last=last,
        last_step=trial.last_step,
        length=trial.length,
        checkpoint=checkpoint.checkpoint if checkpoint else "",
        checkpoint_step=checkpoint.step if checkpoint else 0,
        metadata=msgspec.json.encode(trial.metadata).decode(),
        workspace=exp.spec.workspace,
        began_at=trial.began_at,
        ended_at=trial.ended_at,
    )


def _restarts(exp: Experiment, trial: Trial) -> int:
    """How often it began again; of so many failures, the one that ended it was followed by none."""
    failures = trial.restarts
    last = trial.state is TrialState.FAILED and (trial.final or failures > exp.max_restarts)
    return max(0, failures - last)


def checkpoint_row(exp: Experiment, one: Checkpoint) -> CheckpointRow:
    trial = exp.trials[one.trial]
    known = trial.value_at(one.step)
    has_value, value = _number(exp, known[0]) if known is not None else (False, 0.0)
    return CheckpointRow(
        key=one.checkpoint,
        experiment=exp.experiment,
        trial=trial_key(exp, trial),
        task=one.task,
        workspace=exp.spec.workspace,
        step=one.step,
        epoch=one.epoch,
        state=one.state,
        size_bytes=one.size_bytes,
        storage=one.storage,
        has_value=has_value,
        value=value,
        pins=words(one.pins),
        committed_at=one.at,
    )


# -- workloads ----------------------------------------------------------------------------------------------------


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What a note says about one row."""

    number: int
    kind: str
    step: int = 0
    length: int = 0
    epoch: int = 0
    state: str = "done"
    value: str = ""
    at: float
    done_at: float = 0.0


def _workload_key(trial: str, number: int) -> str:
    return f"{trial}/{number:06d}"


def _workload(exp: Experiment, fact: n.OfTrial) -> WorkloadView | None:
    entry = _entry(fact)
    if entry is None or not entry.number:
        return None
    key = trial_key(exp, exp.trials[fact.trial])
    return WorkloadView(
        key=_workload_key(key, entry.number),
        trial=key,
        experiment=exp.experiment,
        number=entry.number,
        kind=entry.kind,
        step=entry.step,
        length=entry.length,
        epoch=entry.epoch,
        state=entry.state,
        value=entry.value,
        at=entry.at,
        done_at=entry.done_at or (entry.at if entry.state == "done" else 0.0),
    )


def _entry(fact: n.OfTrial) -> Entry | None:
    match fact:
        case n.Asked():
            return Entry(
                number=fact.row, kind=Step.TRAIN, length=fact.length, epoch=fact.epoch, state="asked", at=fact.at
            )
        case n.OperationOver():
            return Entry(
                number=fact.row, kind=Step.TRAIN, step=fact.step, length=fact.length, epoch=fact.epoch,
                state="done" if fact.done else "dropped", at=fact.asked_at, done_at=fact.at,
            )  # fmt: skip
        case n.ValidationHeard():
            return Entry(
                number=fact.row, kind=Step.VALIDATE, step=fact.step, epoch=fact.epoch, value=fact.shown, at=fact.at
            )
        case n.Saved():
            return Entry(
                number=fact.row, kind=Step.CHECKPOINT, step=fact.step, epoch=fact.epoch, value=fact.checkpoint,
                at=fact.at,
            )  # fmt: skip
        case n.RunStarted():
            return Entry(number=fact.row, kind=Step.START, epoch=fact.epoch, value=",".join(fact.nodes), at=fact.at)
        case n.RunOver():
            return Entry(number=fact.row, kind=fact.step, epoch=fact.epoch, value=fact.why, at=fact.at)
        case n.EndWished():
            return Entry(
                number=fact.row, kind=Step.STOP, step=fact.step, epoch=fact.epoch, value=fact.detail, at=fact.at
            )
        case n.TrialOver():
            return Entry(number=fact.row, kind=Step.END, step=fact.step, epoch=fact.epoch, value=fact.state, at=fact.at)
        case _:
            return None
