"""Routes for members: what a task says to its master, each about the caller's own allocation."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import get, post
from litestar.params import Parameter

from clutch.master.access.caller import Caller
from clutch.master.api.blobs import ROUTES as BLOB_ROUTES
from clutch.master.api.names import ROUTES as NAME_ROUTES
from clutch.master.push.standing import require_member
from clutch.master.services import Services
from clutch.wire.access import Needs
from clutch.wire.errors import NotFound
from clutch.wire.experiment_views import CheckpointRow
from clutch.wire.ids import TaskId
from clutch.wire.push import (
    MANIFEST_MAX_BYTES,
    POLL_MAX_S,
    RUN,
    Acknowledged,
    Announce,
    BeginCheckpoint,
    CheckpointBegun,
    CheckpointView,
    CommitManifest,
    Gather,
    Gathered,
    MetricsTaken,
    Preemption,
    Progress,
    PushMetrics,
    Roster,
    RunInfo,
)

TASK: dict[str, Any] = {"needs": Needs.TASK}
METRICS_MAX_BYTES = 16 << 20


@get(f"{RUN}/info", operation_id="get_run_info", tags=["run"], opt=TASK)
async def get_run_info(services: Services, caller: Caller) -> RunInfo:
    """What a member may know of itself: task, ranks, resources, last committed checkpoint."""
    return await services.push.info(require_member(caller.member, caller.fence))


@post(f"{RUN}/rendezvous", operation_id="meet_peers", tags=["run"], opt=TASK, status_code=200)
async def meet_peers(services: Services, caller: Caller, data: Announce) -> Roster:
    """Announce where this member is, and wait until all members of the allocation are there."""
    return await services.push.rendezvous(require_member(caller.member, caller.fence), data)


@post(f"{RUN}/all_gather", operation_id="gather_from_all", tags=["run"], opt=TASK, status_code=200)
async def gather_from_all(services: Services, caller: Caller, data: Gather) -> Gathered:
    """Bring something to a round, and get what every member brought once all have."""
    return await services.push.all_gather(require_member(caller.member, caller.fence), data)


@get(f"{RUN}/preemption", operation_id="wait_for_preemption", tags=["run"], opt=TASK)
async def wait_for_preemption(
    services: Services, caller: Caller, timeout_s: Annotated[float, Parameter(ge=0, le=3600)] = POLL_MAX_S
) -> Preemption:
    """Wait until this member must leave, at most so long; the answer says whether it must, why and by when."""
    return await services.push.preemption(require_member(caller.member, caller.fence), timeout_s)


@post(f"{RUN}/preemption/ack", operation_id="acknowledge_preemption", tags=["run"], opt=TASK, status_code=200)
async def acknowledge_preemption(services: Services, caller: Caller) -> Preemption:
    """Say that this member has seen that it must leave and will exit 0 when its work is saved."""
    return await services.push.acknowledge(require_member(caller.member, caller.fence))


@post(f"{RUN}/finished", operation_id="declare_finished", tags=["run"], opt=TASK, status_code=200)
async def declare_finished(services: Services, caller: Caller) -> Acknowledged:
    """Declare the work complete: exit 0 then means done, whatever was acknowledged."""
    await services.push.finished(require_member(caller.member, caller.fence))
    return Acknowledged()


@post(
    f"{RUN}/metrics",
    operation_id="push_metrics",
    tags=["run"],
    opt=TASK,
    status_code=200,
    request_max_body_size=METRICS_MAX_BYTES,
)
async def push_metrics(services: Services, caller: Caller, data: PushMetrics) -> MetricsTaken:
    """Store batches of metrics; answered when they are durable, each kept once however often it is sent."""
    return await services.push.metrics(require_member(caller.member, caller.fence), data)


@post(f"{RUN}/progress", operation_id="push_progress", tags=["run"], opt=TASK, status_code=200)
async def push_progress(services: Services, caller: Caller, data: Progress) -> Acknowledged:
    """Say how far the work is; shown to people, never stored."""
    services.push.progress(require_member(caller.member, caller.fence), data)
    return Acknowledged(done=False)


@post(f"{RUN}/checkpoints", operation_id="begin_checkpoint", tags=["run"], opt=TASK, status_code=200)
async def begin_checkpoint(services: Services, caller: Caller, data: BeginCheckpoint) -> CheckpointBegun:
    """Get the id of a checkpoint that is about to be stored, and where its files belong."""
    return await services.push.begin_checkpoint(require_member(caller.member, caller.fence), data)


@post(
    f"{RUN}/checkpoints/{{checkpoint:str}}/commit",
    operation_id="commit_checkpoint",
    tags=["run"],
    opt=TASK,
    status_code=200,
    request_max_body_size=MANIFEST_MAX_BYTES,
)
async def commit_checkpoint(
    services: Services, caller: Caller, checkpoint: str, data: CommitManifest
) -> CheckpointView:
    """Commit a checkpoint that is whole in its store; answered when it is durable."""
    return await services.push.commit_checkpoint(require_member(caller.member, caller.fence), checkpoint, data)


@get(f"{RUN}/checkpoints", operation_id="list_run_checkpoints", tags=["run"], opt=TASK)
async def list_run_checkpoints(services: Services, caller: Caller) -> tuple[CheckpointView, ...]:
    """List the committed checkpoints of the caller's task by step, without their files."""
    member, fence = require_member(caller.member, caller.fence)
    services.push.stand((member, fence))
    return await services.push.checkpoints.of_task(member.task)


@get(f"{RUN}/checkpoints/{{checkpoint:str}}", operation_id="get_run_checkpoint", tags=["run"], opt=TASK)
async def get_run_checkpoint(services: Services, caller: Caller, checkpoint: str) -> CheckpointView:
    """Get one committed checkpoint with its manifest: of the caller's task, or another of its workspace."""
    member, fence = require_member(caller.member, caller.fence)
    standing = services.push.stand((member, fence))
    try:
        return await services.push.checkpoints.get(member.task, checkpoint)
    except NotFound:
        row = await services.journal.view(CheckpointRow.table, checkpoint)
        if not isinstance(row, CheckpointRow) or row.workspace != standing.task.spec.workspace:
            raise
        return await services.push.checkpoints.get(TaskId(row.task), checkpoint)


RUN_ROUTES: list[Any] = [
    get_run_info,
    meet_peers,
    gather_from_all,
    wait_for_preemption,
    acknowledge_preemption,
    declare_finished,
    push_metrics,
    push_progress,
    begin_checkpoint,
    commit_checkpoint,
    list_run_checkpoints,
    get_run_checkpoint,
]
ROUTES: list[Any] = [*RUN_ROUTES, *NAME_ROUTES, *BLOB_ROUTES]
