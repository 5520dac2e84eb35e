"""Words that a configuration may use for what has another name today, and words that mean nothing here.

Tables only: ``spellings`` applies them, ``merging`` and ``editors`` know them.
"""

from __future__ import annotations

Path = tuple[str, ...]

RENAMED: dict[Path, dict[str, str]] = {
    (): {"log_policies": "output_rules"},
    ("resources",): {
        "slots": "slots_per_trial",
        "slots_per_task": "slots_per_trial",
        "gpus": "slots_per_trial",
        "gpu": "slots_per_trial",
        "slot_type": "kind",
        "pool": "resource_pool",
        "single_node": "is_single_node",
    },
    ("searcher",): {
        "max_length": "max_time",
        "stop_once": "promotion",
        "source_trial": "source_trial_id",
        "source_checkpoint": "source_checkpoint_uuid",
    },
    ("environment",): {"variables": "environment_variables"},
    ("environment", "image"): {"gpu": "cuda"},
    ("environment", "environment_variables"): {"gpu": "cuda"},
    ("checkpoint_storage",): {"checkpoint_path": "storage_path", "hdfs_url": "url", "hdfs_path": "path"},
}
"""By the place where they stand: the word, and today's."""

TRIAL_LOOP = "the program says itself how long it trains, when it validates and when it saves"
LAUNCHER = "nothing but the program's own launcher decides it"
MEANINGLESS: dict[Path, str] = {
    ("min_validation_period",): TRIAL_LOOP,
    ("min_checkpoint_period",): TRIAL_LOOP,
    ("perform_initial_validation",): TRIAL_LOOP,
    ("checkpoint_policy",): TRIAL_LOOP,
    ("scheduling_unit",): TRIAL_LOOP,
    ("records_per_epoch",): "lengths are counted by the program, in the unit it reports",
    ("batches_per_step",): TRIAL_LOOP,
    ("optimizations",): LAUNCHER,
    ("data_layer",): "the program reads its data itself",
    ("tensorboard_storage",): "event files are where the program writes them",
    ("internal",): "there is nothing inside to configure",
    ("security",): "who may do what is decided by roles, and Kerberos by the machine",
    ("kerberos",): "Kerberos is the machine's own matter",
    ("debug",): "output is always complete",
    ("slurm",): "how a job is started is the matter of its cluster, not of its user",
    ("pbs",): "how a job is started is the matter of its cluster, not of its user",
    ("pachyderm",): "the program reads its data itself",
    ("retention_policy",): "output is kept as long as its experiment, and deleted with it",
    ("resources", "devices"): "a trial sees exactly the slots that it was given",
    ("resources", "native_parallel"): LAUNCHER,
    ("resources", "agent_label"): "pools say which nodes belong together",
    ("environment", "pod_spec"): "there are no pods",
    ("environment", "ports"): "ports are given by the cluster; see proxy_ports",
    ("environment", "add_capabilities"): "a container gets no more rights than it needs",
    ("environment", "drop_capabilities"): "a container gets no more rights than it needs",
    ("checkpoint_storage", "propagation"): "mounts are private",
    ("checkpoint_storage", "tensorboard_path"): "event files are where the program writes them",
    ("checkpoint_storage", "user"): "HDFS is spoken to as the user that the program runs as",
    ("profiling", "begin_on_batch"): "everything is measured, from the beginning to the end",
    ("profiling", "end_after_batch"): "everything is measured, from the beginning to the end",
    ("profiling", "sync_timings"): LAUNCHER,
    ("integrations", "pachyderm"): "the program reads its data itself",
    ("integrations", "webhooks", "webhook_id"): "webhooks are called by their names; see webhook_name",
    ("integrations", "webhooks", "exclude"): "the webhooks of a workspace hear of everything in it",
}
"""Accepted, dropped, and reported with this reason."""

CREDENTIALS = ("access_key", "secret_key", "connection_string", "credential", "session_token", "password")
"""In ``checkpoint_storage``: refused, because a configuration is written down and shown."""

REMOVED_SEARCHERS = ("adaptive", "adaptive_simple", "sync_halving")

SEARCHER_COMMON = frozenset({"metric", "smaller_is_better", "source_trial_id", "source_checkpoint_uuid"})
"""What a searcher takes from a layer with another method; a length there was meant for that method."""
STORAGE_COMMON = frozenset({"save_experiment_best", "save_trial_best", "save_trial_latest"})


EMPTY_IS_ABSENT: frozenset[Path] = frozenset({("workspace",), ("project",), ("resources", "resource_pool")})
"""Names for which an empty text says as much as nothing at all."""


def canonical(path: Path, word: str) -> str:
    """Today's word for one that stands at this place."""
    return RENAMED.get(path, {}).get(word, word)


def is_free(path: Path) -> bool:
    """Inside hyperparameters, data and a class's options everything is the user's own, null too."""
    own = (("checkpoint_storage", "options"), ("launch", "options"))
    return path[:1] in (("hyperparameters",), ("data",)) or path[:2] in own
