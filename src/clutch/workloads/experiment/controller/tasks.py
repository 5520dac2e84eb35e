"""The tasks that an experiment wishes for: its trials, its search method's process, its clean-ups."""

from __future__ import annotations

import re

import msgspec

from clutch.wire.experiments import (
    CLEANUP,
    CLEANUP_VARIABLE,
    ROLE,
    SEARCHER,
    STORAGE_SECRET_VARIABLE,
    TRIAL,
    TRIAL_VARIABLE,
    CleanupItem,
    CleanupOrder,
    Custom,
    TrialInfo,
)
from clutch.wire.ids import NodeId, PoolName
from clutch.wire.programs import PlainLaunch, Program, SecretUse
from clutch.wire.resources import Resources
from clutch.wire.specs import Members, OnNodeLost, RoleSpec, Shape, Split, TaskSpec
from clutch.workloads.experiment.machine.experiment import Experiment
from clutch.workloads.experiment.machine.trial import Trial

CLEANUP_ARGV = ("python", "-m", "clutch.runtime.cleanup")
TPE_ARGV = ("python", "-m", "clutch.workloads.experiment.search_process.tpe")
SEARCHER_RESTARTS = 5
CLEANUP_ITEMS_MAX = 500
"""In one task: an environment variable has room for about a thousand."""
NAME_MAX = 100
SMALL = Resources(millicpus=100, memory_bytes=2**28)
"""For a task that only waits for others: it holds no slots."""


def task_name(name: str, suffix: str) -> str:
    """A name the core accepts, from one that people chose."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:NAME_MAX]
    return f"{plain or 'experiment'}-{suffix}"


def trial_spec(exp: Experiment, trial: Trial) -> TaskSpec:
    spec = exp.spec
    info = TrialInfo(
        experiment=exp.experiment,
        trial=trial.number,
        name=exp.name,
        hparams=trial.hparams,
        seed=trial.seed,
        metric=spec.search.metric,
        smaller_is_better=spec.search.smaller_is_better,
        time_metric=spec.search.time_metric,
        max_time=exp.max_time,
        unit=spec.search.unit,
        storage=spec.storage,
        warm_start=trial.warm_start,
        data=spec.data,
        profiling=spec.profiling,
        no_report_timeout_s=spec.no_report_timeout_s,
        no_report_action=spec.no_report_action,
        config=spec.config,
    )
    program = _program(exp, {TRIAL_VARIABLE: msgspec.json.encode(info).decode()})
    return _task(
        exp,
        kind=TRIAL,
        name=task_name(exp.name, str(trial.number)),
        shape=_shape(exp),
        payload=msgspec.msgpack.encode(program),
        weight=spec.resources.weight,
        max_slots=exp.max_slots,
        preemptible=spec.preemptible,
        leave_within_s=spec.leave_within_s,
        data_wait_s=spec.data_wait_s,
        max_restarts=exp.max_restarts,
        excluded_nodes=tuple(NodeId(node) for node in trial.excluded),
    )


def _shape(exp: Experiment) -> Shape:
    wanted = exp.spec.resources
    if wanted.slots <= 1 or wanted.single_node:
        each = max(1, wanted.slots)
        return Members(
            1,
            Resources(
                slots=wanted.slots,
                kind=wanted.kind,
                millicpus=wanted.millicpus * each,
                memory_bytes=wanted.memory_bytes * each,
            ),
        )
    return Split(
        slots=wanted.slots,
        kind=wanted.kind,
        millicpus_per_slot=wanted.millicpus,
        memory_bytes_per_slot=wanted.memory_bytes,
        even=wanted.even,
    )


def _program(exp: Experiment, environment: dict[str, str], argv: tuple[str, ...] = ()) -> Program:
    """The experiment's own program, told more, or another one in its surroundings."""
    program = exp.spec.program
    secrets = program.secrets
    if exp.spec.storage.secret:
        secrets = (*secrets, SecretUse(exp.spec.storage.secret, STORAGE_SECRET_VARIABLE))
    changed = msgspec.structs.replace(
        program, environment={**program.environment, **environment}, secrets=secrets, leave_signal=0
    )
    if not argv:
        return changed
    return msgspec.structs.replace(
        changed, argv=argv, ports=(), rendezvous=False, idle_timeout_s=0.0, launch=PlainLaunch()
    )


def _task(exp: Experiment, *, kind: str, name: str, shape: Shape, payload: bytes, **more: object) -> TaskSpec:
    return TaskSpec(
        kind=kind,
        name=name,
        pool=PoolName(exp.spec.resources.pool),
        roles=(RoleSpec(name=ROLE, shape=shape),),
        owner=exp.spec.owner,
        workspace=exp.spec.workspace,
        project=exp.project,
        priority=exp.priority,
        group=exp.experiment,
        on_node_lost=OnNodeLost.RESTART,
        payload=payload,
        **more,  # type: ignore[arg-type]  # fields of a TaskSpec, named where they are given
    )


def searcher_task(exp: Experiment) -> str:
    """The id of its next search process."""
    return f"{exp.experiment}.search" if not exp.searchers else f"{exp.experiment}.search-{exp.searchers + 1}"


def searcher_spec(exp: Experiment) -> TaskSpec:
    method = exp.spec.search.method
    argv = method.argv if isinstance(method, Custom) else TPE_ARGV
    return _task(
        exp,
        kind=SEARCHER,
        name=task_name(exp.name, "search"),
        shape=Members(1, SMALL),
        payload=msgspec.msgpack.encode(_program(exp, {}, argv)),
        max_restarts=SEARCHER_RESTARTS,
        leave_within_s=60.0,
    )


def cleanup_task(exp: Experiment) -> str:
    return f"{exp.experiment}.cleanup-{exp.cleanups_made + 1}"


def cleanup_spec(exp: Experiment, checkpoints: tuple[str, ...], globs: tuple[str, ...]) -> TaskSpec:
    items = tuple(CleanupItem(checkpoint=name, task=exp.checkpoints[name].task, globs=globs) for name in checkpoints)
    order = CleanupOrder(experiment=exp.experiment, storage=exp.spec.storage, checkpoints=items)
    program = _program(exp, {CLEANUP_VARIABLE: msgspec.json.encode(order).decode()}, CLEANUP_ARGV)
    return _task(
        exp,
        kind=CLEANUP,
        name=task_name(exp.name, f"cleanup-{exp.cleanups_made + 1}"),
        shape=Members(1, SMALL),
        payload=msgspec.msgpack.encode(program),
        max_restarts=exp.spec.max_restarts,
    )
