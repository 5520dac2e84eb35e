"""What trials say and hear, each about its own experiment; and detached runs, which say a little more."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import get, post
from litestar.params import Parameter

from clutch.master.access.caller import Caller
from clutch.master.api.tasks import Name
from clutch.master.push.standing import require_member
from clutch.master.services import Services
from clutch.wire.access import Needs
from clutch.wire.api import API
from clutch.wire.errors import NotAllowed
from clutch.wire.experiment_api import (
    AnswerSearch,
    BeginDetached,
    BestValidation,
    DetachedBegun,
    DetachedOutput,
    EndDetached,
    FinishOperation,
    OperationView,
    OutputTaken,
    SayEarlyExit,
    SayMetadata,
    SearchEvents,
    StorageWay,
)
from clutch.wire.experiments import SEARCHER
from clutch.wire.ids import MemberId
from clutch.wire.push import POLL_MAX_S, RUN, Acknowledged
from clutch.workloads.experiment.routes.experiments import EXPERIMENT, by
from clutch.workloads.experiment.service.finding import find_experiment
from clutch.workloads.experiment.service.service import ExperimentService
from clutch.workloads.experiment.service.storages import storage_way

TASK: dict[str, Any] = {"needs": Needs.TASK}
OUTPUT_MAX_BYTES = 8 << 20
ANSWER_MAX_BYTES = 16 << 20

Wait = Annotated[float, Parameter(ge=0, le=3600, description="Wait so many seconds for news; at most 60 at a time.")]
Cursor = Annotated[int, Parameter(ge=0, le=2**53, description="The number of the last event that was read.")]


# -- trials -------------------------------------------------------------------------------------------------------


@get(f"{RUN}/operation", operation_id="get_operation", tags=["run"], opt=TASK)
async def get_operation(experiments: ExperimentService, caller: Caller, timeout_s: Wait = POLL_MAX_S) -> OperationView:
    """What this trial shall do next; waits while that is to wait."""
    return await experiments.words.operation(require_member(caller.member, caller.fence), timeout_s)


@post(f"{RUN}/operation/done", operation_id="finish_operation", tags=["run"], opt=TASK, status_code=200)
async def finish_operation(experiments: ExperimentService, caller: Caller, data: FinishOperation) -> OperationView:
    """Say that this trial has trained up to a length; answered with what is known of the next."""
    return await experiments.words.operation_done(require_member(caller.member, caller.fence), data)


@post(f"{RUN}/early_exit", operation_id="exit_early", tags=["run"], opt=TASK, status_code=200)
async def exit_early(experiments: ExperimentService, caller: Caller, data: SayEarlyExit) -> Acknowledged:
    """Say that this trial wants no more: its hyperparameters are not possible, or it is done."""
    await experiments.words.early_exit(require_member(caller.member, caller.fence), data)
    return Acknowledged()


@post(f"{RUN}/metadata", operation_id="set_metadata", tags=["run"], opt=TASK, status_code=200)
async def set_metadata(experiments: ExperimentService, caller: Caller, data: SayMetadata) -> dict[str, Any]:
    """Lay this over the trial's metadata, key by key; null removes one. Answered with all of it."""
    return await experiments.words.set_metadata(require_member(caller.member, caller.fence), data.metadata)


@get(f"{RUN}/metadata", operation_id="get_metadata", tags=["run"], opt=TASK)
async def get_metadata(experiments: ExperimentService, caller: Caller) -> dict[str, Any]:
    """The trial's metadata."""
    return await experiments.words.metadata(require_member(caller.member, caller.fence))


@get(f"{RUN}/best", operation_id="get_best_validation", tags=["run"], opt=TASK)
async def get_best_validation(experiments: ExperimentService, caller: Caller) -> BestValidation:
    """The best value of the search metric in the whole experiment so far."""
    return await experiments.words.best(require_member(caller.member, caller.fence))


@get(f"{RUN}/storage", operation_id="get_run_storage", tags=["run"], opt=TASK)
async def get_run_storage(services: Services, caller: Caller) -> StorageWay:
    """How this member reaches its workspace's blobs without the master, if it sees the same folder."""
    services.push.stand(require_member(caller.member, caller.fence))
    return await storage_way(services)


# -- custom searches ----------------------------------------------------------------------------------------------


async def _search_of(services: Services, caller: Caller) -> tuple[str, MemberId]:
    """The experiment whose search process calls."""
    member, fence = require_member(caller.member, caller.fence)
    standing = services.push.stand((member, fence))
    if standing.task.spec.kind != SEARCHER or not standing.task.controller:
        raise NotAllowed(
            "only the search process of an experiment may say this",
            object=f"task {member.task}",
            next_step="Ask from the task of kind searcher, or as a user with the experiment's name.",
        )
    return standing.task.controller, member


@get(f"{RUN}/search/events", operation_id="get_run_search_events", tags=["run"], opt=TASK)
async def get_run_search_events(
    services: Services, experiments: ExperimentService, caller: Caller, after: Cursor = 0, timeout_s: Wait = POLL_MAX_S
) -> SearchEvents:
    """What the search of this process's experiment has to answer; waits for something."""
    experiment, _ = await _search_of(services, caller)
    return await experiments.words.search_events(experiment, after, timeout_s)


@post(
    f"{RUN}/search/operations",
    operation_id="answer_run_search",
    tags=["run"],
    opt=TASK,
    status_code=200,
    request_max_body_size=ANSWER_MAX_BYTES,
)
async def answer_run_search(
    services: Services, experiments: ExperimentService, caller: Caller, data: AnswerSearch
) -> Acknowledged:
    """Answer every event up to a cursor with operations; an answer to what is answered already changes nothing."""
    experiment, member = await _search_of(services, caller)
    await experiments.answer_search(experiment, data, f"task:{member}")
    return Acknowledged()


@get(
    f"{EXPERIMENT}/search/events", operation_id="list_search_events", tags=["experiments"], opt={"needs": Needs.VIEWER}
)
async def list_search_events(
    services: Services,
    experiments: ExperimentService,
    caller: Caller,
    experiment: Name,
    after: Cursor = 0,
    timeout_s: Wait = 0.0,
) -> SearchEvents:
    """What a custom search has to answer; waits for something at most so long."""
    view = await find_experiment(services, caller, experiment)
    return await experiments.words.search_events(view.key, after, timeout_s)


@post(
    f"{EXPERIMENT}/search/operations",
    operation_id="answer_search",
    tags=["experiments"],
    opt={"needs": Needs.EDITOR},
    status_code=204,
    request_max_body_size=ANSWER_MAX_BYTES,
)
async def answer_search(
    services: Services, experiments: ExperimentService, caller: Caller, experiment: Name, data: AnswerSearch
) -> None:
    """Answer every event of a custom search up to a cursor with operations."""
    view = await find_experiment(services, caller, experiment)
    await experiments.answer_search(view.key, data, by(caller))


# -- detached runs ------------------------------------------------------------------------------------------------


@post(f"{API}/detached", operation_id="begin_detached", tags=["experiments"], opt={"needs": Needs.EDITOR})
async def begin_detached(experiments: ExperimentService, caller: Caller, data: BeginDetached) -> DetachedBegun:
    """Begin a run that nobody schedules. The same key goes on with the same trial, in a new epoch."""
    experiment = await experiments.submitting.detached(caller, data)
    return await experiments.detached.begin(experiment, by(caller))


@post(f"{RUN}/heartbeat", operation_id="say_alive", tags=["run"], opt=TASK, status_code=200)
async def say_alive(services: Services, caller: Caller) -> Acknowledged:
    """Say that a detached run goes on; one of which nothing is heard for five minutes has failed."""
    services.push.stand(require_member(caller.member, caller.fence))
    return Acknowledged(done=False)


@post(
    f"{RUN}/output",
    operation_id="push_output",
    tags=["run"],
    opt=TASK,
    status_code=200,
    request_max_body_size=OUTPUT_MAX_BYTES,
)
async def push_output(experiments: ExperimentService, caller: Caller, data: DetachedOutput) -> OutputTaken:
    """Keep what a detached run printed; answered when it is durable."""
    offset = await experiments.detached.output(require_member(caller.member, caller.fence), data)
    return OutputTaken(offset=offset)


@post(f"{RUN}/ended", operation_id="end_detached", tags=["run"], opt=TASK, status_code=200)
async def end_detached(experiments: ExperimentService, caller: Caller, data: EndDetached) -> Acknowledged:
    """Say that a detached run has ended, and how."""
    await experiments.detached.ended(require_member(caller.member, caller.fence), data)
    return Acknowledged()


ROUTES: list[Any] = [
    get_operation, finish_operation, exit_early, set_metadata, get_metadata, get_best_validation, get_run_storage,
    get_run_search_events, answer_run_search, list_search_events, answer_search, begin_detached, say_alive, push_output,
    end_detached,
]  # fmt: skip
