"""The few questions that the shell asks of an experiment's own state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import msgspec

from clutch.master.services import Services
from clutch.wire.errors import Conflict, Corrupt, NotFound
from clutch.wire.experiment_api import SearchEvents
from clutch.wire.experiment_views import ExperimentArchive
from clutch.wire.experiments import KIND, ExperimentSpec, ExperimentState
from clutch.workloads.experiment.controller.controller import ExperimentController
from clutch.workloads.experiment.controller.own import Frozen, Own
from clutch.workloads.experiment.machine.experiment import Experiment
from clutch.workloads.experiment.search.custom import CustomState, search_events


def exp_in(own: object) -> Experiment:
    return cast(Own, own).exp


def spec_in(own: object) -> ExperimentSpec:
    return exp_in(own).spec


async def whole_of(services: Services, experiment: str) -> Own:
    """An experiment with its search, live or from its archive. ``NotFound`` when it is nowhere."""
    workload = (await services.loop.settled()).workloads.get(experiment)
    if workload is not None and workload.kind == KIND:
        return cast(Own, workload.own)
    archive = await services.journal.view(ExperimentArchive.table, experiment)
    if not isinstance(archive, ExperimentArchive):
        raise NotFound("it is neither live nor archived", object=f"experiment {experiment}")
    try:
        return ExperimentController().load(archive.payload)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"an archived experiment does not decode: {error}", object="experiment archive") from error


def archived(payload: bytes) -> Experiment:
    """An experiment that is over, from what its archive holds."""
    try:
        return msgspec.msgpack.decode(payload, type=Frozen).exp
    except msgspec.MsgspecError as error:
        raise Corrupt(f"an archived experiment does not decode: {error}", object="experiment archive") from error


def live_trials(own: object) -> Iterator[tuple[str, frozenset[int]]]:
    """The task of each trial that is not over, and the steps whose validations its experiment knows."""
    exp = exp_in(own)
    for number in exp.live:
        trial = exp.trials[number]
        yield trial.task, frozenset(trial.steps)


def waits_to_be_forgotten(own: object) -> bool:
    """It is being deleted, its trials have left and its files are gone: only the lanes still hold something of it."""
    exp = exp_in(own)
    return exp.state is ExperimentState.DELETING and not exp.forgotten and not exp.cleanups and not exp.live


def detached_epoch(own: object) -> int | None:
    """The epoch in which a detached run goes on; None when none does, or it is no detached run."""
    exp = exp_in(own)
    if not exp.spec.detached or 1 not in exp.live:
        return None
    trial = exp.trials[1]
    return trial.epoch if trial.running and trial.epoch else None


def search_events_of(own: object, after: int) -> SearchEvents:
    """What the process of a custom search reads next. ``Conflict`` where the search is none of those."""
    found = cast(Own, own)
    if not isinstance(found.search, CustomState):
        raise Conflict(
            "its search is not a custom one",
            object=f"experiment {found.exp.experiment}",
            next_step="Only 'searcher: {name: custom}' is answered from outside.",
        )
    return search_events(found.search, after, over=found.exp.over and found.exp.ended)
