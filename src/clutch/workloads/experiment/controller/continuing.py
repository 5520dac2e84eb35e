"""More work for an experiment that is over, and runs that nobody schedules: both bring ended trials back to life."""

from __future__ import annotations

from clutch.core import controller as c
from clutch.wire import experiment_words as w
from clutch.wire.errors import BadRequest, Conflict, NotFound
from clutch.wire.experiments import Custom, ExperimentState, Single, Tpe, TrialState, trial_task
from clutch.wire.ids import TaskId
from clutch.workloads.experiment.controller import tasks
from clutch.workloads.experiment.controller.ending import move
from clutch.workloads.experiment.controller.own import Own, Wishes, wish
from clutch.workloads.experiment.controller.reports import run_began
from clutch.workloads.experiment.controller.searching import (
    HOW,
    begin_searcher,
    carry_out,
    latest,
    train,
    trial_over,
)
from clutch.workloads.experiment.machine import notes as n
from clutch.workloads.experiment.machine.experiment import Experiment
from clutch.workloads.experiment.machine.trial import Trial
from clutch.workloads.experiment.search import base as s


def continue_experiment(own: Own, said: w.ContinueExperiment, now: float) -> Wishes:
    exp = own.exp
    if not exp.ended:
        raise Conflict(
            f"it is {exp.state}", object=f"experiment {exp.experiment}", next_step="Only one that is over is continued."
        )
    if exp.spec.detached:
        raise Conflict(
            "nobody schedules it", object=f"experiment {exp.experiment}", next_step="Start its program again."
        )
    if exp.cleanups:
        raise Conflict(
            "its files are being tidied", object=f"experiment {exp.experiment}", next_step="Try again in a moment."
        )
    chosen = _chosen(exp, said)
    if not chosen and not said.max_trials:
        raise Conflict(
            "none of its trials failed or was cancelled",
            object=f"experiment {exp.experiment}",
            next_step="Name the trials to continue, or say a greater max_trials or max_time.",
        )
    have = len(exp.trials) - exp.counts.get(TrialState.INVALID, 0)
    if not chosen and said.max_trials <= have and hasattr(exp.spec.search.method, "max_trials"):
        raise Conflict(
            f"it has {have} trials already",
            object=f"experiment {exp.experiment}",
            next_step=f"Say max_trials {have + 1} or more, or name the trials to continue.",
            path="max_trials",
        )
    yield from _go_on(own, chosen, said, now)


def _chosen(exp: Experiment, said: w.ContinueExperiment) -> tuple[int, ...]:
    for number in said.trials:
        if number not in exp.trials:
            raise NotFound(
                f"there is no trial {number}",
                object=f"experiment {exp.experiment}",
                next_step=f"'clutch trial list {exp.experiment}' shows those there are.",
            )
    if said.trials:
        return tuple(dict.fromkeys(said.trials))
    if isinstance(exp.spec.search.method, Single):
        return tuple(exp.trials)
    again = [TrialState.FAILED, TrialState.CANCELLED]
    if said.max_time > exp.max_time and not isinstance(exp.spec.search.method, Custom | Tpe):
        again.append(TrialState.COMPLETED)  # what was trained to the old length is trained to the new one
    return tuple(number for number, trial in exp.trials.items() if trial.state in again)


def _go_on(own: Own, chosen: tuple[int, ...], said: w.ContinueExperiment, now: float) -> Wishes:
    """Trials live again before the search's actions are carried out, since it asks them for more."""
    exp = own.exp
    event = s.Extended(max_trials=said.max_trials, max_time=said.max_time, trials=chosen)
    untold, actions = _search_goes_on(own, event)
    yield wish(n.Extended(now, said.max_time, said.max_restarts))
    yield from move(own, ExperimentState.ACTIVE, now, "continued")
    yield from begin_searcher(own)
    for number in untold:
        yield wish(n.ExitTold(number))
    for number in chosen:
        trial = exp.trials[number]
        unfinished = trial.length if trial.length > trial.done else 0
        task = trial.task if exp.spec.detached else trial_task(exp.experiment, number, trial.attempt + 1)
        warm_start = latest(exp, trial) or trial.warm_start
        yield wish(n.TrialContinued(number, task, {**trial.hparams, **said.hparams}, now, warm_start))
        if not exp.spec.detached:
            yield c.Create(TaskId(task), tasks.trial_spec(exp, trial))
        if unfinished:
            yield from train(own, trial, unfinished, now)
    yield from carry_out(own, actions, now)


def _search_goes_on(own: Own, event: s.Extended) -> tuple[list[int], list[s.Action]]:
    """What the search wants when it hears that there is more. It may refuse: nothing has happened yet.

    It hears first of trials that ended when it was asked nothing any more. That this is the end, as it may say then, is
    not so. Its state is a value, so all this is thought through before any of it is done.
    """
    state, method = own.search, own.method
    untold = [trial for trial in own.exp.trials.values() if not trial.heard]
    wanted: list[s.Action] = []
    missed: list[s.Event] = [s.Exited(trial.number, HOW[trial.state]) for trial in untold]
    for news in [*missed, event]:
        for action in method.decide(state, news):
            if isinstance(action, s.Remember):
                state = method.apply(state, action.fact)
            if not isinstance(action, s.Over) or news is event:
                wanted.append(action)
    return [trial.number for trial in untold], wanted


# -- detached runs ------------------------------------------------------------------------------------------------


def _detached(own: Own) -> Trial:
    trial = own.exp.trials.get(1)
    if not own.exp.spec.detached or trial is None:
        raise BadRequest("it is not detached", object=f"experiment {own.exp.experiment}")
    return trial


def detached_began(own: Own, said: w.DetachedBegan, now: float) -> Wishes:
    """A new epoch. One that had ended goes on, as the same trial and task."""
    trial = _detached(own)
    exp = own.exp
    if exp.state in (ExperimentState.DELETING, ExperimentState.STOPPING):
        raise Conflict(f"it is {exp.state}", object=f"experiment {exp.experiment}")
    if exp.ended:
        yield from _go_on(own, (trial.number,), w.ContinueExperiment(), now)
    yield from run_began(own, trial, trial.epoch + 1, (), now)


def detached_saved(own: Own, said: w.DetachedSaved, now: float) -> Wishes:
    trial = _detached(own)
    if said.epoch != trial.epoch or said.checkpoint in own.exp.checkpoints:
        return
    yield wish(
        n.Saved(
            trial.number, said.checkpoint, trial.task, said.epoch, said.step, trial.rows + 1, now,
            said.size_bytes, said.storage,
        )
    )  # fmt: skip


def detached_ended(own: Own, said: w.DetachedEnded, now: float) -> Wishes:
    trial = _detached(own)
    if said.epoch != trial.epoch or not trial.live:
        return
    state = TrialState.FAILED if said.failed else ENDED_WELL.get(trial.end or "", TrialState.COMPLETED)
    yield from trial_over(own, trial, state, now, said.detail)


ENDED_WELL = {"stop": TrialState.STOPPED, "invalid": TrialState.INVALID}
