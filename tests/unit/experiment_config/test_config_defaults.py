"""Every setting has the default that the reference says, and a setting reaches the spec."""

from __future__ import annotations

from typing import Any

import pytest

from clutch.wire.containers import Pull
from clutch.wire.errors import BadConfig
from clutch.wire.experiments import (
    AdaptiveAsha,
    Asha,
    Custom,
    Grid,
    Pbt,
    RandomSearch,
    Retention,
    SearchSpec,
    Storage,
    Tpe,
    TrialResources,
)
from clutch.wire.programs import SecretUse
from clutch.workloads.experiment.config import Door, accepted

ENTRY = {"entrypoint": "python train.py"}


def spec_of(config: dict[str, Any], **door: Any) -> Any:
    return accepted({**ENTRY, **config}, Door(**door)).spec


def test_the_least_configuration_has_every_default() -> None:
    found = accepted(ENTRY, Door(seed=5))
    assert found.notices == ()
    assert found.effective == {
        "name": "train",
        "description": "",
        "labels": [],
        "notes": "",
        "workspace": "default",
        "entrypoint": "python train.py",
        "launch": {"name": "plain"},
        "data": {},
        "hyperparameters": {},
        "searcher": {"name": "single", "metric": "loss", "smaller_is_better": True, "unit": "steps"},
        "resources": {
            "slots_per_trial": 1,
            "weight": 1.0,
            "priority": 42,
            "resource_pool": "default",
            "is_single_node": False,
            "even": False,
            "shm_size": "4G",
        },
        "max_restarts": 5,
        "preemption_timeout": 3600.0,
        "data_timeout": 3600.0,
        "preemptible": True,
        "no_report_timeout": 0.0,
        "no_report_action": "dump",
        "checkpoint_storage": {
            "type": "workspace",
            "save_experiment_best": 0,
            "save_trial_best": 1,
            "save_trial_latest": 1,
        },
        "environment": {"environment_variables": {}, "secrets": [], "proxy_ports": [], "force_pull_image": False},
        "bind_mounts": [],
        "output_rules": [
            {"name": "CUDA OOM", "pattern": ".*CUDA out of memory.*", "action": "none"},
            {"name": "ECC Error", "pattern": ".*uncorrectable ECC error encountered.*", "action": "none"},
        ],
        "reproducibility": {"experiment_seed": 5},
        "profiling": {"enabled": False},
        "integrations": {"webhooks": {"webhook_name": []}},
    }
    spec = found.spec
    assert (spec.name, spec.owner, spec.workspace, spec.project, spec.seed) == ("train", "nobody", "default", "", 5)
    assert (spec.search, spec.resources, spec.storage) == (SearchSpec(), TrialResources(kind="any"), Storage())
    assert (spec.retention, spec.max_restarts, spec.leave_within_s) == (Retention(), 5, 3600.0)
    assert spec.program.argv == ("sh", "-c", "python train.py")
    assert (spec.program.environment, spec.program.image, spec.program.mounts, spec.program.ports) == ({}, None, (), ())
    assert spec.preemptible and not spec.profiling and not spec.detached


@pytest.mark.parametrize(
    ("searcher", "method"),
    [
        ({"name": "random", "max_trials": 3}, RandomSearch(3, 16)),
        ({"name": "grid"}, Grid(16)),
        ({"name": "asha", "max_trials": 3, "max_time": 9}, Asha(3, 5, 4.0, 16, False)),
        ({"name": "adaptive_asha", "max_trials": 3, "max_time": 9}, AdaptiveAsha(3, "standard", 5, (), 4.0, 16, False)),
        ({"name": "pbt", "population_size": 4, "num_rounds": 2, "length_per_round": 5}, Pbt(4, 2, 5, 0.2, 0.2, 0.2, 0)),
        ({"name": "custom"}, Custom((), 0)),
        ({"name": "tpe", "max_trials": 3}, Tpe(3, 4, 10)),
    ],
)
def test_methods_and_their_defaults(searcher: dict[str, Any], method: object) -> None:
    search = spec_of({"searcher": {"metric": "loss", **searcher}}).search
    assert search.method == method
    assert search.smaller_is_better
    assert (search.unit, search.time_metric, search.source_trial, search.source_checkpoint) == ("steps", "", "", "")


@pytest.mark.parametrize("name", ["random", "grid", "asha", "adaptive_asha", "pbt", "custom", "tpe"])
def test_a_search_needs_a_metric(name: str) -> None:
    with pytest.raises(BadConfig) as caught:
        spec_of({"searcher": {"name": name}})
    assert "searcher.metric" in [problem.path for problem in caught.value.problems]


def test_commands() -> None:
    assert spec_of({"entrypoint": ["python", "a b.py"]}).program.argv == ("python", "a b.py")
    assert spec_of({"entrypoint": "a && b"}).program.argv == ("sh", "-c", "a && b")
    custom = {"name": "custom", "metric": "x", "entrypoint": ["python", "search.py"]}
    assert spec_of({"searcher": custom}).search.method == Custom(("python", "search.py"), 0)


@pytest.mark.parametrize(
    ("entrypoint", "name"),
    [
        ("python3 src/train.py --x 1", "train"),
        (["bash", "/opt/run.sh"], "run"),
        ("make -j", "make"),
        ("   ls", "ls"),
        (["/bin/true"], "true"),
    ],
)
def test_an_experiment_without_a_name_has_its_programs(entrypoint: Any, name: str) -> None:
    assert spec_of({"entrypoint": entrypoint}).name == name


@pytest.mark.parametrize(
    ("kinds", "written", "kind"),
    [
        ((), {}, "any"),
        (("cpu", "cuda"), {}, "cuda"),
        (("artificial", "cpu"), {}, "artificial"),
        (("rocm",), {}, "rocm"),
        (("rocm",), {"kind": "cpu"}, "cpu"),
        (("cuda",), {"slot_type": "rocm"}, "rocm"),
        (("cuda",), {"kind": "any"}, "any"),
    ],
)
def test_the_kind_of_slots(kinds: tuple[str, ...], written: dict[str, Any], kind: str) -> None:
    assert spec_of({"resources": written}, kinds=kinds).resources.kind == kind


@pytest.mark.parametrize("asked", [{}, {"kind": "any"}])
@pytest.mark.parametrize(("kinds", "kind"), [((), "cuda"), (("rocm",), "rocm")])
def test_what_depends_on_the_kind_of_slots_decides_it(asked: dict[str, Any], kinds: tuple[str, ...], kind: str) -> None:
    images = {"cpu": "c", "cuda": "g", "rocm": "r"}
    spec = spec_of({"resources": asked, "environment": {"image": images}}, kinds=kinds)
    assert spec.resources.kind == kind
    assert spec.program.image is not None and spec.program.image.name == {"cuda": "g", "rocm": "r"}[kind]


def test_resources_reach_the_spec() -> None:
    written = {
        "slots_per_trial": 8,
        "max_slots": 32,
        "weight": 2,
        "priority": 7,
        "resource_pool": "a100",
        "is_single_node": True,
        "even": True,
        "cpus": 1.5,
        "memory": "1.5G",
    }
    assert spec_of({"resources": written}).resources == TrialResources(
        slots=8,
        kind="any",
        max_slots=32,
        weight=2.0,
        priority=7,
        pool="a100",
        single_node=True,
        even=True,
        millicpus=1500,
        memory_bytes=3 * 2**29,
    )


@pytest.mark.parametrize(
    ("size", "amount"), [("1.5G", 3 * 2**29), ("512M", 2**29), ("1 GB", 10**9), (1024, 1024), ("64k", 65536)]
)
def test_sizes(size: Any, amount: int) -> None:
    image = spec_of({"environment": {"image": "x"}, "resources": {"shm_size": size}}).program.image
    assert image.shm_bytes == amount


def test_an_image_has_room_for_shared_memory_unless_told_otherwise() -> None:
    image = spec_of({"environment": {"image": "x", "force_pull_image": "yes", "registry_auth": "hub"}}).program.image
    assert (image.shm_bytes, image.pull, image.registry_secret) == (4 * 2**30, Pull.ALWAYS, "hub")


@pytest.mark.parametrize(
    ("storage", "address", "secret"),
    [
        ({}, "", ""),
        ({"type": "workspace"}, "", ""),
        ({"type": "shared_fs", "host_path": "/nfs"}, "file:///nfs", ""),
        ({"type": "shared_fs", "host_path": "/nfs", "storage_path": "/nfs/a b"}, "file:///nfs/a%20b", ""),
        ({"type": "directory", "container_path": "/ckpt"}, "file:///ckpt", ""),
        ({"type": "s3", "bucket": "b", "credentials": "keys"}, "s3://b", "keys"),
        (
            {"type": "s3", "bucket": "b", "region": "eu-1", "prefix": "/p/"},
            "s3://b/p?region=eu-1&credentials=ambient",
            "",
        ),
        ({"type": "gcs", "bucket": "b", "key_file": "/k.json"}, "gs://b?key_file=%2Fk.json", ""),
        ({"type": "azure", "container": "c", "account": "acc", "credentials": "az"}, "az://acc@c", "az"),
        (
            {"type": "azure", "container": "c", "account_url": "https://x.y"},
            "az://c?endpoint=https%3A%2F%2Fx.y&credentials=ambient",
            "",
        ),
        ({"type": "hdfs", "url": "hdfs://nn:8020/runs"}, "hdfs://nn:8020/runs", ""),
        ({"type": "hdfs", "host": "nn", "port": 9000, "path": "/runs"}, "hdfs://nn:9000/runs", ""),
        ({"class": "mine.store:Keeper", "options": {"a": None}}, "class:mine.store:Keeper", ""),
        ("s3://b/p/q", "s3://b/p/q?credentials=ambient", ""),
        ("/data/ckpt", "file:///data/ckpt", ""),
        ("file:///data/ckpt", "file:///data/ckpt", ""),
        ("hdfs://nn/x", "hdfs://nn/x", ""),
    ],
)
def test_places(storage: Any, address: str, secret: str) -> None:
    found = spec_of({"checkpoint_storage": storage}).storage
    assert (found.address, found.secret) == (address, secret)


def test_object_stores_can_be_opened_at_their_addresses() -> None:
    """The addresses are those that ``open_blobs`` takes."""
    import asyncio

    from clutch.backends.blobs.opening import open_blobs

    async def open_all() -> None:
        for storage in (
            {"type": "s3", "bucket": "b", "prefix": "p q", "endpoint_url": "http://127.0.0.1:1", "credentials": "k"},
            {"type": "azure", "container": "c", "credentials": "k", "account": "acc"},
        ):
            address = spec_of({"checkpoint_storage": storage}).storage.address
            blobs = await open_blobs(address, keys=("account", "c2VjcmV0"))
            await blobs.close()

    asyncio.run(open_all())


def test_a_class_gets_its_options_as_written() -> None:
    storage = spec_of({"checkpoint_storage": {"class": "m:C", "options": {"a": None, "b": [1]}}}).storage
    assert storage.options == {"a": None, "b": [1]}


def test_a_shared_folder_is_seen_inside_a_container_too() -> None:
    config = {"checkpoint_storage": {"type": "shared_fs", "host_path": "/nfs"}, "environment": {"image": "x"}}
    assert [(m.source, m.target, m.read_only) for m in spec_of(config).program.mounts] == [("/nfs", "/nfs", False)]
    config["bind_mounts"] = [{"host_path": "/other", "container_path": "/nfs/"}]
    assert [m.source for m in spec_of(config).program.mounts] == ["/other"]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (["A=1", "B=x=y", "A=2"], {"A": "2", "B": "x=y"}),
        ({"A": 1, "B": True, "C": "no", "D": None, "E": 1e-3}, {"A": "1", "B": "true", "C": "no", "E": "0.001"}),
        ({"cuda": ["A=1"], "cpu": ["A=2"]}, {"A": "1"}),
        ({"gpu": ["A=1"]}, {"A": "1"}),
        ({"cpu": {"A": 2}}, {}),
        ({"cpu": "4"}, {"cpu": "4"}),
        ([], {}),
    ],
)
def test_variables(variables: Any, expected: dict[str, str]) -> None:
    assert spec_of({"environment": {"environment_variables": variables}}).program.environment == expected


def test_secrets_by_name() -> None:
    uses = (SecretUse("hf-token", "HF_TOKEN"), SecretUse("db", "DATABASE"))
    assert spec_of({"environment": {"secrets": ["hf-token", "db=DATABASE"]}}).program.secrets == uses
    assert spec_of({"environment": {"secrets": {"HF_TOKEN": "hf-token", "DATABASE": "db"}}}).program.secrets == uses


def test_the_door_outranks_the_configuration_where_it_says() -> None:
    written = {"workspace": "a", "project": "b", "reproducibility": {"experiment_seed": 3}}
    spec = spec_of(written, workspace="w", project="p", owner="ada", code="sha256:x", key="k", parent="e-1", seed=9)
    assert (spec.workspace, spec.project, spec.owner, spec.program.code) == ("w", "p", "ada", "sha256:x")
    assert (spec.key, spec.parent, spec.seed) == ("k", "e-1", 3)
    assert (spec_of(written).workspace, spec_of(written).project) == ("a", "b")


def test_a_detached_run_needs_no_command() -> None:
    found = accepted({"name": "outside"}, Door(detached=True))
    assert found.spec.detached
    assert "entrypoint" not in found.effective
    with pytest.raises(BadConfig, match="entrypoint: it is missing"):
        accepted({"name": "outside"}, Door())


def test_a_single_trial_with_ranges_draws_them_once() -> None:
    found = accepted({**ENTRY, "hyperparameters": {"a": {"b": {"type": "int", "minval": 1, "maxval": 2}}}}, Door())
    assert found.spec.search.method == RandomSearch(1, 16)
    assert [notice.path for notice in found.notices] == ["hyperparameters.a.b"]


def test_rules_are_off_without_a_pattern() -> None:
    spec = spec_of({"output_rules": [{"name": "CUDA OOM", "pattern": None}, {"name": "x", "pattern": "y"}]})
    assert [rule.name for rule in spec.output_rules] == ["x", "ECC Error"]
