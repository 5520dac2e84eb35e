"""From which checkpoint the trials of an experiment begin that shall not begin from nothing."""

from __future__ import annotations

import msgspec

from clutch.master.access.caller import Caller
from clutch.master.services import Services
from clutch.wire.errors import Conflict, NotFound
from clutch.wire.experiments import CheckpointState, ExperimentSpec
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
    if row.workspace != spec.workspace:
        raise Conflict(
            f"it is in workspace {row.workspace}, and trials of {spec.workspace} may not read there",
            object=f"checkpoint {row.key}",
            next_step=f"Submit the experiment into workspace {row.workspace}.",
            path="searcher",
        )
    if row.state != CheckpointState.COMMITTED:
        raise Conflict(
            f"it is {row.state}, not whole",
            object=f"checkpoint {row.key}",
            next_step="Choose another one with 'clutch checkpoint list'.",
            path="searcher",
        )
    return msgspec.structs.replace(spec, search=msgspec.structs.replace(search, source_checkpoint=row.key))
