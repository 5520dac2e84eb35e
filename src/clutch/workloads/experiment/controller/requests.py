"""What its user wants of an experiment. What cannot be done is refused before anything is done."""

from __future__ import annotations

from clutch.core import controller as c
from clutch.wire import experiment_words as w
from clutch.wire.errors import BadRequest, Conflict, NotFound
from clutch.wire.experiments import ExperimentState, TrialState
from clutch.wire.ids import TaskId
from clutch.wire.push import METADATA_MAX
from clutch.wire.specs import PRIORITIES
from clutch.workloads.experiment.controller.ending import move, remove
from clutch.workloads.experiment.controller.own import Own, Wishes, wish
from clutch.workloads.experiment.controller.searching import end_trial, latest, wake
from clutch.workloads.experiment.controller.sources import awaited
from clutch.workloads.experiment.machine import notes as n
from clutch.workloads.experiment.machine.experiment import Experiment
from clutch.workloads.experiment.machine.notes import End
from clutch.workloads.experiment.machine.trial import WHOLE, Checkpoint

State = ExperimentState
NAME_MAX, LABEL_MAX, LABELS_MAX, DESCRIPTION_MAX, NOTES_MAX = 200, 100, 100, 10_000, 100_000
"""As in a configuration."""


def _refuse(exp: Experiment, cause: str, next_step: str) -> Conflict:
    return Conflict(cause, object=f"experiment {exp.experiment}", next_step=next_step)


# -- pausing and ending -------------------------------------------------------------------------------------------


def pause(own: Own, said: w.PauseExperiment, now: float) -> Wishes:
    exp = own.exp
    if exp.state is State.PAUSED:
        return
    if exp.state is not State.ACTIVE:
        raise _refuse(exp, f"it is {exp.state}", "Only an active experiment is paused.")
    if exp.spec.detached:
        raise _refuse(exp, "nobody schedules it", "Stop its program where it runs.")
    yield from move(own, State.PAUSED, now)
    for number in list(exp.live):
        trial = exp.trials[number]
        if trial.state in (TrialState.QUEUED, TrialState.RUNNING):
            yield wish(n.TrialMoved(number, TrialState.PAUSED))
            yield c.Pause(TaskId(trial.task))


def resume(own: Own, said: w.ResumeExperiment, now: float) -> Wishes:
    exp = own.exp
    if exp.state is State.ACTIVE:
        return
    if exp.state is not State.PAUSED:
        raise _refuse(exp, f"it is {exp.state}", "Only a paused one is resumed; one that is over is continued.")
    yield from move(own, State.ACTIVE, now)
    for number in list(exp.live):
        if exp.trials[number].state is TrialState.PAUSED:
            yield from wake(own, exp.trials[number])
    if exp.over:
        yield wish(n.Moved(State.STOPPING, now, exp.reason))


def cancel(own: Own, said: w.CancelExperiment, now: float) -> Wishes:
    yield from _end(own, End.CANCEL, now)


def kill(own: Own, said: w.KillExperiment, now: float) -> Wishes:
    yield from _end(own, End.KILL, now)


def _end(own: Own, end: End, now: float) -> Wishes:
    """One that is over stays as it is; one whose last trials are leaving is cancelled with them."""
    exp = own.exp
    if exp.ended or exp.state is State.DELETING or (exp.state is State.STOPPING and not exp.live):
        return
    if not exp.cancelled:
        yield wish(n.Cancelled())
    if exp.state is not State.STOPPING:
        yield wish(n.Moved(State.STOPPING, now, "cancelled by its user"))
    for number in list(exp.live):
        yield from end_trial(own, exp.trials[number], end, now)
    if exp.searcher:
        if not exp.searcher_leaves:
            yield wish(n.SearcherStopped())
        yield c.Kill(TaskId(exp.searcher)) if end is End.KILL else c.Stop(TaskId(exp.searcher))


def stop_trial(own: Own, said: w.StopTrial, now: float) -> Wishes:
    trial = own.exp.trials.get(said.trial)
    if trial is None:
        raise NotFound(f"there is no trial {said.trial}", object=f"experiment {own.exp.experiment}")
    yield from end_trial(own, trial, End.KILL if said.kill else End.CANCEL, now)


# -- editing ------------------------------------------------------------------------------------------------------


def edit(own: Own, said: w.EditExperiment, now: float) -> Wishes:
    exp = own.exp
    _check_edit(exp, said)
    yield wish(n.Edited(said))
    if said.priority is not None:
        for number in exp.live:
            if not exp.spec.detached:
                yield c.SetPriority(TaskId(exp.trials[number].task), said.priority)
    if said.max_slots is not None and not exp.spec.detached:
        yield from _bound(exp)


def _bound(exp: Experiment) -> Wishes:
    """Every trial hears of the bound. Of those that run, the newest beyond it save themselves and wait."""
    slots = exp.spec.resources.slots
    room = exp.max_slots // slots if exp.max_slots and slots else len(exp.live)
    running = [number for number in exp.live if exp.trials[number].state is TrialState.RUNNING]
    beyond = running[room:] if exp.spec.preemptible else []
    for number in exp.live:
        yield c.SetMaxSlots(TaskId(exp.trials[number].task), exp.max_slots, number in beyond)


def _check_edit(exp: Experiment, said: w.EditExperiment) -> None:
    if exp.state is State.DELETING:
        raise _refuse(exp, "it is being deleted", "Nothing of it will be left.")
    if said.archived and not exp.ended:
        raise _refuse(exp, f"it is {exp.state}", "Archive it when it is over.")
    subject = f"experiment {exp.experiment}"
    if said.priority is not None and said.priority not in PRIORITIES:
        raise BadRequest(
            f"{said.priority} is not from 1 to 99", object=subject, next_step="1 is the most important.",
            path="priority",
        )  # fmt: skip
    _check_words(said, subject)
    slots = exp.spec.resources.slots
    if said.max_slots is not None and said.max_slots != 0 and said.max_slots < slots:
        raise BadRequest(
            f"each of its trials needs {slots} slots", object=subject, path="max_slots",
            next_step=f"Give at least {slots}, or 0 for no limit.",
        )  # fmt: skip
    for field in ("save_experiment_best", "save_trial_best", "save_trial_latest"):
        value = getattr(said, field)
        if value is not None and value < 0:
            raise BadRequest(f"{value} is below 0", object=subject, path=field, next_step="Give a count.")


def _check_words(said: w.EditExperiment, subject: str) -> None:
    """As a configuration says them."""
    if said.name is not None and not (said.name.strip() and said.name.isprintable() and len(said.name) <= NAME_MAX):
        raise BadRequest(
            f"{said.name[:80]!r} is not one line of at most {NAME_MAX} characters", object=subject, path="name",
            next_step="Write letters that can be printed.",
        )  # fmt: skip
    for label in said.labels or ():
        if "," in label or not label.strip() or not label.isprintable() or len(label) > LABEL_MAX:
            raise BadRequest(
                f"{label[:80]!r} is not a label", object=subject, path="labels",
                next_step=f"Write one line without commas, of at most {LABEL_MAX} characters.",
            )  # fmt: skip
    for field, most in (("labels", LABELS_MAX), ("description", DESCRIPTION_MAX), ("notes", NOTES_MAX)):
        if len(getattr(said, field) or ()) > most:
            raise BadRequest(f"it is longer than {most:,}", object=subject, path=field, next_step="Say less.")


# -- checkpoints --------------------------------------------------------------------------------------------------


def _checkpoints(exp: Experiment, names: tuple[str, ...]) -> list[Checkpoint]:
    missing = [name for name in names if name not in exp.checkpoints]
    if missing:
        raise NotFound(f"it has no checkpoint {', '.join(missing)}", object=f"experiment {exp.experiment}")
    return [exp.checkpoints[name] for name in dict.fromkeys(names)]


def pin(own: Own, said: w.PinCheckpoints, now: float) -> Wishes:
    found = _checkpoints(own.exp, said.checkpoints)
    gone = [one.checkpoint for one in found if said.hold and one.state not in WHOLE and said.by not in one.pins]
    if gone:
        raise Conflict(
            "its files are gone or going", object=f"checkpoint {', '.join(gone)}", next_step="Choose another one."
        )
    changed = tuple(one.checkpoint for one in found if (said.by in one.pins) is not said.hold)
    if changed:
        yield wish(n.Pinned(changed, said.by, said.hold))


def delete_checkpoints(own: Own, said: w.DeleteCheckpoints, now: float) -> Wishes:
    exp = own.exp
    found = _checkpoints(exp, said.checkpoints)
    for one in found:
        if one.pins:
            raise _pinned(one)
    needed = {name: number for number in exp.live if (name := _begins_from(exp, number))}
    wanted = awaited(own)
    for one in found:
        if one.checkpoint in needed or one.checkpoint in wanted:
            who = f"trial {needed[one.checkpoint]}" if one.checkpoint in needed else "a trial that its search wants"
            raise Conflict(
                f"{who} would go on from it",
                object=f"checkpoint {one.checkpoint}",
                next_step="Wait until the trial is over, or stop it.",
            )
    names = [one.checkpoint for one in found if one.state in WHOLE]
    if names:
        yield from remove(own, names, now, said.globs)


def describe(own: Own, said: w.DescribeCheckpoint, now: float) -> Wishes:
    exp = own.exp
    (one,) = _checkpoints(exp, (said.checkpoint,))
    if exp.state is State.DELETING:
        raise _refuse(exp, "it is being deleted", "Nothing of it will be left.")
    before = one.metadata if one.metadata is not None else said.base
    after = {name: word for name, word in {**before, **said.set}.items() if name not in said.remove}
    if len(after) > METADATA_MAX:
        raise BadRequest(
            f"it would have {len(after)} entries, at most {METADATA_MAX}",
            object=f"checkpoint {one.checkpoint}",
            path="metadata",
            next_step="Remove some, or put several into one.",
        )
    if after != before:
        yield wish(n.Described(one.checkpoint, after))


def _begins_from(exp: Experiment, number: int) -> str:
    """The checkpoint from which a trial's next start would go on."""
    trial = exp.trials[number]
    return latest(exp, trial) or trial.warm_start


def _pinned(one: Checkpoint) -> Conflict:
    return Conflict(
        f"it is held by {', '.join(one.pins)}",
        object=f"checkpoint {one.checkpoint}",
        next_step="Let it go there first.",
    )


# -- the end of everything ----------------------------------------------------------------------------------------


def delete(own: Own, said: w.DeleteExperiment, now: float) -> Wishes:
    exp = own.exp
    if exp.state is State.DELETING:
        return
    if not exp.ended:
        raise _refuse(exp, f"it is {exp.state}", "Cancel it first.")
    if exp.cleanups:
        raise _refuse(exp, "its files are being tidied", "Try again in a moment.")
    for one in exp.checkpoints.values():
        if one.pins and one.state in WHOLE:
            raise _pinned(one)
    yield wish(n.Moved(State.DELETING, now, "removing its files, metrics and output"))
    yield from remove(own, [one.checkpoint for one in exp.checkpoints.values() if one.state in WHOLE], now)


def forgotten(own: Own, said: w.Forgotten, now: float) -> Wishes:
    if own.exp.state is not State.DELETING:
        raise _refuse(own.exp, f"it is {own.exp.state}", "Only what is being deleted is forgotten.")
    if not own.exp.forgotten:
        yield wish(n.HeardForgotten())
