"""From a configuration to the frozen spec of an experiment, or to everything that is wrong with it."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from typing import Any

import msgspec

from clutch.wire.containers import Mount, Pull
from clutch.wire.errors import BadConfig, Problem
from clutch.wire.experiment_api import ConfigProblem
from clutch.wire.experiments import ExperimentSpec, OutputRule, Retention, RuleAction, TrialResources
from clutch.wire.programs import Image, Program, SecretUse
from clutch.wire.resources import ANY, CPU, CUDA, ROCM, usual_kind
from clutch.workloads.experiment.config.crossing import cross_notices, cross_problems, draw_once
from clutch.workloads.experiment.config.methods import argv_of, search_of
from clutch.workloads.experiment.config.model_base import size_in
from clutch.workloads.experiment.config.model_hyperparameters import hyperparameter_of
from clutch.workloads.experiment.config.model_launch import launching_of
from clutch.workloads.experiment.config.model_storage import WrittenSharedFs
from clutch.workloads.experiment.config.models import DEFAULT_RULES, WrittenExperiment, WrittenImages
from clutch.workloads.experiment.config.places import storage_of
from clutch.workloads.experiment.config.problems import PROBLEMS_MAX, shape_problems
from clutch.workloads.experiment.config.reading import plain
from clutch.workloads.experiment.config.spellings import Reworded
from clutch.workloads.experiment.config.surroundings import is_by_device, normal_variables, secrets_of, variables_of

EFFECTIVE_MAX_BYTES = 48 * 2**10
"""A trial is told the configuration, its hyperparameters and its data in one environment variable, and Linux takes
128 KiB for one."""
STEP = "Nothing was submitted; mend it and try again."
DETACHED = ["detached"]
"""The command of what Clutch never starts."""


class Door(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a submission besides its configuration."""

    owner: str = "nobody"
    workspace: str = ""
    """Outranks the configuration's; empty: that, or ``default``."""
    project: str = ""
    code: str = ""
    """Digest of the uploaded working directory."""
    source: str = ""
    """What its user wrote, to the letter."""
    key: str = ""
    parent: str = ""
    seed: int = 0
    """Drawn by the caller; counts if the configuration sets none."""
    kinds: tuple[str, ...] = ()
    """Kinds of slots that the pool has."""
    detached: bool = False
    """Its program runs somewhere else: it needs no entrypoint."""


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    spec: ExperimentSpec
    effective: dict[str, Any]
    """The configuration in today's words with every default; submitted again, it gives the same spec."""
    notices: tuple[ConfigProblem, ...]


def check_partial(config: Mapping[str, Any], name: str = "configuration") -> tuple[ConfigProblem, ...]:
    """What there is to notice about a template or about defaults, in which anything may be missing. ``BadConfig``
    names everything that is wrong with what is there."""
    said = Reworded(plain(config, name))
    problems = [*said.problems, *shape_problems(said.config, partial=True), *cross_problems(said.config, partial=True)]
    _refuse(problems, name)
    return tuple(said.notices[:PROBLEMS_MAX])


def accepted(config: Mapping[str, Any], context: Door) -> Accepted:
    """The experiment that a whole configuration describes. ``BadConfig`` names everything that is wrong with it."""
    told = config.get("name")
    subject = f"experiment {told[:80]!r}" if isinstance(told, str) and told.isprintable() else "configuration"
    said = Reworded(plain(config, subject))
    if context.detached:
        said.config.setdefault("entrypoint", DETACHED)
    storage = said.config.get("checkpoint_storage")
    if isinstance(storage, dict):
        storage.setdefault("type", "workspace")
    drawn = draw_once(said.config)
    problems = [
        *said.problems,
        *shape_problems(said.config, partial=False),
        *cross_problems(said.config, partial=False),
    ]
    _refuse(problems, subject)
    written = WrittenExperiment.model_validate(said.config)
    kind = kind_of_slots(written, context.kinds)
    image, wrong = _image(written, kind)
    effective = _effective(written, said.config, context)
    size = len(msgspec.json.encode(effective))
    if size > EFFECTIVE_MAX_BYTES:
        problem = f"it has {size} bytes, at most {EFFECTIVE_MAX_BYTES} are told to each trial"
        wrong.append(Problem("config", problem, "Put data into files of the uploaded folder."))
    _refuse(wrong, subject)
    spec = _spec(written, effective, context, _program(written, effective, image, (kind, context.code)), kind)
    notices = (*said.notices, *drawn, *cross_notices(said.config))[:PROBLEMS_MAX]
    return Accepted(spec=spec, effective=effective, notices=notices)


def kind_of_slots(written: WrittenExperiment, kinds: tuple[str, ...]) -> str:
    """Of a trial: as it says, else what the pool usually has. It stays open while the pool has none, unless an image or
    variables must be chosen by it."""
    kind = written.resources.kind or usual_kind(kinds)
    environment = written.environment
    chosen_by = isinstance(environment.image, WrittenImages) or is_by_device(environment.environment_variables)
    if kind != ANY or not chosen_by:
        return kind
    return usual_kind(kinds or (CUDA,))


def _refuse(problems: list[Problem], subject: str) -> None:
    found = tuple(dict.fromkeys(problems))
    if len(found) > PROBLEMS_MAX:
        more = Problem("config", f"and {len(found) - PROBLEMS_MAX} more", "Mend these first.")
        found = (*found[:PROBLEMS_MAX], more)
    if found:
        raise BadConfig(problems=found, object=subject, next_step=STEP)


def _effective(written: WrittenExperiment, config: dict[str, Any], context: Door) -> dict[str, Any]:
    """Every setting, written or default; what is the user's own exactly as it was written."""
    found = written.model_dump(mode="json", exclude_none=True, by_alias=True)
    found["name"] = _name(written)
    found["workspace"] = context.workspace or written.workspace or "default"
    if project := context.project or written.project:
        found["project"] = project
    found["reproducibility"]["experiment_seed"] = _seed(written, context)
    found["output_rules"] = _rules(written)
    environment = written.environment
    found["environment"]["environment_variables"] = normal_variables(environment.environment_variables)
    for free in ("hyperparameters", "data"):
        found[free] = config.get(free, {})
    for section in ("checkpoint_storage", "launch"):
        if "options" in found[section]:
            found[section]["options"] = config[section].get("options", {})
    found["searcher"]["unit"] = search_of(written.searcher).unit
    if context.detached and found["entrypoint"] == DETACHED:
        del found["entrypoint"]
    ordered = {name: found[name] for name in WrittenExperiment.model_fields if name in found}
    plain_copy: dict[str, Any] = json.loads(msgspec.json.encode(ordered))
    return plain_copy


def _seed(written: WrittenExperiment, context: Door) -> int:
    seed = written.reproducibility.experiment_seed
    return context.seed if seed is None else seed


def _name(written: WrittenExperiment) -> str:
    """Its own, or that of the first script in its command, or of its command."""
    if written.name is not None:
        return written.name
    words = written.entrypoint.split() if isinstance(written.entrypoint, str) else written.entrypoint
    scripts = [word for word in words if word.endswith((".py", ".sh"))]
    word = posixpath.basename((scripts or words)[0]).rpartition(".")[0] or posixpath.basename(words[0])
    return word[:100] if word.strip() and word.isprintable() else "experiment"


def _rules(written: WrittenExperiment) -> list[dict[str, Any]]:
    """Those that were written, then the defaults of other names. One without a pattern stays, and is off."""
    mine = [rule.model_dump(mode="json", exclude_none=True) for rule in written.output_rules]
    names = [rule.name for rule in written.output_rules]
    return [*mine, *(dict(rule) for rule in DEFAULT_RULES if rule["name"] not in names)]


def _image(written: WrittenExperiment, kind: str) -> tuple[Image | None, list[Problem]]:
    environment = written.environment
    image = environment.image
    if isinstance(image, WrittenImages):
        device = _device(written, kind)
        image = {CPU: image.cpu, CUDA: image.cuda, ROCM: image.rocm}[device]
        if image is None:
            hint = f"Write environment.image.{device}, or one image for all kinds."
            problem = f"its trials run on {device} slots, and there is no image for them"
            return None, [Problem("environment.image", problem, hint)]
    if image is None:
        return None, []
    pull = Pull.ALWAYS if environment.force_pull_image else Pull.MISSING
    shm_bytes = size_in(written.resources.shm_size)
    return Image(image, pull, environment.registry_auth or "", shm_bytes), []


def _device(written: WrittenExperiment, kind: str) -> str:
    """Which of three images and sets of variables is meant: what has no accelerator is ``cpu``."""
    return kind if kind in (CUDA, ROCM) and written.resources.slots_per_trial else CPU


def needed_paths(data: Mapping[str, Any], mounts: tuple[Mount, ...], *, in_image: bool) -> tuple[str, ...]:
    """The paths that ``data.path`` and ``data.paths`` name, as a node has them: inside an image, behind its mounts.

    What lies in the image itself no node can look for.
    """
    several = data.get("paths")
    said = [data.get("path"), *(several if isinstance(several, list) else ())]
    paths = [path for path in said if isinstance(path, str) and path.startswith("/")]
    if not in_image:
        return tuple(dict.fromkeys(paths))
    found = []
    for path in paths:
        for mount in mounts:
            target = mount.target.rstrip("/")
            if path == target or path.startswith(f"{target}/"):
                found.append(mount.source.rstrip("/") + path[len(target) :])
    return tuple(dict.fromkeys(found))


def _program(
    written: WrittenExperiment, effective: dict[str, Any], image: Image | None, place: tuple[str, str]
) -> Program:
    kind, code = place
    mounts = [Mount(m.host_path, m.container_path, m.read_only) for m in written.bind_mounts]
    storage = written.checkpoint_storage
    if image is not None and isinstance(storage, WrittenSharedFs):
        mounts += [Mount(storage.host_path, storage.host_path, read_only=False)] * all(
            mount.target.rstrip("/") != storage.host_path.rstrip("/") for mount in mounts
        )
    return Program(
        argv=argv_of(written.entrypoint),
        environment=variables_of(written.environment.environment_variables, _device(written, kind)),
        code=code,
        secrets=tuple(SecretUse(name, variable) for name, variable in secrets_of(written.environment.secrets)),
        image=image,
        mounts=tuple(mounts),
        needs=needed_paths(written.data, tuple(mounts), in_image=image is not None),
        ports=tuple(port.proxy_port for port in written.environment.proxy_ports),
        launch=launching_of(written.launch, effective["launch"].get("options", {})),
        leave_signal=0,  # it hears of it from the master, and must not be killed while it saves its work
    )


def _spec(
    written: WrittenExperiment, effective: dict[str, Any], context: Door, program: Program, kind: str
) -> ExperimentSpec:
    resources, storage = written.resources, written.checkpoint_storage
    return ExperimentSpec(
        name=effective["name"],
        owner=context.owner,
        workspace=effective["workspace"],
        project=effective.get("project", ""),
        description=written.description,
        labels=tuple(dict.fromkeys(written.labels)),
        notes=written.notes,
        program=program,
        hyperparameters={name: hyperparameter_of(value) for name, value in effective["hyperparameters"].items()},
        search=search_of(written.searcher),
        resources=TrialResources(
            slots=resources.slots_per_trial,
            kind=kind,
            millicpus=round((resources.cpus or 0) * 1000),
            memory_bytes=size_in(resources.memory) if resources.memory is not None else 0,
            pool=resources.resource_pool,
            priority=resources.priority,
            weight=resources.weight,
            max_slots=resources.max_slots or 0,
            single_node=resources.is_single_node,
            even=resources.even,
        ),
        storage=storage_of(storage, effective["checkpoint_storage"].get("options", {})),
        retention=Retention(
            save_experiment_best=storage.save_experiment_best,
            save_trial_best=storage.save_trial_best,
            save_trial_latest=storage.save_trial_latest,
        ),
        max_restarts=written.max_restarts,
        leave_within_s=float(written.preemption_timeout),
        data_wait_s=float(written.data_timeout),
        preemptible=written.preemptible,
        output_rules=tuple(
            OutputRule(name=rule["name"], pattern=rule["pattern"], action=RuleAction(rule["action"]))
            for rule in effective["output_rules"]
            if "pattern" in rule
        ),
        seed=effective["reproducibility"]["experiment_seed"],
        data=effective["data"],
        profiling=written.profiling.enabled,
        no_report_timeout_s=float(written.no_report_timeout),
        no_report_action=written.no_report_action,
        webhooks=tuple(dict.fromkeys(written.integrations.webhooks.webhook_name)),
        config=msgspec.json.encode(effective, order="sorted").decode(),
        source=context.source,
        parent=context.parent,
        detached=context.detached,
        key=context.key,
    )
