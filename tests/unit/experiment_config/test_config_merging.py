"""Layers as truth tables, and the laws of laying them over one another."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clutch.workloads.experiment.config import Door, accepted, merged

RANGE = {"type": "int", "minval": 1, "maxval": 9}


@pytest.mark.parametrize(
    ("upper", "lower", "expected"),
    [
        # scalars: the first that is set
        ({"max_restarts": 1}, {"max_restarts": 2}, {"max_restarts": 1}),
        ({}, {"max_restarts": 2}, {"max_restarts": 2}),
        ({"max_restarts": None}, {"max_restarts": 2}, {"max_restarts": 2}),
        ({"max_restarts": 0}, {"max_restarts": 2}, {"max_restarts": 0}),
        ({"description": ""}, {"description": "x"}, {"description": ""}),
        # maps: key by key
        (
            {"resources": {"weight": 2}},
            {"resources": {"weight": 3, "priority": 9}},
            {"resources": {"weight": 2, "priority": 9}},
        ),
        ({"resources": {"weight": None}}, {"resources": {"weight": 3}}, {"resources": {"weight": 3}}),
        ({"resources": 5}, {"resources": {"weight": 3}}, {"resources": 5}),
        (
            {"data": {"a": {"b": 1}, "n": None}},
            {"data": {"a": {"c": 2}, "n": 1}},
            {"data": {"a": {"b": 1, "c": 2}, "n": None}},
        ),
        # of some names, the empty one is none
        ({"project": ""}, {"project": "x"}, {"project": "x"}),
        ({"resources": {"pool": ""}}, {"resources": {"resource_pool": "x"}}, {"resources": {"resource_pool": "x"}}),
        # old words are what they stand for
        ({"resources": {"slots": 4}}, {"resources": {"slots_per_trial": 8}}, {"resources": {"slots": 4}}),
        ({"resources": {"slots_per_trial": 4}}, {"resources": {"gpus": 8}}, {"resources": {"slots_per_trial": 4}}),
        # hyperparameters: whole, unless both are maps without a type
        (
            {"hyperparameters": {"a": RANGE}},
            {"hyperparameters": {"a": {**RANGE, "count": 5}}},
            {"hyperparameters": {"a": RANGE}},
        ),
        (
            {"hyperparameters": {"a": {"x": 1}}},
            {"hyperparameters": {"a": {"y": 2}, "b": 3}},
            {"hyperparameters": {"a": {"x": 1, "y": 2}, "b": 3}},
        ),
        ({"hyperparameters": {"a": {"x": 1}}}, {"hyperparameters": {"a": RANGE}}, {"hyperparameters": {"a": {"x": 1}}}),
        ({"hyperparameters": {"a": RANGE}}, {"hyperparameters": {"a": {"x": 1}}}, {"hyperparameters": {"a": RANGE}}),
        ({"hyperparameters": {"a": None}}, {"hyperparameters": {"a": {"x": 1}}}, {"hyperparameters": {"a": None}}),
        (
            {"hyperparameters": {"type": "resnet"}},
            {"hyperparameters": {"lr": 1}},
            {"hyperparameters": {"type": "resnet", "lr": 1}},
        ),
        ({"hyperparameters": None}, {"hyperparameters": {"a": 1}}, {"hyperparameters": {"a": 1}}),
        # unions: one kind key by key, else what all kinds have
        (
            {"searcher": {"name": "random", "max_trials": 10}},
            {"searcher": {"metric": "sae", "smaller_is_better": True}},
            {"searcher": {"name": "random", "max_trials": 10, "metric": "sae", "smaller_is_better": True}},
        ),
        (
            {"searcher": {"name": "random"}},
            {"searcher": {"name": "random", "max_trials": 3}},
            {"searcher": {"name": "random", "max_trials": 3}},
        ),
        (
            {"searcher": {"name": "asha"}},
            {"searcher": {"name": "async_halving", "num_rungs": 3}},
            {"searcher": {"name": "asha", "num_rungs": 3}},
        ),
        (
            {"searcher": {"name": "single", "metric": "loss"}},
            {
                "searcher": {
                    "name": "random",
                    "max_trials": 3,
                    "max_length": 9,
                    "metric": "x",
                    "source_checkpoint_uuid": "u",
                }
            },
            {"searcher": {"name": "single", "metric": "loss", "source_checkpoint_uuid": "u"}},
        ),
        (
            {"searcher": {"name": "asha", "max_length": 5}},
            {"searcher": {"name": "asha", "max_time": 9}},
            {"searcher": {"name": "asha", "max_length": 5}},
        ),
        (
            {"checkpoint_storage": {"type": "shared_fs", "host_path": "/tmp", "save_trial_best": 1}},
            {"checkpoint_storage": {"type": "s3", "bucket": "b", "save_trial_best": 10, "save_trial_latest": 10}},
            {
                "checkpoint_storage": {
                    "type": "shared_fs",
                    "host_path": "/tmp",
                    "save_trial_best": 1,
                    "save_trial_latest": 10,
                }
            },
        ),
        (
            {"checkpoint_storage": {"save_trial_best": 3}},
            {"checkpoint_storage": {"type": "gcs", "bucket": "b"}},
            {"checkpoint_storage": {"save_trial_best": 3, "type": "gcs", "bucket": "b"}},
        ),
        (
            {"checkpoint_storage": {"class": "m:C", "options": {"a": None}}},
            {"checkpoint_storage": {"type": "class", "options": {"a": 1, "b": 2}}},
            {"checkpoint_storage": {"class": "m:C", "options": {"a": None, "b": 2}, "type": "class"}},
        ),
        ({"checkpoint_storage": "/x"}, {"checkpoint_storage": {"type": "s3"}}, {"checkpoint_storage": "/x"}),
        # lists with keys: appended
        (
            {"bind_mounts": [{"host_path": "/a", "container_path": "/a"}]},
            {"bind_mounts": [{"host_path": "/z", "container_path": "/z"}, {"host_path": "/n", "container_path": "/a"}]},
            {"bind_mounts": [{"host_path": "/a", "container_path": "/a"}, {"host_path": "/z", "container_path": "/z"}]},
        ),
        (
            {"environment": {"proxy_ports": [{"proxy_port": 1}]}},
            {"environment": {"proxy_ports": [1, {"proxy_port": 2}]}},
            {"environment": {"proxy_ports": [{"proxy_port": 1}, {"proxy_port": 2}]}},
        ),
        ({"labels": ["a"]}, {"labels": ["b", "a"]}, {"labels": ["a", "b"]}),
        (
            {"output_rules": [{"name": "p", "pattern": "a"}]},
            {"output_rules": [{"name": "p", "pattern": "b"}, {"name": "q"}]},
            {"output_rules": [{"name": "p", "pattern": "a"}, {"name": "q"}]},
        ),
        (
            {"log_policies": [{"name": "p"}]},
            {"output_rules": [{"name": "p", "pattern": "b"}, {"name": "q"}]},
            {"log_policies": [{"name": "p"}, {"name": "q"}]},
        ),
        (
            {"log_policies": [{"pattern": "b", "action": "exclude_node"}]},
            {
                "log_policies": [
                    {"pattern": "b", "action": "cancel_retries"},
                    {"pattern": "b", "action": {"type": "exclude_node"}},
                ]
            },
            {
                "log_policies": [
                    {"pattern": "b", "action": "exclude_node"},
                    {"pattern": "b", "action": "cancel_retries"},
                ]
            },
        ),
        # other lists: the first
        ({"environment": {"secrets": ["a"]}}, {"environment": {"secrets": ["b"]}}, {"environment": {"secrets": ["a"]}}),
        # the surroundings
        (
            {"environment": {"environment_variables": ["A=1"]}},
            {"environment": {"environment_variables": {"A": 2, "B": 3}}},
            {"environment": {"environment_variables": {"A": "1", "B": 3}}},
        ),
        (
            {"environment": {"environment_variables": {"gpu": ["A=1"]}}},
            {"environment": {"environment_variables": ["A=2"]}},
            {"environment": {"environment_variables": {"cpu": {"A": "2"}, "cuda": {"A": "1"}, "rocm": {"A": "2"}}}},
        ),
        ({"environment": {"image": "x"}}, {"environment": {"image": {"cpu": "y"}}}, {"environment": {"image": "x"}}),
        (
            {"environment": {"image": {"cuda": "x"}}},
            {"environment": {"image": "y"}},
            {"environment": {"image": {"cuda": "x", "cpu": "y", "rocm": "y"}}},
        ),
        (
            {"environment": {"image": {"gpu": "x"}}},
            {"environment": {"image": {"cuda": "y", "cpu": "z"}}},
            {"environment": {"image": {"gpu": "x", "cpu": "z"}}},
        ),
    ],
)
def test_two_layers(upper: dict[str, Any], lower: dict[str, Any], expected: dict[str, Any]) -> None:
    assert merged([upper, lower]) == expected


def test_four_layers_reach_the_spec() -> None:
    cluster = {
        "max_restarts": 1,
        "resources": {"resource_pool": "cpu-pool"},
        "bind_mounts": [{"host_path": "/c", "container_path": "/c"}],
    }
    workspace = {"checkpoint_storage": {"type": "s3", "bucket": "team", "credentials": "keys"}, "labels": ["team"]}
    template = {"resources": {"slots_per_trial": 4, "resource_pool": "a100"}, "environment": {"image": "base"}}
    user = {"entrypoint": "x", "checkpoint_storage": {"save_trial_best": 9}, "max_restarts": 0, "labels": ["mine"]}
    spec = accepted(merged([user, template, workspace, cluster]), Door()).spec
    assert (spec.max_restarts, spec.resources.slots, spec.resources.pool) == (0, 4, "a100")
    assert (spec.storage.address, spec.storage.secret, spec.retention.save_trial_best) == ("s3://team", "keys", 9)
    assert (spec.labels, spec.program.image.name if spec.program.image else "") == (("mine", "team"), "base")
    assert [mount.source for mount in spec.program.mounts] == ["/c"]


# -- laws ---------------------------------------------------------------------------------------------------------

scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["a", "b"])
words = st.sampled_from(["a", "b", "c"])
ranges = st.just(RANGE) | st.just({"type": "const", "val": None})
hparams = st.recursive(scalars | ranges, lambda inner: st.dictionaries(words, inner, max_size=3), max_leaves=6)
mounts = st.lists(st.fixed_dictionaries({"host_path": words, "container_path": words}), max_size=3)
unique = mounts.map(lambda items: list({item["container_path"]: item for item in items}.values()))
layers = st.fixed_dictionaries(
    {},
    optional={
        "max_restarts": st.none() | st.integers(0, 3),
        "resources": st.dictionaries(
            st.sampled_from(["slots", "slots_per_trial", "weight"]), st.integers(0, 3) | st.none(), max_size=1
        ),
        "hyperparameters": st.dictionaries(words, hparams, max_size=3),
        "data": st.dictionaries(words, hparams, max_size=2),
        "searcher": st.fixed_dictionaries(
            {"name": st.sampled_from(["single", "random"])}, optional={"metric": words, "max_trials": st.integers(1, 3)}
        ),
        "bind_mounts": unique,
        "labels": st.lists(words, unique=True, max_size=3),
        "environment": st.fixed_dictionaries(
            {},
            optional={
                "environment_variables": st.dictionaries(words, st.integers(0, 3), max_size=2),
                "image": st.sampled_from(["x", "y"])
                | st.dictionaries(st.sampled_from(["cpu", "cuda"]), st.sampled_from(["x", "y"]), min_size=1),
            },
        ),
    },
)


@settings(max_examples=200, deadline=None)
@given(layers, layers, layers)
def test_merging_is_associative(a: dict[str, Any], b: dict[str, Any], c: dict[str, Any]) -> None:
    """A searcher always says its name here: one without takes the kind of the next, which depends on who comes next.
    So it is with a value between two maps: it hides the lower from what lies below it, not from what lies above."""
    assert merged([merged([a, b]), c]) == merged([a, b, c])
    between = any(_value_between(*(layer.get(free, {}) for layer in (a, b, c))) for free in ("hyperparameters", "data"))
    if not _different_searchers(a, b, c) and not between:
        assert merged([a, merged([b, c])]) == merged([a, b, c])


def _value_between(a: Any, b: Any, c: Any) -> bool:
    if not isinstance(a, dict) or not isinstance(c, dict):
        return False
    if not isinstance(b, dict) or len({"type" in part for part in (a, b, c)}) > 1:
        return True
    return any(_value_between(a[key], b[key], c[key]) for key in a if key in b and key in c)


def _different_searchers(*found: dict[str, Any]) -> bool:
    return len({layer["searcher"]["name"] for layer in found if "searcher" in layer}) > 1


@settings(max_examples=100, deadline=None)
@given(layers, layers)
def test_merging_again_changes_nothing_and_touches_nothing(a: dict[str, Any], b: dict[str, Any]) -> None:
    import copy

    before = copy.deepcopy((a, b))
    once = merged([a, b])
    assert merged([once, b]) == once
    assert merged([once]) == once
    assert merged([once, {}]) == merged([{}, once]) == once
    assert (a, b) == before
