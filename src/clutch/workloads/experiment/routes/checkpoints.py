"""Checkpoints over HTTP: listed, looked at, read by file, described, held, removed; and the way to their store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, cast

from litestar import delete, get, patch, post
from litestar.di import Provide
from litestar.params import Parameter, QueryParameter
from litestar.response import Stream

from clutch.backends.blobs.keys import check_key
from clutch.master.access.caller import Caller
from clutch.master.api.paging import After, Limit, StateWord, check_cursor, paged, words
from clutch.master.api.tasks import Name
from clutch.master.services import Services
from clutch.wire.access import Needs
from clutch.wire.api import API, Page
from clutch.wire.errors import Conflict, NotFound
from clutch.wire.experiment_api import ChangeMetadata, CheckpointDetail, Pinning, StorageWay
from clutch.wire.experiment_views import CheckpointRow
from clutch.wire.experiment_words import DeleteCheckpoints
from clutch.wire.experiments import CheckpointState
from clutch.workloads.experiment.routes.experiments import EXPERIMENT, by, states_in
from clutch.workloads.experiment.service.finding import find_checkpoint, find_experiment
from clutch.workloads.experiment.service.looking import checkpoint_detail, storage_of
from clutch.workloads.experiment.service.service import ExperimentService
from clutch.workloads.experiment.service.storages import file_pieces, storage_way

CHECKPOINT = f"{API}/checkpoints/{{checkpoint:str}}"
GLOBS_MAX = 100
MEDIA_TYPE = "application/octet-stream"
GONE = (CheckpointState.DELETED, CheckpointState.LOST)

TrialWord = Annotated[str, Parameter(max_length=128, description="Only of this trial: its number.")]
Globs = Annotated[
    list[str] | None,
    QueryParameter(name="glob", max_items=GLOBS_MAX, description="Only files that match one; repeat it."),
]


async def give_filters(states: StateWord = "", trial: TrialWord = "") -> dict[str, tuple[str, ...]]:
    """What the checkpoints of a list must match; trials by their numbers."""
    found = {"state": states_in(states, CheckpointState)} if states else {}
    return found | ({"trial": words(trial, "trial")} if trial else {})


@get(
    f"{EXPERIMENT}/checkpoints",
    operation_id="list_checkpoints",
    tags=["checkpoints"],
    opt={"needs": Needs.VIEWER},
    dependencies={"filters": Provide(give_filters)},
)
async def list_checkpoints(
    services: Services,
    caller: Caller,
    experiment: Name,
    filters: dict[str, tuple[str, ...]],
    limit: Limit = 100,
    after: After = "",
) -> Page[CheckpointRow]:
    """Checkpoints of an experiment, the newest first."""
    view = await find_experiment(services, caller, experiment)
    where: dict[str, Any] = {**filters, "experiment": view.key}
    if "trial" in filters:
        where["trial"] = tuple(f"{view.key}.{one.rpartition('.')[2]}" for one in filters["trial"])
    found = await services.journal.page(CheckpointRow.table, where, "-committed_at", check_cursor(after), limit + 1)
    return paged([cast(CheckpointRow, one) for one in found], limit, lambda one: one.key)


@get(CHECKPOINT, operation_id="get_checkpoint", tags=["checkpoints"], opt={"needs": Needs.VIEWER})
async def get_checkpoint(services: Services, caller: Caller, checkpoint: Name) -> CheckpointDetail:
    """A checkpoint with its files and its metadata."""
    return await checkpoint_detail(services, await find_checkpoint(services, caller, checkpoint))


@get(
    f"{CHECKPOINT}/files/{{path:path}}",
    operation_id="get_checkpoint_file",
    tags=["checkpoints"],
    opt={"needs": Needs.VIEWER},
    media_type=MEDIA_TYPE,
)
async def get_checkpoint_file(services: Services, caller: Caller, checkpoint: Name, path: str) -> Stream:
    """The bytes of one file of a checkpoint, from the store that holds it."""
    row = await find_checkpoint(services, caller, checkpoint)
    detail = await checkpoint_detail(services, row)
    name = path.removeprefix("/")
    file = next((file for file in detail.files if file.path == name and not file.is_folder), None)
    if file is None:
        raise NotFound(
            "it has no such file",
            object=f"checkpoint {row.key}: {name[:200]}",
            next_step="Its files are in GET /api/v1/checkpoints/ID.",
        )
    if row.state in GONE:
        raise Conflict(f"its files are gone: it is {row.state}", object=f"checkpoint {row.key}")
    key = f"{detail.prefix}/{file.path}"
    check_key(key)
    if row.storage:
        pieces = file_pieces(services, storage_of(row, detail), row.workspace, key, file.size_bytes)
    else:
        blob = await services.push.shelves.stat(row.workspace, key)
        pieces = services.push.shelves.pieces(row.workspace, blob, 0, blob.size_bytes)
    first = await anext(pieces, b"")  # what is wrong is answered before anything is sent
    headers = {"Content-Length": str(file.size_bytes), "ETag": f'"{file.sha256}"'}
    return Stream(_all(first, pieces), media_type=MEDIA_TYPE, headers=headers)


async def _all(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


@delete(
    CHECKPOINT, operation_id="delete_checkpoint", tags=["checkpoints"], opt={"needs": Needs.EDITOR}, status_code=204
)
async def delete_checkpoint(
    experiments: ExperimentService, caller: Caller, checkpoint: Name, globs: Globs = None
) -> None:
    """Remove a checkpoint's files, or those that match; its record stays. One that somebody holds is refused."""
    row = await find_checkpoint(experiments.services, caller, checkpoint)
    await experiments.tell(row.experiment, DeleteCheckpoints((row.key,), tuple(globs or ())), by(caller))


@patch(
    f"{CHECKPOINT}/metadata",
    operation_id="change_checkpoint_metadata",
    tags=["checkpoints"],
    opt={"needs": Needs.EDITOR},
)
async def change_checkpoint_metadata(
    experiments: ExperimentService, caller: Caller, checkpoint: Name, data: ChangeMetadata
) -> CheckpointDetail:
    """Change what is said of a committed checkpoint. Its files and its manifest stay as they are."""
    row = await find_checkpoint(experiments.services, caller, checkpoint)
    await experiments.describe(row, data, by(caller))
    return await checkpoint_detail(experiments.services, row)


@post(
    f"{CHECKPOINT}/pin",
    operation_id="pin_checkpoint",
    tags=["checkpoints"],
    opt={"needs": Needs.EDITOR},
    status_code=204,
)
async def pin_checkpoint(experiments: ExperimentService, caller: Caller, checkpoint: Name, data: Pinning) -> None:
    """Hold a checkpoint: retention does not take it, and nobody removes it."""
    row = await find_checkpoint(experiments.services, caller, checkpoint)
    await experiments.pin((row.key,), _holder(caller, data), hold=True)


@post(
    f"{CHECKPOINT}/unpin",
    operation_id="unpin_checkpoint",
    tags=["checkpoints"],
    opt={"needs": Needs.EDITOR},
    status_code=204,
)
async def unpin_checkpoint(experiments: ExperimentService, caller: Caller, checkpoint: Name, data: Pinning) -> None:
    """Hold a checkpoint no longer."""
    row = await find_checkpoint(experiments.services, caller, checkpoint)
    await experiments.pin((row.key,), _holder(caller, data), hold=False)


def _holder(caller: Caller, data: Pinning) -> str:
    """People hold under their own name: what a model holds is not theirs to let go."""
    (word,) = words(data.by, "by") or (caller.name,)
    return f"user:{word}"


@get(
    f"{API}/workspaces/{{workspace:str}}/storage",
    operation_id="get_workspace_storage",
    tags=["checkpoints"],
    opt={"needs": Needs.VIEWER},
)
async def get_workspace_storage(services: Services, caller: Caller, workspace: Name) -> StorageWay:
    """How this machine reaches the workspace's blobs without the master, if it sees the same folder."""
    caller.require(workspace, f"workspace {workspace}")
    return await storage_way(services)


ROUTES: list[Any] = [
    list_checkpoints, get_checkpoint, get_checkpoint_file, delete_checkpoint, change_checkpoint_metadata,
    pin_checkpoint, unpin_checkpoint, get_workspace_storage,
]  # fmt: skip
