"""Configurations as people have them: written for Determined, accepted here as they are."""

from __future__ import annotations

from pathlib import Path

import jsonschema_rs
import msgspec
import pytest

from clutch.wire.experiments import (
    AdaptiveAsha,
    Asha,
    Categorical,
    Const,
    Custom,
    Double,
    ExperimentSpec,
    Int,
    Log,
    Nested,
    Pbt,
    RandomSearch,
    RuleAction,
    Single,
    Tpe,
)
from clutch.workloads.experiment.config import Accepted, Door, accepted, check_partial, config_in, merged, schema

CORPUS = Path(__file__).parent / "corpus"
NAMES = sorted(path.name for path in CORPUS.iterdir())


def read(name: str) -> Accepted:
    text = (CORPUS / name).read_text()
    return accepted(config_in(text, name), Door(owner="ada", source=text, seed=11, kinds=("cuda", "cpu")))


def noticed(name: str) -> dict[str, str]:
    return {notice.path: notice.problem for notice in read(name).notices}


def test_the_corpus_is_whole() -> None:
    assert len(NAMES) >= 15


@pytest.mark.parametrize("name", NAMES)
def test_each_is_accepted_and_its_effective_form_means_the_same(name: str) -> None:
    found = read(name)
    again = accepted(found.effective, Door(owner="ada", source=found.spec.source, seed=99, kinds=("cuda", "cpu")))
    assert again.spec == found.spec
    assert again.effective == found.effective
    old = [notice for notice in again.notices if "now" in notice.problem or "means nothing here" in notice.problem]
    assert old == [], "the effective form is in today's words"
    assert merged([found.effective, {}]) == found.effective
    assert msgspec.json.decode(found.spec.config) == found.effective
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found.spec), type=ExperimentSpec) == found.spec
    assert found.spec.program.leave_signal == 0


@pytest.mark.parametrize("name", NAMES)
def test_each_is_a_template_and_right_for_an_editor(name: str) -> None:
    config = config_in((CORPUS / name).read_text(), name)
    check_partial(config)
    validator = jsonschema_rs.validator_for(schema())
    assert [error.message for error in validator.iter_errors(config)] == []
    assert [error.message for error in validator.iter_errors(read(name).effective)] == []


def test_one_run() -> None:
    spec = read("vision_single.yaml").spec
    assert spec.name == "resnet50 on imagenet, one run"
    assert (spec.workspace, spec.project) == ("Uncategorized", "Uncategorized")
    assert spec.search.method == Single()
    assert (spec.search.max_time, spec.search.unit, spec.search.smaller_is_better) == (90, "epochs", False)
    assert spec.hyperparameters["learning_rate"] == Const(3.1e-4)
    assert spec.hyperparameters["weight_decay"] == Const(5e-5)
    assert spec.hyperparameters["warmup"] == Const(None)
    assert spec.hyperparameters["augmentations"] == Const(["crop", "flip"])
    assert spec.program.argv[:2] == ("sh", "-c")
    assert sorted(noticed("vision_single.yaml")) == [
        "checkpoint_policy",
        "min_checkpoint_period",
        "min_validation_period",
        "records_per_epoch",
        "searcher.max_length",
    ]


def test_lengths_of_old_promote_and_those_of_today_stop() -> None:
    adaptive = read("vision_adaptive.yaml").spec.search
    assert adaptive.method == AdaptiveAsha(
        64, mode="aggressive", bracket_rungs=(3, 2), max_concurrent_trials=8, promotion=True
    )
    assert (adaptive.max_time, adaptive.unit) == (937, "batches")
    stopping = read("vision_adaptive_stopping.yaml").spec.search
    assert stopping.method == Asha(50, num_rungs=3, divisor=3.0, promotion=False)
    assert (stopping.time_metric, stopping.unit) == ("epochs", "epochs")
    assert "searcher.name" in noticed("vision_adaptive_stopping.yaml")


def test_images_and_variables_are_those_of_the_slots() -> None:
    grid = read("grid_parallelism.yaml").spec
    assert grid.program.image is not None and grid.program.image.name == "example/cuda"
    assert grid.program.environment == {"NCCL_DEBUG": "WARN"}
    language = read("language_model.yaml").spec
    assert language.program.image is not None
    assert language.program.image.name == "example/lm-training:24.06"
    assert language.program.image.shm_bytes == 64 * 2**30
    assert language.program.environment["NCCL_SOCKET_IFNAME"] == "ens,eth,ib"
    assert {"entrypoint", "environment.image.gpu", "optimizations"} <= set(noticed("language_model.yaml"))
    warm = read("warm_start.json").spec
    assert warm.program.environment == {"DEBUG": "no", "WORKERS": "4"}
    assert "data.secrets" in noticed("warm_start.json")


def test_hyperparameters_in_hyperparameters() -> None:
    spec = read("grid_parallelism.yaml").spec
    inside = spec.hyperparameters["overwrite_values"]
    assert isinstance(inside, Nested)
    assert inside.vals["pipe_parallel_size"] == Categorical((1, 2, 4))
    assert inside.vals["micro_batch"] == Int(1, 8, 4)
    assert inside.vals["fp16"] == Nested({"enabled": Const(True), "loss_scale": Const(0)})
    assert read("vision_adaptive.yaml").spec.hyperparameters["learning_rate"] == Log(-5.0, -1.0, 10.0)
    assert read("vision_adaptive.yaml").spec.hyperparameters["dropout"] == Double(0.2, 0.8)
    anchored = read("shared_ranges.yaml").spec.hyperparameters["decoder"]
    assert anchored == Nested({"width": Int(32, 512), "dropout": Const(0.2)})


def test_places_of_checkpoints() -> None:
    nfs = read("random_shared_fs.yaml").spec
    assert nfs.storage.address == "file:///mnt/nfs/checkpoints/search"
    assert (nfs.retention.save_experiment_best, nfs.retention.save_trial_latest) == (3, 0)
    assert [(mount.source, mount.read_only) for mount in nfs.program.mounts] == [
        ("/mnt/nfs/data", True),
        ("/scratch", False),
    ]
    assert read("checkpoint_s3.yaml").spec.storage.address == (
        "s3://team-checkpoints/vision/2024?endpoint=https%3A%2F%2Fminio.internal%3A9000&credentials=ambient"
    )
    kept = read("checkpoint_only_retention.yaml").spec
    assert (kept.storage.address, kept.retention.save_trial_latest) == ("", 5)
    assert read("checkpoint_gcs_azure.yaml").spec.storage.address == "gs://run-checkpoints/nightly?credentials=ambient"


def test_output_rules_of_old() -> None:
    spec = read("output_rules.yaml").spec
    assert [(rule.name, rule.action) for rule in spec.output_rules] == [
        ("ECC Error", RuleAction.EXCLUDE_NODE),
        (".*NaN in loss.*", RuleAction.CANCEL_RETRIES),
    ]
    assert spec.leave_within_s == 120.0
    assert {"log_policies", "retention_policy"} <= set(noticed("output_rules.yaml"))


def test_the_other_methods() -> None:
    population = read("population.yaml").spec.search
    assert population.method == Pbt(20, 10, 200, 0.2, 0.3, 0.1)
    assert population.unit == "batches"
    assert read("custom_search.yaml").spec.search.method == Custom()
    assert read("custom_search.yaml").spec.webhooks == ("team-chat",)
    assert read("shared_ranges.yaml").spec.search.method == Tpe(30)
    hpc = read("hpc.yaml").spec
    assert hpc.search.method == RandomSearch(2, 0)
    assert (hpc.search.max_time, hpc.search.unit, hpc.seed, hpc.profiling) == (64000, "records", 777, True)
    assert {"slurm", "pbs", "security", "resources.agent_label"} <= set(noticed("hpc.yaml"))


def test_what_means_nothing_says_why() -> None:
    told = noticed("ray_ports.yaml")
    for path in ("resources.devices", "resources.native_parallel", "environment.pod_spec"):
        assert told[path].startswith("it means nothing here: "), path
    assert "environment.proxy_ports[1].unauthenticated" in told
    assert read("ray_ports.yaml").spec.program.ports == (6379, 8265)
    assert noticed("shared_ranges.yaml")["resources.gpus"] == "slots_per_trial says the same, and counts"
