"""Experiments and trials as people look at them: details, curves, what they wait for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from clutch.core.state import State
from clutch.master.details import use_of, waiting_of
from clutch.master.sentences import awaited, of_live
from clutch.master.services import Services
from clutch.runtime.checkpoint_select import any_of
from clutch.wire.api import WhyTask
from clutch.wire.errors import BadRequest, NotFound
from clutch.wire.experiment_api import CheckpointDetail, ExperimentDetail, MetricSummary, TrialDetail
from clutch.wire.experiment_views import CheckpointRow, ExperimentArchive, ExperimentView, TrialView
from clutch.wire.experiments import (
    KIND,
    ROLE,
    Custom,
    ExperimentState,
    Storage,
    Tpe,
    trial_of,
    trial_task,
)
from clutch.wire.ids import MemberId, TaskId
from clutch.wire.metrics import LatestValue, MetricsQuery, Series, SeriesPoint, spoken
from clutch.wire.push import CheckpointFile
from clutch.workloads.experiment.machine.experiment import Experiment
from clutch.workloads.experiment.service.own import archived, exp_in

SILENT_SEARCH_S = 60.0
TRIALS_SHOWN = 200
"""Of an experiment's trials, so many are explained one by one."""


async def own_of(services: Services, experiment: str) -> Experiment:
    """An experiment's own state, live or from its archive. ``NotFound`` when it is nowhere."""
    workload = (await services.loop.settled()).workloads.get(experiment)
    if workload is not None and workload.kind == KIND:
        return exp_in(workload.own)
    archive = await services.journal.view(ExperimentArchive.table, experiment)
    if not isinstance(archive, ExperimentArchive):
        raise NotFound("it is neither live nor archived", object=f"experiment {experiment}")
    return archived(archive.payload)


async def experiment_detail(services: Services, view: ExperimentView) -> ExperimentDetail:
    spec = (await own_of(services, view.key)).spec
    best = await services.journal.view(TrialView.table, f"{view.key}.{view.best_trial}") if view.has_best else None
    return ExperimentDetail(
        view=view,
        config=_object(spec.config),
        source=spec.source,
        code=spec.program.code,
        best=best if isinstance(best, TrialView) else None,
    )


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text) if text else {}
    return found if isinstance(found, dict) else {}


def tasks_of(view: TrialView) -> tuple[TaskId, ...]:
    """Every task that has run a trial, the first first."""
    _, _, attempt = view.task.rpartition(".")[2].partition("-")
    last = int(attempt) if attempt.isdecimal() else 1
    return tuple(TaskId(trial_task(view.experiment, view.trial, number)) for number in range(1, last + 1))


async def trial_detail(services: Services, view: TrialView) -> TrialDetail:
    progress = services.push.progress_of(TaskId(view.task))
    live = (await services.loop.settled()).tasks.get(TaskId(view.task))
    if live is not None and not view.detail:
        view = msgspec.structs.replace(view, detail=live.trouble)
    return TrialDetail(
        view=view,
        hparams=_object(view.hparams),
        metadata=_object(view.metadata),
        tasks=tasks_of(view),
        progress=progress.fraction if progress is not None else 0.0,
        message=progress.message if progress is not None else "",
        summaries=await trial_summaries(services, view),
    )


# -- metrics ------------------------------------------------------------------------------------------------------


async def trial_series(services: Services, view: TrialView, query: MetricsQuery) -> list[Series]:
    """What a trial reported, over all the tasks that ran it, in their order."""
    found: list[Series] = []
    for task in tasks_of(view):
        found += await services.metrics.series(msgspec.structs.replace(query, task=task))
    return sorted(found, key=lambda series: (series.group, series.name))


async def trial_latest(services: Services, view: TrialView, group: str) -> list[LatestValue]:
    """The newest value of each metric; a later task's word counts before an earlier one's."""
    found: dict[tuple[str, str], LatestValue] = {}
    for task in tasks_of(view):
        for one in await services.metrics.latest(task, group):
            found[one.group, one.name] = one
    return [found[key] for key in sorted(found)]


async def trial_summaries(services: Services, view: TrialView) -> tuple[MetricSummary, ...]:
    """What is known of each metric over all the tasks of a trial, without reading a point."""
    found: dict[tuple[str, str], MetricSummary] = {}
    tasks = tasks_of(view)
    known = await services.metrics.summaries_many(tasks)
    for task in tasks:
        for one in known[task]:
            key = (one.group, one.name)
            found[key] = _together(found[key], one) if key in found else one
    return tuple(msgspec.structs.replace(found[key], last=spoken(found[key].last)) for key in sorted(found))


def _together(first: MetricSummary, later: MetricSummary) -> MetricSummary:
    count = first.count + later.count
    lows = [one.low for one in (first, later) if one.low is not None]
    highs = [one.high for one in (first, later) if one.high is not None]
    means = [(one.mean, one.count) for one in (first, later) if one.mean is not None]
    weight = sum(size for _, size in means)
    return MetricSummary(
        group=later.group,
        name=later.name,
        count=count,
        first_step=min(first.first_step, later.first_step),
        last_step=later.last_step,
        last=later.last,
        low=min(lows) if lows else None,
        high=max(highs) if highs else None,
        mean=sum(mean * size for mean, size in means) / weight if weight else None,
        at=later.at,
    )


async def curves(
    services: Services, trials: Sequence[TrialView], metric: tuple[str, str], points_max: int
) -> list[Series]:
    """One metric (group and name) of each trial by step, over all its starts; what was superseded is not in it."""
    group, name = metric
    tasks = [task for view in trials for task in tasks_of(view)]
    parts: dict[tuple[str, int], list[Series]] = {}
    for part in await services.metrics.series_many(tasks, group, name, points_max):
        found = trial_of(part.member.task)
        if found is not None and (part.member.role, part.member.rank) == (ROLE, 0):
            parts.setdefault(found, []).append(part)
    return [
        _curve(view, parts[view.experiment, view.trial], points_max)
        for view in trials
        if (view.experiment, view.trial) in parts
    ]


def _curve(view: TrialView, parts: Sequence[Series], points_max: int) -> Series:
    """Later epochs and tasks come later, and their word counts."""
    by_step: dict[int, SeriesPoint] = {}
    for part in parts:
        by_step.update({point.step: point for point in part.points})
    points = [by_step[step] for step in sorted(by_step)]
    total = sum(point.count for point in points)
    member = MemberId(TaskId(view.task), ROLE, 0)
    return Series(parts[0].group, parts[0].name, member, view.epoch, thinned(points, points_max), total)


def thinned(points: Sequence[SeriesPoint], most: int) -> tuple[SeriesPoint, ...]:
    """At most so many points: neighbours become one, with the last of their values and the range of all."""
    if not most or len(points) <= most:
        return tuple(points)
    size = -(-len(points) // most)
    return tuple(_joined(points[place : place + size]) for place in range(0, len(points), size))


def _joined(points: Sequence[SeriesPoint]) -> SeriesPoint:
    last = points[-1]
    numbers = [
        bound
        for point in points
        for bound in (point.low, point.high, point.value)
        if isinstance(bound, int | float) and bound == bound
    ]
    return SeriesPoint(
        step=last.step,
        at=last.at,
        value=last.value,
        low=float(min(numbers)) if numbers else None,
        high=float(max(numbers)) if numbers else None,
        count=sum(point.count for point in points),
    )


# -- checkpoints --------------------------------------------------------------------------------------------------


async def checkpoint_detail(services: Services, row: CheckpointRow) -> CheckpointDetail:
    """A checkpoint with its files, as far as they were not removed. What is left without any is its record."""
    exp = await own_of(services, row.experiment)
    secret, own = exp.spec.storage.secret, exp.checkpoints.get(row.key)
    try:
        known = await services.push.checkpoints.get(TaskId(row.task), row.key)
    except NotFound:
        return CheckpointDetail(row=row, files=(), metadata={}, prefix=f"checkpoints/{row.key}", secret=secret)
    files = _left(known.files, own.removed if own is not None else [])
    if len(files) < len(known.files):
        row = msgspec.structs.replace(row, size_bytes=sum(file.size_bytes for file in files))
    return CheckpointDetail(row=row, files=files, metadata=known.metadata, prefix=known.prefix, secret=secret)


def _left(files: tuple[CheckpointFile, ...], removed: list[str]) -> tuple[CheckpointFile, ...]:
    for pattern in removed:
        with suppress(BadRequest):  # what is no pattern has removed nothing
            is_gone = any_of([pattern])
            files = tuple(file for file in files if not is_gone(file.path))
    return files


def storage_of(row: CheckpointRow, detail: CheckpointDetail) -> Storage:
    return Storage(address=row.storage, secret=detail.secret)


# -- why ----------------------------------------------------------------------------------------------------------


async def why(services: Services, view: ExperimentView, silent_s: float) -> WhyTask:
    """Where an experiment stands and what it waits for. ``silent_s``: for how long its own search has been silent."""
    state = await services.loop.settled()
    workload = state.workloads.get(view.key)
    if workload is None or workload.kind != KIND:
        return WhyTask(task=view.key, state=view.state, sentence=_of_ended(view), story=())
    own = exp_in(workload.own)
    lines = [_trial_line(services, state, own, number) for number in list(own.live)[:TRIALS_SHOWN]]
    return WhyTask(task=view.key, state=own.state, sentence=_of_experiment(own, lines, silent_s), story=tuple(lines))


def _of_ended(view: ExperimentView) -> str:
    said = f": {view.detail}" if view.detail else "."
    return f"It is {view.state}{said}"


def _of_experiment(own: Experiment, lines: Sequence[str], silent_s: float) -> str:
    if own.state is ExperimentState.PAUSED:
        return f"Its user paused it; resume it with 'clutch experiment resume {own.experiment}'."
    if own.state is ExperimentState.DELETING:
        return f"It is being deleted: {len(own.cleanups)} clean-ups of its files are under way."
    if own.state is ExperimentState.STOPPING:
        left = f"{len(own.live)} trials have not left yet" if own.live else "its files are being tidied"
        return f"It is ending ({own.detail or 'its outcome is known'}); {left}."
    counts: dict[str, int] = {}
    for number in own.live:
        word = str(own.trials[number].state)
        counts[word] = counts.get(word, 0) + 1
    spoken = ", ".join(f"{count} {word}" for word, count in counts.items()) or "none"
    sentence = f"Its trials: {spoken}."
    if isinstance(own.spec.search.method, Custom | Tpe) and silent_s > SILENT_SEARCH_S:
        sentence += f" Nobody has asked for its search's events for {silent_s:.0f} s: is its search process running?"
    if own.detail:
        sentence += f" {own.detail}"
    return sentence if lines or own.live else f"{sentence} It waits for its search to ask for something."


def _trial_line(services: Services, state: State, own: Experiment, number: int) -> str:
    trial = own.trials[number]
    live = state.tasks.get(TaskId(trial.task))
    if live is None:
        return f"{trial.task}: {trial.state}"
    members = list(state.members_of(live.task))
    uses = {str(m.member): use for m in members if (use := use_of(state, m, services.monitor)) is not None}
    waiting = waiting_of(state, services.loop.plans, live.task)
    allocation = state.allocations.get(live.task)
    now = services.clock.now()
    said = of_live(live, allocation, members, waiting, uses, now) + awaited(state, live.task, now)
    return f"{trial.task}: {said}"
