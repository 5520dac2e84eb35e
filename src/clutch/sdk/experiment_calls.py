"""Every operation on experiments, trials, checkpoints and searches, as a value. Pure."""

from __future__ import annotations

from typing import Any

from clutch.sdk.call import Call, get, pairs, patch, path, post
from clutch.sdk.calls import asked_metrics, output_fields
from clutch.wire.api import Page, WhyTask
from clutch.wire.experiment_api import (
    AnswerSearch,
    BeginDetached,
    ChangeMetadata,
    CheckpointDetail,
    DetachedBegun,
    ExperimentDetail,
    ExperimentIds,
    ExperimentSubmitted,
    MovedExperiments,
    Pinning,
    SearchEvents,
    SearchPreview,
    StorageWay,
    SubmitExperiment,
    TrialDetail,
)
from clutch.wire.experiment_views import CheckpointRow, ExperimentView, TrialView, WorkloadView
from clutch.wire.experiment_words import ContinueExperiment, EditExperiment
from clutch.wire.metrics import LatestValue, Series
from clutch.wire.output import OutputPage, OutputQuery

SUBMIT_S = 60.0
"""Its storage is tried before it is accepted."""

# -- experiments --------------------------------------------------------------------------------------------------


def submit_experiment(experiment: SubmitExperiment) -> Call[ExperimentSubmitted]:
    """Repeatable because of its key: the same key gives the same experiment."""
    call = post(("experiments",), ExperimentSubmitted, experiment, repeatable=bool(experiment.key))
    return _patient(call, SUBMIT_S)


def preview_experiment(experiment: SubmitExperiment) -> Call[SearchPreview]:
    return post(("experiments", "preview"), SearchPreview, experiment, repeatable=True)


def config_schema() -> Call[dict[str, Any]]:
    return get(("experiments", "schema"), dict[str, Any])


def list_experiments(**filters: Any) -> Call[Page[ExperimentView]]:
    """Filters: ``state``, ``owner``, ``workspace``, ``project``, ``label``, ``name``, ``method``, ``archived``; and
    ``limit``, ``after``."""
    return get(("experiments",), Page[ExperimentView], filters)


def get_experiment(experiment: str) -> Call[ExperimentDetail]:
    return get(("experiments", experiment), ExperimentDetail)


def why_experiment(experiment: str) -> Call[WhyTask]:
    return get(("experiments", experiment, "why"), WhyTask)


def move_experiment(experiment: str, move: str) -> Call[None]:
    """``pause``, ``resume``, ``cancel``, ``kill``, ``archive``, ``unarchive`` or ``delete``; twice is as once."""
    return Call(method="POST", path=path("experiments", experiment, move), repeatable=True)


def move_experiments(move: str, which: ExperimentIds) -> Call[MovedExperiments]:
    return post(("experiments", "move", move), MovedExperiments, which, repeatable=True)


def edit_experiment(experiment: str, edit: EditExperiment) -> Call[None]:
    return patch(("experiments", experiment), None, edit)  # type: ignore[arg-type]  # no answer


def continue_experiment(experiment: str, more: ContinueExperiment) -> Call[None]:
    return post(("experiments", experiment, "continue"), None, more)  # type: ignore[arg-type]  # no answer


def experiment_metrics(experiment: str, **fields: Any) -> Call[Page[Series]]:
    """One metric over all trials: ``name``, ``group``, ``points``."""
    return get(("experiments", experiment, "metrics"), Page[Series], fields)


# -- trials -------------------------------------------------------------------------------------------------------


def list_trials(experiment: str, **filters: Any) -> Call[Page[TrialView]]:
    """Filters: ``state``; ``order`` (``trial``, ``best``); and ``limit``, ``after``."""
    return get(("experiments", experiment, "trials"), Page[TrialView], filters)


def get_trial(trial: str) -> Call[TrialDetail]:
    return get(("trials", trial), TrialDetail)


def list_workloads(trial: str, **filters: Any) -> Call[Page[WorkloadView]]:
    return get(("trials", trial, "workloads"), Page[WorkloadView], filters)


def move_trial(trial: str, move: str) -> Call[None]:
    """``stop`` or ``kill``."""
    return Call(method="POST", path=path("trials", trial, move), repeatable=True)


def trial_metrics(trial: str, **fields: Any) -> Call[Page[Series]]:
    """``group``, ``name`` (several), ``epoch``, ``points``, ``superseded``."""
    return get(("trials", trial, "metrics"), Page[Series], asked_metrics(fields))


def read_trial_output(trial: str, query: OutputQuery) -> Call[OutputPage]:
    """One page of what a trial printed, over all the tasks that ran it; the query's own task is not looked at."""
    return get(("trials", trial, "output"), OutputPage, output_fields(query))


def follow_trial_output(trial: str, query: OutputQuery) -> Call[None]:
    """Pages as they come, one JSON object a line, until the trial has ended."""
    fields = output_fields(query) | {"follow": True}
    return Call(method="GET", path=path("trials", trial, "output"), query=pairs(fields), repeatable=True)


def read_experiment_output(experiment: str, query: OutputQuery, trials: tuple[int, ...] = ()) -> Call[OutputPage]:
    """One page of what all trials printed, or these, by time; the query's own task is not looked at."""
    return get(("experiments", experiment, "output"), OutputPage, output_fields(query) | {"trial": trials})


def follow_experiment_output(experiment: str, query: OutputQuery, trials: tuple[int, ...] = ()) -> Call[None]:
    """Pages as they come, one JSON object a line, until the experiment, or these trials, have ended."""
    fields = output_fields(query) | {"trial": trials, "follow": True}
    return Call(method="GET", path=path("experiments", experiment, "output"), query=pairs(fields), repeatable=True)


def latest_metrics(trial: str, group: str = "") -> Call[Page[LatestValue]]:
    return get(("trials", trial, "metrics", "latest"), Page[LatestValue], {"group": group})


# -- checkpoints --------------------------------------------------------------------------------------------------


def list_checkpoints(experiment: str, **filters: Any) -> Call[Page[CheckpointRow]]:
    """Filters: ``trial``, ``state``; and ``limit``, ``after``."""
    return get(("experiments", experiment, "checkpoints"), Page[CheckpointRow], filters)


def get_checkpoint(checkpoint: str) -> Call[CheckpointDetail]:
    return get(("checkpoints", checkpoint), CheckpointDetail)


def get_checkpoint_file(checkpoint: str, file: str) -> Call[None]:
    """The bytes of one file, read as they come."""
    return Call(method="GET", path=path("checkpoints", checkpoint, "files", *file.split("/")), repeatable=True)


def delete_checkpoint(checkpoint: str, globs: tuple[str, ...] = ()) -> Call[None]:
    """Its files; with ``globs`` only those that match one."""
    return Call(
        method="DELETE", path=path("checkpoints", checkpoint), query=pairs({"glob": globs}), repeatable=True
    )  # fmt: skip


def change_checkpoint_metadata(checkpoint: str, change: ChangeMetadata) -> Call[CheckpointDetail]:
    return patch(("checkpoints", checkpoint, "metadata"), CheckpointDetail, change)


def pin_checkpoint(checkpoint: str, by: str = "") -> Call[None]:
    """Hold it: retention does not take it, and nobody removes it. Under one's own name unless told."""
    return post(("checkpoints", checkpoint, "pin"), None, Pinning(by=by), repeatable=True)  # type: ignore[arg-type]


def unpin_checkpoint(checkpoint: str, by: str = "") -> Call[None]:
    return post(("checkpoints", checkpoint, "unpin"), None, Pinning(by=by), repeatable=True)  # type: ignore[arg-type]


def get_storage(workspace: str) -> Call[StorageWay]:
    """How this machine reaches a workspace's blobs without the master, if it does."""
    return get(("workspaces", workspace, "storage"), StorageWay)


# -- searches and detached runs -----------------------------------------------------------------------------------


def search_events(experiment: str, after: int, timeout_s: float) -> Call[SearchEvents]:
    """What a custom search method has not answered yet; waits for something at most so long."""
    call = get(("experiments", experiment, "search", "events"), SearchEvents, {"after": after, "timeout_s": timeout_s})
    return _patient(call, timeout_s + 30.0)


def answer_search(experiment: str, answer: AnswerSearch) -> Call[None]:
    """Repeatable: an answer to what is answered already changes nothing."""
    parts = ("experiments", experiment, "search", "operations")
    return post(parts, None, answer, repeatable=True)  # type: ignore[arg-type]  # no answer


def begin_detached(run: BeginDetached) -> Call[DetachedBegun]:
    return post(("detached",), DetachedBegun, run, repeatable=True)


def _patient(call: Call[Any], answer_s: float) -> Call[Any]:
    import msgspec

    return msgspec.structs.replace(call, answer_s=answer_s)
