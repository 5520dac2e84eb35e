"""From which checkpoint the trials of an experiment begin that shall not begin from nothing."""

from __future__ import annotations

import msgspec

from clutch.master.access.caller import Caller
from clutch.master.services import Services
from clutch.wire.errors import Conflict, NotFound
from clutch.wire.experiment_api import AnswerSearch
from clutch.wire.experiment_views import CheckpointRow
from clutch.wire.experiment_words import MakeTrial
from clutch.wire.experiments import CheckpointState, ExperimentSpec
from clutch.workloads.experiment.controller.own import Own
from clutch.workloads.experiment.search.custom import CustomState, is_of_request
from clutch.workloads.experiment.service.finding import find_checkpoint, find_trial


async def begun_from(services: Services, caller: Caller, spec: ExperimentSpec) -> ExperimentSpec:
    """The spec with the id of its source, whole: what ``source_trial`` has saved last counts from now on, whatever that
    trial does later. ``NotFound`` or ``Conflict`` when no trial of this spec could read it."""
    search = spec.search
    wanted = search.source_checkpoint
    if search.source_trial:
        trial = await find_trial(services, caller, search.source_trial)
        if not trial.checkpoint:
            raise NotFound(
                "it has saved no checkpoint",
                object=f"trial {trial.key}",
                next_step="Choose a trial that has one, or begin from nothing: leave out searcher.source_trial_id.",
                path="searcher.source_trial_id",
            )
        wanted = trial.checkpoint
    if not wanted:
        return spec
    row = await find_checkpoint(services, caller, wanted)
    _check(row, spec.workspace, "searcher")
    return msgspec.structs.replace(spec, search=msgspec.structs.replace(search, source_checkpoint=row.key))


async def wanted_sources(services: Services, own: Own, said: AnswerSearch) -> tuple[str, ...]:
    """The checkpoints of other experiments from which a custom search wants trials to begin. ``NotFound`` or
    ``Conflict`` name one that no trial of it could read; an answer that is known already wants nothing."""
    if not isinstance(own.search, CustomState) or said.cursor <= own.search.answered:
        return ()
    found: dict[str, None] = {}
    for place, operation in enumerate(said.operations):
        wanted = operation.checkpoint if isinstance(operation, MakeTrial) else ""
        if not wanted or is_of_request(wanted):
            continue
        path = f"operations[{place}].checkpoint"
        row = await services.journal.view(CheckpointRow.table, wanted)
        if not isinstance(row, CheckpointRow):
            raise NotFound(
                "there is no such checkpoint",
                object=f"checkpoint {wanted[:80]}",
                next_step="Say the whole id, or 'request:NAME' for the latest of a trial of this search.",
                path=path,
            )
        _check(row, own.exp.spec.workspace, path)
        if row.experiment != own.exp.experiment:
            found[wanted] = None
    return tuple(found)


def _check(row: CheckpointRow, workspace: str, path: str) -> None:
    """A trial of this workspace can read it, and all of it is there."""
    if row.workspace != workspace:
        raise Conflict(
            f"it is in workspace {row.workspace}, and trials of {workspace} may not read there",
            object=f"checkpoint {row.key}",
            next_step=f"Submit the experiment into workspace {row.workspace}.",
            path=path,
        )
    if row.state != CheckpointState.COMMITTED:
        raise Conflict(
            f"it is {row.state}, not whole",
            object=f"checkpoint {row.key}",
            next_step="Choose another one with 'clutch checkpoint list'.",
            path=path,
        )
