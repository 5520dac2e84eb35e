"""Experiments over HTTP: submitted, previewed, listed, looked at, moved, edited, continued."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Annotated, Any, Literal, cast

import msgspec
from litestar import get, patch, post
from litestar.di import Provide
from litestar.params import Parameter

from clutch.backends.journal.base import Has, Where
from clutch.master.access.caller import Caller
from clutch.master.api.paging import After, Limit, StateWord, Word, check_cursor, paged, words
from clutch.master.api.tasks import Name
from clutch.master.services import Services
from clutch.wire.access import Needs
from clutch.wire.api import API, Page, WhyTask
from clutch.wire.errors import BadRequest, ClutchError
from clutch.wire.experiment_api import (
    ExperimentDetail,
    ExperimentIds,
    ExperimentSubmitted,
    MovedExperiment,
    MovedExperiments,
    SearchPreview,
    SubmitExperiment,
)
from clutch.wire.experiment_views import ExperimentView
from clutch.wire.experiment_words import (
    CancelExperiment,
    ContinueExperiment,
    DeleteExperiment,
    EditExperiment,
    KillExperiment,
    PauseExperiment,
    ResumeExperiment,
    Said,
)
from clutch.wire.experiments import ExperimentState
from clutch.workloads.experiment import config as door
from clutch.workloads.experiment.service.finding import find_experiment
from clutch.workloads.experiment.service.looking import experiment_detail, why
from clutch.workloads.experiment.service.service import ExperimentService

EXPERIMENTS = f"{API}/experiments"
EXPERIMENT = f"{EXPERIMENTS}/{{experiment:str}}"
BULK_MAX = 1_000

Order = Literal[
    "submitted_at", "-submitted_at", "ended_at", "-ended_at", "name", "-name", "key", "-key", "best", "-best",
    "progress", "-progress", "trials", "-trials",
]  # fmt: skip
Label = Annotated[str, Parameter(max_length=128, description="Only with this label.")]
Move = Literal["pause", "resume", "cancel", "kill", "archive", "unarchive", "delete"]

MOVES: dict[str, Said] = {
    "pause": PauseExperiment(),
    "resume": ResumeExperiment(),
    "cancel": CancelExperiment(),
    "kill": KillExperiment(),
    "archive": EditExperiment(archived=True),
    "unarchive": EditExperiment(archived=False),
    "delete": DeleteExperiment(),
}


def by(caller: Caller) -> str:
    return f"api:{caller.name}"


# -- submitting ---------------------------------------------------------------------------------------------------


@post(EXPERIMENTS, operation_id="submit_experiment", tags=["experiments"], opt={"needs": Needs.EDITOR})
async def submit_experiment(
    experiments: ExperimentService, caller: Caller, data: SubmitExperiment
) -> ExperimentSubmitted:
    """Submit an experiment. The same key gives the same experiment, so it is safe to repeat."""
    return await experiments.submitting.submit(caller, data)


@post(
    f"{EXPERIMENTS}/preview",
    operation_id="preview_experiment",
    tags=["experiments"],
    opt={"needs": Needs.EDITOR},
    status_code=200,
)
async def preview_experiment(experiments: ExperimentService, caller: Caller, data: SubmitExperiment) -> SearchPreview:
    """Say what a search would do, without doing any of it."""
    return await experiments.submitting.preview(caller, data)


@get(f"{EXPERIMENTS}/schema", operation_id="get_experiment_schema", tags=["experiments"], opt={"needs": Needs.USER})
async def get_experiment_schema() -> dict[str, Any]:
    """The JSON schema of a configuration, for editors."""
    return dict(door.schema())


# -- looking ------------------------------------------------------------------------------------------------------


class Window(msgspec.Struct, frozen=True):
    """Which part of a list, in which order."""

    limit: int
    after: str
    order: str


async def give_window(limit: Limit = 100, after: After = "", order: Order = "-submitted_at") -> Window:
    return Window(limit, check_cursor(after), order)


async def give_filters(
    states: StateWord = "",
    owner: Word = "",
    project: Word = "",
    name: Word = "",
    method: Word = "",
    archived: bool | None = None,
) -> dict[str, Any]:
    """What the experiments of a list must match, by column."""
    given = {"owner": owner, "project": project, "name": name, "method": method}
    found: dict[str, Any] = {column: words(value, column) for column, value in given.items() if value}
    if states:
        found["state"] = states_in(states, ExperimentState)
    return found if archived is None else {**found, "archived": archived}


@get(
    EXPERIMENTS,
    operation_id="list_experiments",
    tags=["experiments"],
    opt={"needs": Needs.VIEWER},
    dependencies={"window": Provide(give_window), "filters": Provide(give_filters)},
)
async def list_experiments(
    services: Services,
    caller: Caller,
    window: Window,
    filters: dict[str, Any],
    workspace: Word = "",
    label: Label = "",
) -> Page[ExperimentView]:
    """Experiments of the workspaces you may read, the newest first unless told otherwise."""
    return await listed(services, seen(caller, filters, words(workspace, "workspace")), window, label)


def states_in(value: str, known: type[StrEnum]) -> tuple[str, ...]:
    """The states in a filter. A state that there is not is no state in which nothing is."""
    found = words(value, "state")
    for state in found:
        if state not in tuple(known):
            raise BadRequest(
                f"there is no state {state!r}", object="filter", path="state", next_step=f"Known: {', '.join(known)}."
            )
    return found


def seen(caller: Caller, filters: Where, asked: tuple[str, ...]) -> Where:
    """The filters, with the workspaces that the caller may read."""
    visible = caller.filters()
    if visible is not None:
        asked = tuple(name for name in visible if not asked or name in asked)
    return {**filters, "workspace": asked} if asked or visible is not None else filters


async def listed(services: Services, where: Where, window: Window, label: str) -> Page[ExperimentView]:
    """A page in the order of the store."""
    if label:
        where = {**where, "labels": Has(f",{label},")}
    found = await services.journal.page(ExperimentView.table, where, window.order, window.after, window.limit + 1)
    return paged([cast(ExperimentView, view) for view in found], window.limit, lambda view: view.key)


@get(EXPERIMENT, operation_id="get_experiment", tags=["experiments"], opt={"needs": Needs.VIEWER})
async def get_experiment(services: Services, caller: Caller, experiment: Name) -> ExperimentDetail:
    """Everything about an experiment but its trials: its configuration, its code, its best trial."""
    return await experiment_detail(services, await find_experiment(services, caller, experiment))


@get(f"{EXPERIMENT}/why", operation_id="why_experiment", tags=["experiments"], opt={"needs": Needs.VIEWER})
async def why_experiment(
    services: Services, experiments: ExperimentService, caller: Caller, experiment: Name
) -> WhyTask:
    """Where an experiment stands, in one sentence, and what each of its trials waits for."""
    view = await find_experiment(services, caller, experiment)
    return await why(services, view, experiments.words.search_silent_s(view.key))


# -- moving -------------------------------------------------------------------------------------------------------


async def _move(experiments: ExperimentService, caller: Caller, wanted: str, move: str) -> str:
    view = await find_experiment(experiments.services, caller, wanted)
    await experiments.tell(view.key, MOVES[move], by(caller))
    return view.key


def _mover(move: str, sentence: str) -> Any:
    @post(
        f"{EXPERIMENT}/{move}",
        operation_id=f"{move}_experiment",
        tags=["experiments"],
        opt={"needs": Needs.EDITOR},
        status_code=204,
    )
    async def handler(experiments: ExperimentService, caller: Caller, experiment: Name) -> None:
        await _move(experiments, caller, experiment, move)

    handler.fn.__doc__ = sentence
    return handler


pause_experiment = _mover("pause", "Let trials checkpoint and leave; nothing runs until it is resumed.")
resume_experiment = _mover("resume", "Go on with a paused experiment.")
cancel_experiment = _mover("cancel", "Let trials checkpoint and leave, then end it.")
kill_experiment = _mover("kill", "End it now.")
archive_experiment = _mover("archive", "Hide it from everyday lists.")
unarchive_experiment = _mover("unarchive", "Show it in everyday lists again.")
delete_experiment = _mover("delete", "Remove an ended experiment with its files, metrics and output.")


@post(
    f"{EXPERIMENTS}/move/{{action:str}}",
    operation_id="move_experiments",
    tags=["experiments"],
    opt={"needs": Needs.EDITOR},
    status_code=200,
)
async def move_experiments(
    experiments: ExperimentService, caller: Caller, action: str, data: ExperimentIds
) -> MovedExperiments:
    """Pause, resume, cancel, kill, archive, unarchive or delete several; each is answered for by itself."""
    caller.filters()
    if action not in MOVES:
        raise BadRequest(
            f"{action[:80]!r} is not something that is done to experiments",
            object="experiments",
            path="action",
            next_step=f"Use one of: {', '.join(MOVES)}.",
        )
    wanted = data.experiments or await _filtered(experiments.services, caller, data)
    if len(wanted) > BULK_MAX:
        raise BadRequest(f"at most {BULK_MAX} at once", object="experiments", path="experiments")

    async def one(name: str) -> MovedExperiment:
        try:
            return MovedExperiment(experiment=await _move(experiments, caller, name, action))
        except ClutchError as error:
            return MovedExperiment(experiment=name, error=str(error))

    return MovedExperiments(tuple(await asyncio.gather(*(one(name) for name in dict.fromkeys(wanted)))))


async def _filtered(services: Services, caller: Caller, data: ExperimentIds) -> tuple[str, ...]:
    """All that the filter finds. A filter that says nothing means none: nobody deletes everything by a slip."""
    filters: dict[str, Any] = {"project": words(data.project, "project")} if data.project else {}
    if data.state:
        filters["state"] = states_in(data.state, ExperimentState)
    if not filters and not data.label and not data.workspace:
        raise BadRequest(
            "neither experiments nor a filter", object="experiments", path="experiments", next_step="Name some."
        )
    where = seen(caller, filters, words(data.workspace, "workspace"))
    found: list[str] = []
    window = Window(BULK_MAX, "", "-submitted_at")
    while len(found) <= BULK_MAX:
        page = await listed(services, where, window, data.label)
        found += [view.key for view in page.items]
        if not page.next:
            break
        window = msgspec.structs.replace(window, after=page.next)
    return tuple(found)


@patch(EXPERIMENT, operation_id="edit_experiment", tags=["experiments"], opt={"needs": Needs.EDITOR}, status_code=204)
async def edit_experiment(
    experiments: ExperimentService, caller: Caller, experiment: Name, data: EditExperiment
) -> None:
    """Change its name, words, labels, project, priority, most slots or retention; what is not said stays."""
    view = await find_experiment(experiments.services, caller, experiment)
    await experiments.edit(view, data, by(caller))


@post(
    f"{EXPERIMENT}/continue",
    operation_id="continue_experiment",
    tags=["experiments"],
    opt={"needs": Needs.EDITOR},
    status_code=204,
)
async def continue_experiment(
    experiments: ExperimentService, caller: Caller, experiment: Name, data: ContinueExperiment
) -> None:
    """Give an ended experiment more work: its trials go on from their last checkpoints, under the same numbers."""
    view = await find_experiment(experiments.services, caller, experiment)
    await experiments.go_on(view, data, by(caller))


ROUTES: list[Any] = [
    submit_experiment, preview_experiment, get_experiment_schema, list_experiments, get_experiment, why_experiment,
    pause_experiment, resume_experiment, cancel_experiment, kill_experiment, archive_experiment, unarchive_experiment,
    delete_experiment, move_experiments, edit_experiment, continue_experiment,
]  # fmt: skip
