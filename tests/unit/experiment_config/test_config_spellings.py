"""Old words are understood, and it is said that they were."""

from __future__ import annotations

from typing import Any

import pytest

from clutch.wire.experiments import AdaptiveAsha, Asha, Pbt
from clutch.workloads.experiment.config import Door, accepted
from clutch.workloads.experiment.config.words import MEANINGLESS, RENAMED

ENTRY = {"entrypoint": "python train.py"}
ASHA = {"name": "asha", "metric": "loss", "max_trials": 4}
RANGE = {"a": {"type": "int", "minval": 1, "maxval": 9}}


def read(config: dict[str, Any]) -> tuple[Any, dict[str, str]]:
    found = accepted({**ENTRY, **config}, Door())
    return found.spec, {notice.path: notice.problem for notice in found.notices}


@pytest.mark.parametrize(
    ("searcher", "max_time", "unit", "promotion"),
    [
        ({"max_length": 100}, 100, "steps", True),
        ({"max_length": {"batches": 100}}, 100, "batches", True),
        ({"max_length": {"epochs": 3}, "stop_once": True}, 3, "epochs", False),
        ({"max_length": {"records": 3}, "stop_once": False}, 3, "records", True),
        ({"max_length": {"epochs": 3}, "unit": "steps"}, 3, "steps", True),
        ({"max_length": 1e3}, 1000, "steps", True),
        ({"max_length": 5, "promotion": False}, 5, "steps", False),
        ({"max_time": 100}, 100, "steps", False),
        ({"max_time": 100, "stop_once": True}, 100, "steps", False),
        ({"max_time": 100, "stop_once": False}, 100, "steps", True),
        ({"max_time": 100, "promotion": True, "stop_once": True}, 100, "steps", True),
        ({"max_time": 7, "max_length": {"epochs": 100}}, 7, "steps", False),
        ({"max_time": 7, "time_metric": "epochs"}, 7, "epochs", False),
        ({"max_time": 7, "time_metric": "examples_seen"}, 7, "steps", False),
    ],
)
def test_lengths(searcher: dict[str, Any], max_time: int, unit: str, promotion: bool) -> None:
    for name, kind in (("asha", Asha), ("async_halving", Asha), ("adaptive_asha", AdaptiveAsha)):
        spec, noticed = read({"searcher": {**ASHA, **searcher, "name": name}, "hyperparameters": RANGE})
        assert isinstance(spec.search.method, kind)
        assert (spec.search.max_time, spec.search.unit) == (max_time, unit)
        assert spec.search.method.promotion is promotion
        assert ("searcher.max_length" in noticed) == ("max_length" in searcher)
        assert ("searcher.name" in noticed) == (name == "async_halving")


def test_pbt_of_old() -> None:
    written = {
        "name": "pbt",
        "metric": "x",
        "population_size": 4,
        "num_rounds": 3,
        "length_per_round": {"epochs": 2},
        "replace_function": {"truncate_fraction": 0.1},
        "explore_function": {"resample_probability": 0.5},
    }
    spec, noticed = read({"searcher": written, "hyperparameters": RANGE})
    assert spec.search.method == Pbt(4, 3, 2, 0.1, 0.5, 0.2)
    assert spec.search.unit == "epochs"
    assert sorted(noticed) == [
        "searcher.explore_function",
        "searcher.length_per_round",
        "searcher.replace_function",
    ]


VALUES: dict[str, Any] = {
    "output_rules": [],
    "slots_per_trial": 3,
    "kind": "cpu",
    "resource_pool": "p",
    "is_single_node": True,
    "source_trial_id": "e-1.2",
    "source_checkpoint_uuid": "u",
    "environment_variables": {"A": "1"},
    "cuda": "image",
    "storage_path": "in",
    "url": "hdfs://nn/x",
    "path": "/x",
}
BESIDE: dict[str, dict[str, Any]] = {
    "storage_path": {"type": "shared_fs", "host_path": "/nfs"},
    "url": {"type": "hdfs"},
    "path": {"type": "hdfs", "host": "nn"},
    "source_trial_id": {"name": "single"},
    "source_checkpoint_uuid": {"name": "single"},
}
SIMPLE = [
    (path, old, new)
    for path, words in RENAMED.items()
    for old, new in words.items()
    if old not in ("max_length", "stop_once") and path != ("environment", "environment_variables")
]


@pytest.mark.parametrize(("path", "old", "new"), SIMPLE)
def test_every_renamed_word_is_understood_and_noticed(path: tuple[str, ...], old: str, new: str) -> None:
    def at(word: str) -> dict[str, Any]:
        inner: dict[str, Any] = {**BESIDE.get(new, {}), word: VALUES[new]}
        for part in reversed(path):
            inner = {part: inner}
        return inner

    today, quiet = read(at(new))
    spec, noticed = read(at(old))
    assert spec == today
    assert list(noticed) == [*quiet, ".".join((*path, old))]


@pytest.mark.parametrize("path", MEANINGLESS)
def test_every_setting_without_a_meaning_is_accepted_with_a_reason(path: tuple[str, ...]) -> None:
    inner: Any = {path[-1]: {"anything": [1, 2]}}
    for part in reversed(path[:-1]):
        inner = {part: inner}
    spec, noticed = read(inner)
    assert noticed[".".join(path)] == f"it means nothing here: {MEANINGLESS[path]}"
    assert spec == read({})[0]


def test_text_that_may_be_meant_otherwise_is_noticed() -> None:
    spec, noticed = read({"hyperparameters": {"lr": "1e-3", "a": {"flag": "no"}, "b": ["off", "fine", "yes"]}})
    assert sorted(noticed) == [
        "hyperparameters.a.flag",
        "hyperparameters.b[0]",
        "hyperparameters.b[2]",
        "hyperparameters.lr",
    ]
    assert spec.hyperparameters["lr"].val == "1e-3"


def test_truth_in_words() -> None:
    spec, _ = read(
        {
            "searcher": {"name": "single", "smaller_is_better": "no"},
            "preemptible": "off",
            "profiling": {"enabled": "on"},
        }
    )
    assert (spec.search.smaller_is_better, spec.preemptible, spec.profiling) == (False, False, True)


def test_what_will_not_do_what_one_may_think_is_noticed() -> None:
    _, noticed = read({"searcher": {"name": "random", "metric": "x", "max_trials": 3}, "hyperparameters": {"a": 1}})
    assert "nothing to search" in noticed["hyperparameters"]
    _, noticed = read({"resources": {"shm_size": "1G"}, "environment": {"force_pull_image": True}})
    assert sorted(noticed) == ["environment.force_pull_image", "resources.shm_size"]
    _, noticed = read({"entrypoint": "python -m determined.launch.torch_distributed train.py"})
    assert "entrypoint" in noticed
    flat = {"a": {"type": "log", "minval": -1, "maxval": 3, "base": 1}, "b": {"deep": [7, RANGE["a"], "x"]}}
    _, noticed = read({"hyperparameters": flat, "searcher": {"name": "random", "metric": "loss", "max_trials": 3}})
    assert "does not vary" in noticed["hyperparameters.a.base"]
    assert "not searched" in noticed["hyperparameters.b.deep[1]"]


def test_empty_names_say_nothing() -> None:
    """An exported configuration has them where nothing was written."""
    written = {"workspace": "", "project": "", "resources": {"pool": ""}}
    assert read(written)[0] == read({})[0]
