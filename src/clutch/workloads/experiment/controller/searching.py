"""Between an experiment and its search method: what happened goes in, actions come out and are carried out.

While the experiment is paused, what would begin a trial is remembered, and carried out in order when it is resumed.
"""

from __future__ import annotations

from collections.abc import Iterable

from clutch.core import controller as c
from clutch.wire.experiments import (
    CheckpointState,
    Custom,
    ExperimentState,
    Tpe,
    TrialState,
    trial_task,
)
from clutch.wire.ids import TaskId
from clutch.wire.schedule import PreemptReason
from clutch.workloads.experiment.controller import tasks
from clutch.workloads.experiment.controller.own import Own, Wishes, wish
from clutch.workloads.experiment.machine import notes as n
from clutch.workloads.experiment.machine.experiment import Experiment
from clutch.workloads.experiment.machine.notes import End
from clutch.workloads.experiment.machine.trial import Trial
from clutch.workloads.experiment.search import base as s
from clutch.workloads.experiment.search.sampling import trial_seed

# -- telling it ---------------------------------------------------------------------------------------------------


def feed(own: Own, event: s.Event, now: float) -> Wishes:
    """Tell the search method, and carry out what it wants."""
    if own.exp.over:
        return
    yield from carry_out(own, own.method.decide(own.search, event), now)


def carry_out(own: Own, actions: Iterable[s.Action], now: float) -> Wishes:
    """In order; what it remembers is folded before its next action is taken. A length that a trial is beyond already
    is done at once, when all the rest is."""
    asked: list[int] = []
    for action in actions:
        if isinstance(action, s.Train):
            asked.append(action.trial)
        yield from _act(own, action, now)
    for number in asked:
        trial = own.exp.trials.get(number)
        if trial is not None and trial.epoch and trial.asked and trial.asked[0].length <= trial.time:
            yield from complete(own, trial, trial.time, trial.last, now)


def _act(own: Own, action: s.Action, now: float) -> Wishes:
    match action:
        case s.Remember(fact):
            yield wish(n.Remembered(fact))
        case s.Over(failed, detail):
            yield from search_over(own, failed, detail, now)
        case s.Make() | s.Train() | s.Stop() | s.Finish():
            later = _later(action)
            if _waits(own.exp, later):
                yield wish(later)
            else:
                yield from begin(own, later, now)


def _later(action: s.Make | s.Train | s.Stop | s.Finish) -> n.Deferred:
    match action:
        case s.Make(trial, hparams, from_trial, from_checkpoint, request):
            return n.Deferred("make", trial, 0, hparams, from_trial, from_checkpoint, request)
        case s.Train(trial, length):
            return n.Deferred("train", trial, length)
        case s.Stop(trial):
            return n.Deferred("stop", trial)
        case s.Finish(trial):
            return n.Deferred("finish", trial)


def _waits(exp: Experiment, later: n.Deferred) -> bool:
    if later.action == "make":
        return exp.state is ExperimentState.PAUSED or bool(exp.deferred)
    return later.trial not in exp.trials


def take_up(own: Own, now: float) -> Wishes:
    """Carry out what was deferred, as far as it may begin now."""
    exp = own.exp
    while exp.has_more and exp.state in (ExperimentState.ACTIVE, ExperimentState.STOPPING):
        later = exp.deferred[0]
        yield wish(n.DeferredTaken())
        yield from begin(own, later, now)


def begin(own: Own, later: n.Deferred, now: float) -> Wishes:
    if later.action == "make":
        yield from _make(own, later, now)
        return
    trial = own.exp.trials.get(later.trial)
    if trial is None or not trial.live:
        return
    if later.action == "train":
        yield from train(own, trial, later.length, now)
    elif later.action == "stop":
        yield from end_trial(own, trial, End.STOP, now)
    else:
        yield wish(n.Finishing(trial.number))
        if trial.length and not trial.asked:
            yield from end_trial(own, trial, End.FINISH, now)


def _make(own: Own, later: n.Deferred, now: float) -> Wishes:
    exp = own.exp
    if later.trial in exp.trials:
        return
    source = exp.trials.get(later.from_trial)
    warm_start = later.from_checkpoint or (latest(exp, source) if source else "") or exp.spec.search.source_checkpoint
    task = trial_task(exp.experiment, later.trial)
    seed = trial_seed(exp.spec.seed, later.trial)
    yield wish(n.TrialMade(later.trial, task, later.hparams, seed, now, warm_start, later.request))
    if not exp.spec.detached:
        yield c.Create(TaskId(task), tasks.trial_spec(exp, exp.trials[later.trial]))


def latest(exp: Experiment, trial: Trial) -> str:
    """The last whole checkpoint of a trial; empty: it has none."""
    for name in reversed(trial.checkpoints):
        if exp.checkpoints[name].state is CheckpointState.COMMITTED:
            return name
    return ""


# -- what a trial is asked ----------------------------------------------------------------------------------------


def train(own: Own, trial: Trial, length: int, now: float) -> Wishes:
    """Ask a trial to train up to a length; one that rests is waked."""
    if trial.end is not None or any(ask.length == length for ask in trial.asked):
        return
    yield wish(n.Asked(trial.number, length, trial.rows + 1, now, trial.epoch))
    if trial.state is TrialState.IDLE:
        yield from wake(own, trial)


def wake(own: Own, trial: Trial) -> Wishes:
    """A trial that holds nothing may run again, unless its experiment is paused: then it waits with the others."""
    if own.exp.state is ExperimentState.PAUSED:
        yield wish(n.TrialMoved(trial.number, TrialState.PAUSED))
        return
    yield wish(n.TrialMoved(trial.number, TrialState.RUNNING if trial.running else TrialState.QUEUED))
    if not own.exp.spec.detached:
        yield c.Resume(TaskId(trial.task))


def complete(own: Own, trial: Trial, upto: float, value: float, now: float) -> Wishes:
    """A trial has come so far: whatever it was asked up to there is done, and the search hears of each."""
    for ask in list(trial.asked):
        if ask.length > upto or not trial.live:
            break
        step = trial.last_step
        yield wish(n.OperationOver(trial.number, ask.length, ask.row, True, ask.at, now, trial.epoch, step))
        yield from feed(own, s.Trained(trial.number, ask.length, value), now)
    yield from _rest(own, trial, now)


def _rest(own: Own, trial: Trial, now: float) -> Wishes:
    """Nothing is left to do: it ends if nothing more will come, else it gives its slots back and waits."""
    if not trial.live or trial.end is not None or trial.asked or trial.state is TrialState.IDLE:
        return
    if trial.finishing or own.exp.over:
        yield from end_trial(own, trial, End.FINISH, now)
        return
    yield wish(n.TrialMoved(trial.number, TrialState.IDLE))
    if not own.exp.spec.detached:
        yield c.Pause(TaskId(trial.task))


def end_trial(own: Own, trial: Trial, end: End, now: float, detail: str = "") -> Wishes:
    """Ask a trial to leave for good. A second wish counts only where it is its user's and harsher."""
    harsher = end in (End.CANCEL, End.KILL) and trial.end not in (End.CANCEL, End.KILL, None)
    if not trial.live or not (trial.end is None or harsher or (end is End.KILL and trial.end is End.CANCEL)):
        return
    row = trial.rows + 1 if end is End.STOP else 0
    yield wish(n.EndWished(trial.number, end, now, row, trial.epoch, trial.last_step, detail))
    if trial.state is not TrialState.STOPPING:
        yield wish(n.TrialMoved(trial.number, TrialState.STOPPING))
    if own.exp.spec.detached:
        if not trial.running or end in (End.CANCEL, End.KILL):  # nobody could be asked, or waited for
            yield from trial_over(own, trial, ENDS[end], now, detail)
    elif end is End.KILL:
        yield c.Kill(TaskId(trial.task))
    else:
        reason = PreemptReason.CANCELLED if end is End.CANCEL else PreemptReason.STOPPED
        yield c.Stop(TaskId(trial.task), reason)


ENDS = {
    End.STOP: TrialState.STOPPED,
    End.FINISH: TrialState.COMPLETED,
    End.INVALID: TrialState.INVALID,
    End.CANCEL: TrialState.CANCELLED,
    End.KILL: TrialState.CANCELLED,
}
HOW = {
    TrialState.COMPLETED: s.How.COMPLETED,
    TrialState.STOPPED: s.How.STOPPED,
    TrialState.CANCELLED: s.How.CANCELLED,
    TrialState.FAILED: s.How.FAILED,
    TrialState.INVALID: s.How.INVALID,
}


def trial_over(own: Own, trial: Trial, state: TrialState, now: float, detail: str = "") -> Wishes:
    """It has ended: what it was asked and did not do is dropped, and the search hears of it, unless that is over."""
    if not trial.live:
        return
    for ask in list(trial.asked):
        step = trial.last_step
        yield wish(n.OperationOver(trial.number, ask.length, ask.row, False, ask.at, now, trial.epoch, step))
    tell = not own.exp.over
    detail = detail or trial.detail
    yield wish(n.TrialOver(trial.number, state, trial.rows + 1, now, trial.epoch, trial.last_step, detail, tell))
    if tell:
        yield from feed(own, s.Exited(trial.number, HOW[state]), now)


# -- the search itself --------------------------------------------------------------------------------------------


def search_over(own: Own, failed: bool, detail: str, now: float) -> Wishes:
    """No more is asked of anybody. Trials that rest end; the others do what they were asked, unless it failed."""
    if own.exp.over:
        return
    yield wish(n.SearchOver(failed, detail))
    if own.exp.state is ExperimentState.ACTIVE:
        yield wish(n.Moved(ExperimentState.STOPPING, now, detail))
    for number in list(own.exp.live):
        trial = own.exp.trials[number]
        if failed:
            yield from end_trial(own, trial, End.STOP, now)
        elif trial.state is TrialState.IDLE:
            yield from end_trial(own, trial, End.FINISH, now)


def needs_process(exp: Experiment) -> bool:
    """Whether its search method runs in a process of its own, as a task of the experiment."""
    method = exp.spec.search.method
    return isinstance(method, Tpe) or (isinstance(method, Custom) and bool(method.argv))


def begin_searcher(own: Own) -> Wishes:
    if needs_process(own.exp) and not own.exp.searcher:
        spec = tasks.searcher_spec(own.exp)
        task = tasks.searcher_task(own.exp)
        yield wish(n.SearcherBegan(task))
        yield c.Create(TaskId(task), spec)
