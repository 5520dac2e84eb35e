"""A configuration as its user may write it: every setting, its kind, its default, and a sentence about it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from clutch.wire.resources import ANY, DEVICE_KINDS
from clutch.wire.specs import DEFAULT_PRIORITY
from clutch.workloads.experiment.config.model_base import (
    Command,
    Flag,
    Folder,
    Label,
    Line,
    Name,
    Number,
    Pattern,
    SecretName,
    Size,
    Target,
    Whole,
    Written,
    wrong,
)
from clutch.workloads.experiment.config.model_launch import Launch, WrittenPlainLaunch
from clutch.workloads.experiment.config.model_searcher import Searcher, WrittenSingle
from clutch.workloads.experiment.config.model_storage import CheckpointStorage, WrittenWorkspace
from clutch.workloads.experiment.config.surroundings import check_secrets, check_variables

SHM_SIZE = "4G"
"""Docker's own 64 MB are too few for the worker processes of a data loader."""
WINDOW_MAX_S = 7 * 86400
SEED_MAX = 2**31 - 1
DEFAULT_RULES = (
    {"name": "CUDA OOM", "pattern": ".*CUDA out of memory.*", "action": "none"},
    {"name": "ECC Error", "pattern": ".*uncorrectable ECC error encountered.*", "action": "none"},
)


def _kind(value: Any) -> Any:
    if value not in (*DEVICE_KINDS, ANY):
        raise wrong(f"{value!r} is no kind of slots", f"Write one of: {', '.join(DEVICE_KINDS)}, {ANY}.")
    return value


class WrittenResources(Written):
    """What each trial needs, and what all of them may hold."""

    slots_per_trial: Whole = Field(1, ge=0, le=100_000, description="A trial's slots; 0: it needs none.")
    kind: Annotated[str, BeforeValidator(_kind)] | None = Field(
        None, description="Of slots; none: cuda where the pool has it, else what the pool has."
    )
    max_slots: Whole | None = Field(None, ge=0, le=100_000, description="The most slots that all its trials hold.")
    weight: Number = Field(1.0, gt=0, le=1e6, description="Its share in a pool with fair shares.")
    priority: Whole = Field(DEFAULT_PRIORITY, ge=1, le=99, description="1 is the most important.")
    resource_pool: Name = Field("default", description="The pool its trials run in.")
    is_single_node: Flag = Field(False, description="All slots of a trial are on one node.")
    even: Flag = Field(False, description="Several nodes give a trial the same number of slots each.")
    shm_size: Size = Field(SHM_SIZE, description="Size of /dev/shm in a container.")
    cpus: Number | None = Field(None, ge=0, le=1e6, description="CPUs for each slot, or for a trial without slots.")
    memory: Size | None = Field(None, description="Memory for each slot, or for a trial without slots.")


class WrittenImages(Written):
    """An image for each kind of slots."""

    cpu: Line | None = None
    cuda: Line | None = None
    rocm: Line | None = None


class WrittenPort(Written):
    """A port of the program that the proxy reaches."""

    proxy_port: Whole = Field(ge=0, le=65535, description="0: any free one, told in CLUTCH_PORT_n.")


class WrittenEnvironment(Written):
    """What surrounds the program."""

    image: Line | WrittenImages | None = Field(None, description="The container image; none: it runs as a process.")
    environment_variables: Annotated[
        Any, BeforeValidator(check_variables), WithJsonSchema({"type": ["array", "object"]})
    ] = Field({}, description="A map, a list of NAME=VALUE, or a map of those for each kind of slots.")
    secrets: Annotated[Any, BeforeValidator(check_secrets), WithJsonSchema({"type": ["array", "object"]})] = Field(
        [], description="Secrets as environment variables: NAME, NAME=VARIABLE, or a map VARIABLE: NAME."
    )
    proxy_ports: list[WrittenPort] = Field([], max_length=16, description="Ports that the proxy reaches.")
    force_pull_image: Flag = Field(False, description="Fetch the image before every start.")
    registry_auth: SecretName | None = Field(
        None, description="The secret that holds USER:PASSWORD for the image's registry."
    )


class WrittenMount(Written):
    """A folder or file of the node that the program sees."""

    host_path: Folder
    container_path: Target
    read_only: Flag = False


class WrittenRule(Written):
    """A line of output that matches ``pattern`` labels its trial with ``name`` and does ``action``."""

    name: Label
    pattern: Pattern | None = Field(None, description="None: the rule of this name is off.")
    action: Literal["cancel_retries", "exclude_node", "none"] = "none"


class WrittenReproducibility(Written):
    experiment_seed: Whole | None = Field(None, ge=0, le=SEED_MAX, description="Every chance in it comes from this.")


class WrittenProfiling(Written):
    enabled: Flag = Field(False, description="Measure CPU, memory, network, disks and devices of every trial.")


class WrittenWebhooks(Written):
    webhook_name: list[Name] = Field([], description="Webhooks that hear of it, besides those of its workspace.")


class WrittenIntegrations(Written):
    webhooks: WrittenWebhooks = WrittenWebhooks.model_validate({})


class WrittenExperiment(Written):
    """The configuration of an experiment."""

    name: Line | None = Field(None, description="What people call it; none: its program's name.")
    description: Annotated[str, Field(max_length=10_000)] = Field("", description="What it is for.")
    labels: list[Label] = Field([], max_length=100, description="Words it is found by.")
    notes: Annotated[str, Field(max_length=100_000)] = Field("", description="Anything worth remembering.")
    workspace: Name | None = Field(None, description="Where it belongs; none: default.")
    project: Name | None = Field(None, description="Of its workspace.")
    entrypoint: Command = Field(description="What each trial runs: a line for sh, or a list of words.")
    launch: Launch = WrittenPlainLaunch.model_validate({"name": "plain"})
    data: dict[str, Any] = Field({}, description="Anything the program wants to know.")
    hyperparameters: dict[str, Any] = Field({}, description="Constants and ranges, to any depth.")
    searcher: Searcher = WrittenSingle.model_validate({"name": "single"})
    resources: WrittenResources = WrittenResources.model_validate({})
    max_restarts: Whole = Field(5, ge=0, le=10_000, description="A trial that fails begins again so often.")
    preemption_timeout: Number = Field(
        3600.0, ge=0, le=WINDOW_MAX_S, description="Seconds a trial has to save its work before it is ended."
    )
    data_timeout: Number = Field(
        3600.0, ge=0, le=WINDOW_MAX_S, description="Seconds a trial that has run waits for data that has gone."
    )
    preemptible: Flag = Field(True, description="It may be asked to leave for something more important.")
    no_report_timeout: Number = Field(
        0.0, ge=0, le=366 * 86400, description="A trial that reports nothing for so many seconds hangs; 0: never."
    )
    no_report_action: Literal["dump", "restart"] = Field(
        "dump", description="A process that hangs shows the stacks of its threads; restart: and then begins again."
    )
    checkpoint_storage: CheckpointStorage = WrittenWorkspace.model_validate({})
    environment: WrittenEnvironment = WrittenEnvironment.model_validate({})
    bind_mounts: list[WrittenMount] = Field([], max_length=100)
    output_rules: list[WrittenRule] = Field([], max_length=100, description="What lines of output mean.")
    reproducibility: WrittenReproducibility = WrittenReproducibility.model_validate({})
    profiling: WrittenProfiling = WrittenProfiling.model_validate({})
    integrations: WrittenIntegrations = WrittenIntegrations.model_validate({})
