"""Whatever is accepted can be written down and read again, and means the same when it is submitted again."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from clutch.wire.experiments import ExperimentSpec
from clutch.workloads.experiment.config import Door, accepted, config_in, merged, schema

names = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True)
free = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=2),
    max_leaves=5,
)
plain = free.filter(lambda value: not isinstance(value, dict))
bounds = st.tuples(st.integers(-50, 49), st.integers(1, 50)).map(lambda pair: (pair[0], pair[0] + pair[1]))
count = st.integers(1, 9)


def _range(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(bounds, count).map(
        lambda found: {"type": kind, "minval": found[0][0], "maxval": found[0][1], "count": found[1]}
    )


ranges = st.one_of(
    _range("int"),
    _range("double"),
    _range("log"),
    st.lists(free, min_size=1, max_size=3).map(lambda vals: {"type": "categorical", "vals": vals}),
    free.map(lambda value: {"type": "const", "val": value}),
)
hparams = st.recursive(
    plain | ranges, lambda inner: st.dictionaries(names.filter(lambda n: n != "type"), inner, max_size=2), max_leaves=6
)
several = {"metric": names, "smaller_is_better": st.booleans(), "max_concurrent_trials": st.integers(1, 9)}
length = st.integers(1, 10**6)
searchers = st.one_of(
    st.fixed_dictionaries({"name": st.just("single")}, optional={"max_length": length}),
    st.fixed_dictionaries({"name": st.just("random"), "max_trials": count, **several}),
    st.fixed_dictionaries({"name": st.just("tpe"), "max_trials": count, **several}),
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["asha", "async_halving", "adaptive_asha"]),
            "max_trials": count,
            "max_time": length,
            **several,
        },
        optional={
            "divisor": st.floats(1.5, 8),
            "promotion": st.booleans(),
            "time_metric": st.sampled_from(["epochs", "seen"]),
        },
    ),
    st.fixed_dictionaries(
        {
            "name": st.just("pbt"),
            "population_size": st.integers(2, 9),
            "num_rounds": count,
            "length_per_round": length,
            **several,
        }
    ),
    st.fixed_dictionaries({"name": st.just("custom"), **several}, optional={"entrypoint": st.just("python s.py")}),
)
storages = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"type": st.just("s3"), "bucket": names}, optional={"prefix": names, "credentials": names}),
    st.fixed_dictionaries(
        {"type": st.just("shared_fs"), "host_path": names.map("/{}".format)}, optional={"storage_path": names}
    ),
    st.fixed_dictionaries({"class": st.just("m.n:C")}, optional={"options": st.dictionaries(names, free, max_size=2)}),
    st.fixed_dictionaries({"save_trial_best": st.integers(0, 5)}),
)
configs = st.fixed_dictionaries(
    {"entrypoint": st.just("python train.py") | st.just(["python", "train.py"])},
    optional={
        "name": names,
        "labels": st.lists(names, max_size=3),
        "data": st.dictionaries(names, free, max_size=2),
        "hyperparameters": st.dictionaries(names, hparams, max_size=3),
        "searcher": searchers,
        "checkpoint_storage": storages,
        "resources": st.fixed_dictionaries(
            {},
            optional={
                "slots_per_trial": st.integers(0, 64),
                "weight": st.floats(0.5, 3),
                "shm_size": st.sampled_from(["1.5G", 4096]),
                "cpus": st.floats(0.5, 9),
                "memory": st.just("3GiB"),
                "kind": st.sampled_from(["cpu", "cuda", "any"]),
            },
        ),
        "environment": st.fixed_dictionaries(
            {},
            optional={
                "image": st.just("img") | st.just({"cpu": "a", "cuda": "b", "rocm": "c"}),
                "environment_variables": st.dictionaries(names, st.integers(0, 9) | names | st.booleans(), max_size=2)
                | st.just({"cpu": ["A=1"], "gpu": ["A=2"]}),
                "proxy_ports": st.lists(st.integers(1, 60000), unique=True, max_size=2),
                "secrets": st.just(["a", "b=C"]),
            },
        ),
        "output_rules": st.lists(
            st.fixed_dictionaries({"name": names, "pattern": st.just("x+")}),
            max_size=2,
            unique_by=lambda rule: rule["name"],
        ),
        "max_restarts": st.none() | st.integers(0, 9),
        "preemption_timeout": st.floats(0, 100),
        "data_timeout": st.floats(0, 100),
        "debug": st.booleans(),
        "min_validation_period": st.just({"batches": 5}),
    },
)
SCHEMA = jsonschema_rs.validator_for(schema())


@settings(max_examples=300, deadline=None)
@given(configs, st.integers(0, 2**31 - 1))
def test_accepted_is_stable(config: dict[str, Any], seed: int) -> None:
    door = Door(owner="ada", seed=seed, kinds=("cpu",))
    found = accepted(config, door)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found.spec), type=ExperimentSpec) == found.spec
    assert msgspec.json.decode(msgspec.json.encode(found.spec), type=ExperimentSpec) == found.spec
    again = accepted(config_in(found.spec.config, "effective.json"), Door(owner="ada", seed=1, kinds=("cpu",)))
    assert again.spec == found.spec
    assert again.effective == found.effective
    assert accepted(merged([config]), door).spec == found.spec
    assert accepted(merged([config, found.effective]), door).spec == found.spec
    assert [error.message for error in SCHEMA.iter_errors(config)] == []
    assert [error.message for error in SCHEMA.iter_errors(found.effective)] == []


def test_the_schema_refuses_what_the_door_refuses() -> None:
    entry = {"entrypoint": "x"}
    for wrong in (
        {},
        {**entry, "nmae": "x"},
        {**entry, "max_restarts": "5"},
        {**entry, "searcher": {"name": "random", "metric": "x"}},
        {**entry, "searcher": {"name": "nothing"}},
        {**entry, "resources": {"priority": 100}},
        {**entry, "checkpoint_storage": {"type": "s3"}},
        {**entry, "checkpoint_storage": {"type": "s3", "bucket": "b", "access_key": "x"}},
        {**entry, "hyperparameters": {"a": {"b": {"type": "int", "minval": 1}}}},
        {**entry, "hyperparameters": {"a": {"type": "adam"}}},
    ):
        assert not SCHEMA.is_valid(wrong), wrong
    assert SCHEMA.is_valid(entry)


def test_every_setting_is_described() -> None:
    found = schema()
    bare = [
        name for name, setting in found["properties"].items() if "description" not in setting and "anyOf" not in setting
    ]
    assert bare == []
    assert found["properties"]["max_restarts"]["default"] == 5
    assert found["properties"]["log_policies"]["deprecated"] is True
