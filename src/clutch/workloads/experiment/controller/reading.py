"""What others may ask of an experiment that lives, without changing it."""

from __future__ import annotations

import math

from clutch.wire.errors import NotFound
from clutch.wire.experiment_api import BestValidation, OperationView
from clutch.wire.experiments import Custom, Tpe, TrialState
from clutch.workloads.experiment.controller.own import Own
from clutch.workloads.experiment.controller.reports import trial_named


def operation_of(own: Own, task: str) -> OperationView:
    """What a trial shall do next. A trial of which nothing more will be asked is over once it has done the rest."""
    trial = trial_named(own.exp, task)
    if trial is None:
        raise NotFound("no trial of this experiment has this task", object=f"task {task}")
    unit = own.exp.spec.search.unit
    gone = not trial.live or trial.task != task or trial.end is not None or trial.state is TrialState.STOPPING
    if gone:
        return OperationView(state="over", done=trial.done, unit=unit)
    if trial.asked:
        return OperationView(state="train", length=trial.asked[0].length, done=trial.done, unit=unit)
    may_be_asked = trial.length or isinstance(own.exp.spec.search.method, Custom | Tpe)
    waits = may_be_asked and not (trial.finishing or own.exp.over)
    return OperationView(state="wait" if waits else "over", done=trial.done, unit=unit)


def best_of(own: Own) -> BestValidation:
    """The best value of the search metric so far, as it was reported."""
    exp = own.exp
    if not math.isfinite(exp.best):
        return BestValidation(found=False)
    value = exp.best if exp.spec.search.smaller_is_better else -exp.best
    return BestValidation(found=True, value=value, trial=exp.best_trial, step=exp.best_step)
