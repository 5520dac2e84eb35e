"""How an experiment moves on and ends: its states, whom it tells of them, its clean-ups, and being put away."""

from __future__ import annotations

from typing import Any

import msgspec

from clutch.core import controller as c
from clutch.wire.experiment_words import RELEASE, WEBHOOK, ExperimentNews, Release, holder_of
from clutch.wire.experiments import ExperimentState, TrialState
from clutch.wire.ids import TaskId
from clutch.workloads.experiment.controller import tasks
from clutch.workloads.experiment.controller.own import Own, Wishes, wish
from clutch.workloads.experiment.controller.searching import take_up
from clutch.workloads.experiment.controller.sources import foreign
from clutch.workloads.experiment.machine import notes as n
from clutch.workloads.experiment.machine.experiment import Experiment
from clutch.workloads.experiment.machine.retention import candidates, superfluous

PATIENCE_S = 60.0
"""So long one that was opened again waits for what it is wanted for."""


def settle(own: Own, now: float) -> Wishes:
    """Whatever follows by itself from how things are now. Asked after everything that happens."""
    exp = own.exp
    yield from take_up(own, now)
    living = exp.state in (ExperimentState.ACTIVE, ExperimentState.PAUSED)
    if living and exp.over and not exp.live and not exp.has_more:
        yield wish(n.Moved(ExperimentState.STOPPING, now, exp.reason))
    if exp.state is ExperimentState.STOPPING and not exp.live and not exp.has_more:
        yield from _end(own, now)
    if exp.ended and not exp.tidied:
        yield from tidy(own, now)
    if exp.ended and not exp.cleanups:
        yield wish(n.Closing(now))
        yield c.Close(f"{exp.state}")
    elif exp.state is ExperimentState.DELETING and exp.forgotten and not exp.cleanups:
        yield wish(n.Removed())
        yield c.Close("deleted")


def _end(own: Own, now: float) -> Wishes:
    """All trials are over: the search's process leaves, superfluous files go, then it is history."""
    exp = own.exp
    if exp.searcher:
        if not exp.searcher_leaves:
            yield wish(n.SearcherStopped())
            yield c.Stop(TaskId(exp.searcher))
        return
    if not exp.tidied:
        yield from tidy(own, now)
    if not exp.cleanups:
        state, detail = outcome(exp)
        yield from move(own, state, now, detail)
        for number, source in enumerate(foreign(own)):
            release = Release(source, holder_of(exp.experiment))
            token = f"{exp.experiment}:{exp.owed}:release" + (f"-{number}" if number else "")
            yield c.Owe(token, RELEASE, msgspec.msgpack.encode(release))


def outcome(exp: Experiment) -> tuple[ExperimentState, str]:
    """What it becomes, and why. Failed only if its search is or no trial is of use; cancelled only if its user did."""
    counts = exp.counts
    some = sum(counts.values())
    if exp.cancelled or (some and counts.get(TrialState.CANCELLED, 0) == some):
        return ExperimentState.CANCELLED, "" if exp.cancelled else exp.reason
    failed = counts.get(TrialState.FAILED, 0)
    invalid = counts.get(TrialState.INVALID, 0)
    if some and failed + invalid == some:
        detail = f"all {some} trials failed" if not invalid else f"{failed} trials failed, {invalid} were invalid"
        return ExperimentState.FAILED, _with_last_failure(exp, exp.reason if exp.failed and exp.reason else detail)
    if exp.failed:
        return ExperimentState.FAILED, exp.reason
    if some > 1 and not exp.validations and not exp.reason:
        metric = exp.spec.search.metric
        return ExperimentState.COMPLETED, (
            f"no trial reported a validation, so none is the best: call run.validate(step, {metric}=...)"
        )
    return ExperimentState.COMPLETED, exp.reason


def _with_last_failure(exp: Experiment, detail: str) -> str:
    """Also why the last of them failed: most often all of them have the same reason."""
    trial = next((one for one in reversed(exp.trials.values()) if one.detail), None)
    return detail if trial is None else f"{detail}; trial {trial.number}: {trial.detail}"


def move(own: Own, state: ExperimentState, now: float, detail: str = "") -> Wishes:
    """Into another state, and whoever wants to hear of it will."""
    exp = own.exp
    owed = exp.owed + 1
    yield wish(n.Moved(state, now, detail, owed))
    yield c.Owe(f"{exp.experiment}:{owed}", WEBHOOK, news(exp, state, detail, now))


def news(exp: Experiment, state: ExperimentState, detail: str, now: float, **more: Any) -> bytes:
    """What webhooks are told."""
    told = ExperimentNews(
        experiment=exp.experiment,
        name=exp.name,
        workspace=exp.spec.workspace,
        project=exp.project,
        owner=exp.spec.owner,
        state=state,
        detail=detail,
        at=now,
        webhooks=exp.spec.webhooks,
        **more,
    )
    return msgspec.msgpack.encode(told)


# -- files --------------------------------------------------------------------------------------------------------


def tidy(own: Own, now: float) -> Wishes:
    """Remove what retention does not keep."""
    exp = own.exp
    yield wish(n.Tidied())
    yield from remove(own, superfluous(candidates(exp), exp.retention), now)
    if exp.cleanups and exp.state is ExperimentState.STOPPING:
        count = sum(len(cleanup.checkpoints) for cleanup in exp.cleanups.values())
        yield wish(n.Remarked(f"removing the files of {count} checkpoints"))


def remove(own: Own, checkpoints: list[str], now: float, globs: tuple[str, ...] = ()) -> Wishes:
    """Have the files of these removed, by as many tasks as it takes."""
    exp = own.exp
    for first in range(0, len(checkpoints), tasks.CLEANUP_ITEMS_MAX):
        some = tuple(checkpoints[first : first + tasks.CLEANUP_ITEMS_MAX])
        spec = tasks.cleanup_spec(exp, some, globs)
        task = tasks.cleanup_task(exp)
        yield wish(n.CleanupBegan(task, some, now, globs))
        yield c.Create(TaskId(task), spec)
