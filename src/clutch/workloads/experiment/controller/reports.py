"""What trials say: validations, finished operations, early exits, metadata, lines that matched a rule.

Only the current epoch of a trial's current task is listened to, except for its metadata. Whatever is repeated, late or
of an earlier epoch changes nothing and is no error: its sender could not know.
"""

from __future__ import annotations

import math

from clutch.core import controller as c
from clutch.wire import experiment_words as w
from clutch.wire.errors import BadRequest, NotFound
from clutch.wire.experiments import (
    AdaptiveAsha,
    Asha,
    Custom,
    Pbt,
    RuleAction,
    Tpe,
    TrialState,
    trial_of,
)
from clutch.wire.ids import NodeId, TaskId
from clutch.wire.library import MATCHED
from clutch.workloads.experiment.controller.ending import news
from clutch.workloads.experiment.controller.own import Own, Wishes, wish
from clutch.workloads.experiment.controller.searching import complete, end_trial, feed, search_over
from clutch.workloads.experiment.machine import notes as n
from clutch.workloads.experiment.machine.experiment import Experiment
from clutch.workloads.experiment.machine.notes import End
from clutch.workloads.experiment.machine.trial import Trial
from clutch.workloads.experiment.search import base as s

NEED_THE_METRIC = (Asha, AdaptiveAsha, Pbt, Tpe)
"""Searches that can decide nothing without it."""


def trial_named(exp: Experiment, task: str) -> Trial | None:
    """The trial that a task runs or ran; None: it is no trial of this experiment."""
    found = trial_of(task)
    trial = exp.trials.get(found[1]) if found is not None and found[0] == exp.experiment else None
    return trial if trial is not None and task in trial.tasks else None


def _speaking(own: Own, task: str, epoch: int, now: float) -> Wishes:
    """Whoever speaks in a later epoch than is known has begun it."""
    trial = trial_named(own.exp, task)
    if trial is not None and trial.task == task and trial.live and epoch > trial.epoch:
        yield from run_began(own, trial, epoch, (), now)


def _heard(own: Own, task: str, epoch: int) -> Trial | None:
    """The trial, if this is its current task and epoch."""
    trial = trial_named(own.exp, task)
    return trial if trial is not None and trial.task == task and trial.epoch == epoch else None


def run_began(own: Own, trial: Trial, epoch: int, nodes: tuple[str, ...], now: float) -> Wishes:
    yield wish(n.RunStarted(trial.number, epoch, trial.rows + 1, now, nodes))
    if trial.state is TrialState.QUEUED:
        yield wish(n.TrialMoved(trial.number, TrialState.RUNNING))
    elif trial.state in (TrialState.IDLE, TrialState.PAUSED) and not own.exp.spec.detached:
        yield c.Pause(TaskId(trial.task))  # somebody else has resumed it: it still has nothing to do


# -- validations and operations -----------------------------------------------------------------------------------


def validated(own: Own, said: w.Validated, now: float) -> Wishes:
    if not own.exp.spec.detached:
        yield from _speaking(own, said.task, said.epoch, now)
    trial = _heard(own, said.task, said.epoch)
    if trial is None or trial.validated(said.step):
        return
    search = own.exp.spec.search
    shown = said.values.get(search.metric)
    value = _signed(own.exp, shown)
    known = said.values.get(search.time_metric, math.nan) if search.time_metric else float(said.step)
    time = known if math.isfinite(known) else 0.0  # a step is no epoch: it is not known how far it is
    text = "" if shown is None else repr(shown)
    at = said.at or now
    yield wish(n.ValidationHeard(trial.number, said.step, time, value, said.epoch, trial.rows + 1, at, text))
    if shown is None:
        yield from _metric_missing(own, trial, said, now)
    elif not math.isfinite(known) and (trial.asked or search.max_time):
        yield from _metric_missing(own, trial, said, now, search.time_metric)
    if not trial.live:  # it came in late: it counts, and there is nothing to decide any more
        return
    completes = bool(trial.asked) and trial.asked[0].length <= time
    if not completes or isinstance(search.method, Custom | Tpe):  # a process may want to see every number
        yield from feed(own, s.Validated(trial.number, said.step, time, value, said.values), now)
    if completes:
        yield from complete(own, trial, time, value, now)


def _signed(exp: Experiment, value: float | None) -> float:
    """Smaller is better, and no number at all is worst."""
    if value is None or math.isnan(value):
        return math.inf
    return value if exp.spec.search.smaller_is_better else -value


def _metric_missing(own: Own, trial: Trial, said: w.Validated, now: float, time_metric: str = "") -> Wishes:
    exp = own.exp
    if exp.metric_missing:
        return
    reported = ", ".join(sorted(said.values)) or "nothing"
    called = f"{time_metric!r}, by which this search counts time" if time_metric else repr(exp.spec.search.metric)
    detail = f"validation of trial {trial.number} reported no number called {called}; it reported: {reported}"
    yield wish(n.Remarked(detail, metric_missing=True))
    if isinstance(exp.spec.search.method, NEED_THE_METRIC):
        yield from search_over(own, True, detail, now)


def operation_done(own: Own, said: w.OperationDone, now: float) -> Wishes:
    if not own.exp.spec.detached:
        yield from _speaking(own, said.task, said.epoch, now)
    trial = _heard(own, said.task, said.epoch)
    if trial is None or not trial.live or not trial.asked or trial.asked[0].length > said.length:
        return
    value = trial.last if said.value is None else _signed(own.exp, said.value)
    yield from complete(own, trial, float(said.length), value, now)


def early_exit(own: Own, said: w.EarlyExit, now: float) -> Wishes:
    if said.reason not in ("invalid_hp", "done"):
        raise BadRequest(
            f"{said.reason!r} is no reason to exit early", object=said.task, next_step="Say invalid_hp or done."
        )
    if not own.exp.spec.detached:
        yield from _speaking(own, said.task, said.epoch, now)
    trial = _heard(own, said.task, said.epoch)
    if trial is None:
        return
    end = End.INVALID if said.reason == "invalid_hp" else End.FINISH
    yield from end_trial(own, trial, end, now, said.detail or ("invalid hyperparameters" if end is End.INVALID else ""))


# -- the rest -----------------------------------------------------------------------------------------------------


def set_metadata(own: Own, said: w.SetMetadata, now: float) -> Wishes:
    trial = trial_named(own.exp, said.task)
    if trial is None:
        raise NotFound("no trial of this experiment has this task", object=f"task {said.task}")
    yield wish(n.MetadataSet(trial.number, said.metadata))


def matched(own: Own, said: w.Matched, now: float) -> Wishes:
    exp = own.exp
    rule = next((rule for rule in exp.spec.output_rules if rule.name == said.rule), None)
    trial = trial_named(exp, said.task)
    if rule is None or trial is None or trial.task != said.task or not trial.live:
        return
    node = said.node if rule.action is RuleAction.EXCLUDE_NODE else ""
    final = rule.action is RuleAction.CANCEL_RETRIES
    known = rule.name in trial.labels and (not node or node in trial.excluded) and (not final or trial.final)
    if known:
        return
    owed = exp.owed + 1
    yield wish(n.Labelled(trial.number, rule.name, node, final, owed))
    told = news(exp, exp.state, said.line, now, event=MATCHED, trial=trial.number, rule=rule.name)
    yield c.Owe(f"{exp.experiment}:{owed}", w.WEBHOOK, told)
    if final:
        yield c.ForbidRestarts(TaskId(trial.task))
    if node:
        yield c.Exclude(TaskId(trial.task), NodeId(node))


def search_answered(own: Own, said: w.SearchAnswered, now: float) -> Wishes:
    yield from feed(own, s.Answered(said.cursor, said.operations, said.state), now)
