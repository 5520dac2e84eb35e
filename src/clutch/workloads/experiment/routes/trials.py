"""Trials over HTTP: listed, looked at, stopped; what they reported, printed and did."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

import msgspec
from litestar import get, post
from litestar.di import Provide
from litestar.params import Parameter, QueryParameter

from clutch.backends.journal.base import Where
from clutch.master.access.caller import Caller
from clutch.master.api.metrics import Asked, Group, Points, give_asked, readable
from clutch.master.api.output import ASKED, answer_output
from clutch.master.api.output import give_asked as give_output_asked
from clutch.master.api.paging import After, Limit, StateWord, check_cursor, paged
from clutch.master.api.tasks import Name
from clutch.master.services import Services
from clutch.wire.access import Needs
from clutch.wire.api import API, Page
from clutch.wire.errors import BadRequest
from clutch.wire.experiment_api import TrialDetail
from clutch.wire.experiment_views import ExperimentView, TrialView, WorkloadView
from clutch.wire.experiment_words import StopTrial
from clutch.wire.experiments import TrialState
from clutch.wire.ids import TaskId
from clutch.wire.metrics import VALIDATION, LatestValue, MetricsQuery, Series, spoken
from clutch.wire.output import OutputPage, OutputQuery
from clutch.workloads.experiment.routes.experiments import EXPERIMENT, by, states_in
from clutch.workloads.experiment.service.finding import find_experiment, find_trial
from clutch.workloads.experiment.service.looking import curves, trial_detail, trial_latest, trial_series
from clutch.workloads.experiment.service.printing import Printed
from clutch.workloads.experiment.service.service import ExperimentService

TRIAL = f"{API}/trials/{{trial:str}}"
CURVES_MAX = 1_000
"""So many trials are compared at once."""

Order = Literal["trial", "-trial", "best", "began_at", "-began_at", "ended_at", "-ended_at"]
Numbers = Annotated[
    list[int] | None, QueryParameter(name="trial", max_items=CURVES_MAX, description="Only these trials; repeat it.")
]
Metric = Annotated[str, Parameter(max_length=200, description="One metric; empty: the search's.")]


class Window(msgspec.Struct, frozen=True):
    """Which part of a list, in which order."""

    limit: int
    after: str
    order: str


async def give_window(limit: Limit = 100, after: After = "", order: Order = "trial") -> Window:
    return Window(limit, check_cursor(after), order)


@get(
    f"{EXPERIMENT}/trials",
    operation_id="list_trials",
    tags=["trials"],
    opt={"needs": Needs.VIEWER},
    dependencies={"window": Provide(give_window)},
)
async def list_trials(
    services: Services, caller: Caller, experiment: Name, window: Window, states: StateWord = ""
) -> Page[TrialView]:
    """Trials of an experiment, by number unless told otherwise. ``best`` shows the best first, those without last."""
    view = await find_experiment(services, caller, experiment)
    where: dict[str, Any] = {"experiment": view.key}
    if states:
        where["state"] = states_in(states, TrialState)
    if window.order.endswith("best"):
        return await _by_best(services, view, where, window.limit, window.after)
    found = await services.journal.page(TrialView.table, where, window.order, window.after, window.limit + 1)
    return paged([cast(TrialView, one) for one in found], window.limit, lambda one: one.key)


async def _by_best(services: Services, view: ExperimentView, where: Where, limit: int, after: str) -> Page[TrialView]:
    """The best first, whichever way is up; then those that have validated nothing. The cursor is the last key."""
    order = "best" if view.smaller_is_better else "-best"
    last = await services.journal.view(TrialView.table, after) if after else None
    found: list[TrialView] = []
    if not isinstance(last, TrialView) or last.has_best:
        page = await services.journal.page(TrialView.table, {**where, "has_best": True}, order, after, limit + 1)
        found = [cast(TrialView, one) for one in page]
        after = ""
    if len(found) <= limit:
        rest = limit + 1 - len(found)
        page = await services.journal.page(TrialView.table, {**where, "has_best": False}, "trial", after, rest)
        found += [cast(TrialView, one) for one in page]
    return paged(found, limit, lambda one: one.key)


@get(TRIAL, operation_id="get_trial", tags=["trials"], opt={"needs": Needs.VIEWER})
async def get_trial(services: Services, caller: Caller, trial: Name) -> TrialDetail:
    """A trial with its hyperparameters, its metadata, its tasks and how far it is."""
    return await trial_detail(services, await find_trial(services, caller, trial))


@get(f"{TRIAL}/workloads", operation_id="list_workloads", tags=["trials"], opt={"needs": Needs.VIEWER})
async def list_workloads(
    services: Services, caller: Caller, trial: Name, limit: Limit = 100, after: After = ""
) -> Page[WorkloadView]:
    """What was asked of a trial, what it did and what interrupted it, in order."""
    view = await find_trial(services, caller, trial)
    where = {"trial": view.key}
    found = await services.journal.page(WorkloadView.table, where, "key", check_cursor(after), limit + 1)
    return paged([cast(WorkloadView, one) for one in found], limit, lambda one: one.key)


@post(f"{TRIAL}/stop", operation_id="stop_trial", tags=["trials"], opt={"needs": Needs.EDITOR}, status_code=204)
async def stop_trial(experiments: ExperimentService, caller: Caller, trial: Name) -> None:
    """Let a trial checkpoint and leave, then end it; its experiment goes on."""
    view = await find_trial(experiments.services, caller, trial)
    await experiments.tell_live(view.experiment, StopTrial(view.trial), by(caller))


@post(f"{TRIAL}/kill", operation_id="kill_trial", tags=["trials"], opt={"needs": Needs.EDITOR}, status_code=204)
async def kill_trial(experiments: ExperimentService, caller: Caller, trial: Name) -> None:
    """End a trial now; its experiment goes on."""
    view = await find_trial(experiments.services, caller, trial)
    await experiments.tell_live(view.experiment, StopTrial(view.trial, kill=True), by(caller))


# -- metrics and output -------------------------------------------------------------------------------------------


@get(
    f"{TRIAL}/metrics",
    operation_id="list_trial_metrics",
    tags=["trials"],
    dependencies={"asked": Provide(give_asked)},
    opt={"needs": Needs.VIEWER},
)
async def list_trial_metrics(
    services: Services, caller: Caller, trial: Name, asked: Asked, points: Points = 1000, superseded: bool = True
) -> Page[Series]:
    """What a trial reported, over all its tasks, as one series for each metric, member and epoch."""
    view = await find_trial(services, caller, trial)
    query = MetricsQuery(
        task=TaskId(view.task),
        group=asked.group,
        names=asked.names,
        epochs=asked.epochs,
        points_max=points,
        superseded=superseded,
    )
    return Page(tuple(readable(one) for one in await trial_series(services, view, query)))


@get(f"{TRIAL}/metrics/latest", operation_id="get_latest_trial_metrics", tags=["trials"], opt={"needs": Needs.VIEWER})
async def get_latest_trial_metrics(
    services: Services, caller: Caller, trial: Name, group: Group = ""
) -> Page[LatestValue]:
    """The newest value of each metric of a trial."""
    view = await find_trial(services, caller, trial)
    latest = await trial_latest(services, view, group)
    return Page(tuple(msgspec.structs.replace(one, value=spoken(one.value)) for one in latest))


class Compared(msgspec.Struct, frozen=True):
    """Which curves."""

    name: str
    group: str
    trials: tuple[int, ...]
    points: int


async def give_compared(
    name: Metric = "", group: Group = VALIDATION, trials: Numbers = None, points: Points = 200
) -> Compared:
    if any(not 0 < number < 2**31 for number in trials or ()):
        raise BadRequest("there is no such number", object="trials", path="trial")
    return Compared(name, group, tuple(trials or ()), points)


@get(
    f"{EXPERIMENT}/metrics",
    operation_id="list_experiment_metrics",
    tags=["experiments"],
    opt={"needs": Needs.VIEWER},
    dependencies={"compared": Provide(give_compared)},
)
async def list_experiment_metrics(
    services: Services, caller: Caller, experiment: Name, compared: Compared
) -> Page[Series]:
    """One metric over all trials, a curve each, downsampled to ``points``; superseded points are left out."""
    view = await find_experiment(services, caller, experiment)
    page = await services.journal.page(TrialView.table, {"experiment": view.key}, "trial", "", CURVES_MAX)
    wanted = [cast(TrialView, one) for one in page]
    if compared.trials:
        wanted = [one for one in wanted if one.trial in compared.trials]
    found = await curves(services, wanted, (compared.group, compared.name or view.metric), compared.points)
    return Page(tuple(readable(one) for one in found))


@get(
    f"{TRIAL}/output",
    operation_id="read_trial_output",
    tags=["output"],
    opt={"needs": Needs.VIEWER},
    dependencies={**ASKED, "asked": Provide(give_output_asked)},
)
async def read_trial_output(
    services: Services, caller: Caller, trial: Name, asked: dict[str, Any], follow: bool = False
) -> OutputPage:
    """A page of lines of a trial, over all the tasks that ran it; with `follow`, pages as they come."""
    view = await find_trial(services, caller, trial)
    query = OutputQuery(task=TaskId(view.experiment), **asked)
    return await answer_output(services, query, follow, Printed(services, view.experiment, (view.trial,)))


@get(
    f"{EXPERIMENT}/output",
    operation_id="read_experiment_output",
    tags=["output"],
    opt={"needs": Needs.VIEWER},
    dependencies={**ASKED, "asked": Provide(give_output_asked)},
)
async def read_experiment_output(
    services: Services,
    caller: Caller,
    experiment: Name,
    asked: dict[str, Any],
    follow: bool = False,
    trials: Numbers = None,
) -> OutputPage:
    """A page of lines of all trials by time; with `follow`, pages as they come, until the experiment has ended.

    Each line's member names the task, and so the trial, that printed it.
    """
    view = await find_experiment(services, caller, experiment)
    printed = Printed(services, view.key, tuple(trials or ()))
    await printed.check()
    return await answer_output(services, OutputQuery(task=TaskId(view.key), **asked), follow, printed)


ROUTES: list[Any] = [
    list_trials, get_trial, list_workloads, stop_trial, kill_trial, list_trial_metrics, get_latest_trial_metrics,
    list_experiment_metrics, read_trial_output, read_experiment_output,
]  # fmt: skip
