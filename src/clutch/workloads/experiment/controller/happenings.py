"""What happens to an experiment's tasks: they begin, leave, fail, save checkpoints, end, or are refused."""

from __future__ import annotations

from clutch.core import controller as c
from clutch.wire.experiments import Step, TrialState
from clutch.wire.outcomes import EndReason, Verdict
from clutch.wire.schedule import PreemptReason
from clutch.workloads.experiment.controller.own import Own, Wishes, wish
from clutch.workloads.experiment.controller.reports import run_began, trial_named
from clutch.workloads.experiment.controller.searching import ENDS, search_over, trial_over
from clutch.workloads.experiment.machine import notes as n
from clutch.workloads.experiment.machine.notes import End
from clutch.workloads.experiment.machine.trial import Trial


def began(own: Own, happening: c.RunBegan, now: float) -> Wishes:
    trial = trial_named(own.exp, happening.task)
    if trial is not None and trial.task == happening.task and happening.epoch > trial.epoch:
        yield from run_began(own, trial, happening.epoch, happening.nodes, now)


def run_ended(own: Own, happening: c.RunEnded, now: float) -> Wishes:
    trial = trial_named(own.exp, happening.task)
    if trial is None or trial.task != happening.task or happening.epoch < trial.epoch:
        return
    if happening.epoch > trial.epoch:  # it began and ended before anybody said a word
        yield from run_began(own, trial, happening.epoch, (), now)
    step = _interruption(own, trial, happening)
    row = trial.rows + 1 if step else 0
    why = happening.asked or happening.detail or happening.verdict
    yield wish(n.RunOver(trial.number, happening.epoch, happening.failures, now, row, step, why))
    if trial.state is TrialState.RUNNING:
        yield wish(n.TrialMoved(trial.number, TrialState.QUEUED))


def _interruption(own: Own, trial: Trial, happening: c.RunEnded) -> str:
    """What the end of an allocation was to its trial; empty: not an interruption, but its end."""
    if trial.end is not None or happening.asked in (PreemptReason.STOPPED, PreemptReason.CANCELLED):
        return ""
    match happening.verdict:
        case Verdict.LEFT | Verdict.EVICTED:
            return Step.PREEMPT
        case Verdict.INFRASTRUCTURE:
            return Step.RESTART
        case Verdict.FAILED:
            last = trial.final or happening.failures > own.exp.max_restarts
            return "" if last else Step.RESTART
        case _:
            return ""


def saved(own: Own, happening: c.CheckpointSaved, now: float) -> Wishes:
    trial = trial_named(own.exp, happening.task)
    if trial is None or happening.checkpoint in own.exp.checkpoints:
        return
    if trial.task == happening.task and trial.live and happening.epoch > trial.epoch:
        yield from run_began(own, trial, happening.epoch, (), now)
    yield wish(
        n.Saved(
            trial.number, happening.checkpoint, happening.task, happening.epoch, happening.step, trial.rows + 1, now,
            happening.size_bytes, happening.storage,
        )
    )  # fmt: skip


# -- ends ---------------------------------------------------------------------------------------------------------


def task_ended(own: Own, happening: c.TaskEnded, now: float) -> Wishes:
    exp, task = own.exp, happening.task
    if task in exp.cleanups:
        yield wish(n.CleanupEnded(task, happening.reason is EndReason.DONE))
    elif task == exp.searcher:
        yield from _searcher_ended(own, happening.reason, happening.detail, now)
    else:
        trial = trial_named(exp, task)
        if trial is not None and trial.task == task:
            state = _after(trial, happening.reason)
            yield from trial_over(own, trial, state, now, happening.detail if state is TrialState.FAILED else "")


def _after(trial: Trial, reason: EndReason) -> TrialState:
    """What a trial becomes when its task has ended. First match wins: a program that refused its hyperparameters is
    invalid however it went, one that ended by itself is complete unless the search had stopped it."""
    if trial.end is End.INVALID:
        return TrialState.INVALID
    match reason:
        case EndReason.DONE:
            return TrialState.STOPPED if trial.end is End.STOP else TrialState.COMPLETED
        case EndReason.STOPPED:
            return ENDS[trial.end] if trial.end is not None else TrialState.STOPPED
        case EndReason.CANCELLED | EndReason.KILLED:
            return TrialState.CANCELLED
        case EndReason.FAILED:
            return TrialState.FAILED


def refused(own: Own, happening: c.Refused, now: float) -> Wishes:
    exp, task = own.exp, happening.task
    if task in exp.cleanups:
        yield wish(n.CleanupEnded(task, well=False))
    elif task == exp.searcher:
        yield from _searcher_ended(own, EndReason.FAILED, happening.detail, now)
    else:
        trial = trial_named(exp, task)
        if trial is not None and trial.task == task:
            yield from trial_over(own, trial, TrialState.FAILED, now, happening.detail)


def _searcher_ended(own: Own, reason: EndReason, detail: str, now: float) -> Wishes:
    """Nobody is left to ask what comes next."""
    yield wish(n.SearcherEnded())
    if reason is EndReason.DONE:
        yield from search_over(own, False, "its search process has ended", now)
    else:
        why = f"its search process ended: {detail or reason}"
        yield from search_over(own, True, why, now)
