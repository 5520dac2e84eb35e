"""Everything that is wrong is told at once, each with its path and what would be right, and it survives the wire."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clutch.sdk.call import get, rebuild
from clutch.wire.errors import BadConfig, BadRequest, ErrorView, Problem
from clutch.wire.refusals import error_said
from clutch.workloads.experiment.config import Door, accepted, check_partial, merged

ENTRY = {"entrypoint": "python train.py"}


def refused(config: dict[str, Any], **door: Any) -> dict[str, Problem]:
    with pytest.raises(BadConfig) as caught:
        accepted(config, Door(**door))
    return {problem.path: problem for problem in caught.value.problems}


TEN = {
    "nmae": "x",
    "entrypoint": "model_def:MyTrial",
    "max_restarts": "5",
    "searcher": {"name": "adaptive_asha", "metric": "loss", "max_time": 10, "mode": "fast"},
    "hyperparameters": {"optimizer": {"lr": {"type": "log", "minval": "low", "maxval": 3}}, "n": {"type": "integer"}},
    "resources": {"priority": 100, "slots_per_trial": 4, "max_slots": 2},
    "checkpoint_storage": {"type": "s3", "bucket": "b", "secret_key": "hunter2"},
}


def test_ten_problems_are_ten() -> None:
    found = refused(TEN)
    assert sorted(found) == [
        "checkpoint_storage.secret_key",
        "entrypoint",
        "hyperparameters.n.type",
        "hyperparameters.optimizer.lr.minval",
        "max_restarts",
        "nmae",
        "resources.max_slots",
        "resources.priority",
        "searcher.max_trials",
        "searcher.mode",
    ]
    assert all(problem.hint for problem in found.values())
    assert found["nmae"].hint == "Did you mean name?"
    assert "clutch.init()" in found["entrypoint"].hint
    assert "clutch secret put" in found["checkpoint_storage.secret_key"].hint
    assert "hunter2" not in str([*found.values()])
    assert found["hyperparameters.n.type"].hint.startswith("Did you mean int?")


def test_they_survive_every_way_an_error_travels() -> None:
    with pytest.raises(BadConfig) as caught:
        accepted({"name": "mine", **TEN}, Door())
    error = caught.value
    assert isinstance(error, BadRequest)
    assert (error.code, error.status, error.object) == ("bad_config", 400, "experiment 'mine'")
    body = msgspec.json.encode(error.view())
    for heard in (rebuild(400, body, get(["x"], dict)), error_said(400, body, "it")):
        assert isinstance(heard, BadConfig)
        assert heard.problems == error.problems
        assert str(heard) == str(error)
    assert msgspec.json.decode(body, type=ErrorView).cause == error.cause
    assert len(msgspec.json.decode(body)["problems"]) == 10
    for problem in error.problems:
        assert f"- {problem.path}: {problem.problem}" in str(error).splitlines()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.from_regex(r"[a-z_.]{1,10}", fullmatch=True), st.text(max_size=30), st.text(max_size=30)),
        max_size=4,
    )
)
def test_a_list_of_problems_is_read_as_it_was_written(found: list[tuple[str, str, str]]) -> None:
    problems = tuple(
        Problem(path, f"it {' '.join(text.split())}".strip(), " ".join(hint.split())) for path, text, hint in found
    )
    error = BadConfig(problems=problems, object="x")
    assert BadConfig(error.cause).problems == problems


@pytest.mark.parametrize(
    ("config", "path", "words"),
    [
        ({"entrypoint": ""}, "entrypoint", "empty"),
        ({"entrypoint": []}, "entrypoint", "no command"),
        ({"entrypoint": 5}, "entrypoint", "neither a line nor a list"),
        ({"entrypoint": ["a", 1]}, "entrypoint", "neither a line nor a list"),
        ({"name": ""}, "name", "one line"),
        ({"name": "a\nb"}, "name", "one line"),
        ({"labels": ["a,b"]}, "labels[0]", "label"),
        ({"labels": "a"}, "labels", "not a list"),
        ({"workspace": "my place"}, "workspace", "not a name"),
        ({"searcher": {}}, "searcher.name", "missing"),
        ({"searcher": 5}, "searcher", "not a map"),
        ({"searcher": {"name": "asha_adaptive"}}, "searcher.name", "no searcher"),
        ({"searcher": {"name": "adaptive_simple", "max_trials": 3}}, "searcher.name", "any more"),
        ({"searcher": {"name": ["x"]}}, "searcher.name", "no searcher"),
        ({"searcher": {"name": "single", "source_trial_id": 17}}, "searcher.source_trial_id", "names no trial"),
        (
            {"searcher": {"name": "single", "source_trial_id": "e.1", "source_checkpoint_uuid": "u"}},
            "searcher.source_checkpoint_uuid",
            "as well",
        ),
        ({"searcher": {"name": "single", "max_length": {"days": 3}}}, "searcher.max_length", "not a length"),
        ({"searcher": {"name": "single", "max_length": 0}}, "searcher.max_length", "not a length"),
        ({"searcher": {"name": "single", "max_trials": 3}}, "searcher.max_trials", "no such setting"),
        ({"searcher": {"name": "asha", "metric": "x", "max_trials": 3}}, "searcher.max_time", "missing"),
        (
            {"searcher": {"name": "asha", "metric": "x", "max_trials": 3, "max_time": 1, "stop_once": 3}},
            "searcher.stop_once",
            "neither",
        ),
        (
            {"searcher": {"name": "asha", "metric": "x", "max_trials": 3, "max_time": 1, "divisor": 1.0}},
            "searcher.divisor",
            "more than 1",
        ),
        ({"searcher": {"name": "random", "metric": "x", "max_trials": True}}, "searcher.max_trials", "whole number"),
        ({"searcher": {"name": "random", "metric": "x", "max_trials": 1.5}}, "searcher.max_trials", "whole number"),
        (
            {
                "searcher": {"name": "grid", "metric": "x"},
                "hyperparameters": {"a": {"type": "double", "minval": 0, "maxval": 1}},
            },
            "hyperparameters.a.count",
            "grid needs it",
        ),
        (
            {
                "searcher": {"name": "grid", "metric": "x"},
                "hyperparameters": {n: {"type": "int", "minval": 0, "maxval": 999, "count": 1000} for n in "ab"},
            },
            "hyperparameters",
            "1000000 points",
        ),
        ({"hyperparameters": []}, "hyperparameters", "not a map"),
        (
            {"hyperparameters": {"a": {"b": {"type": "int", "minval": 2, "maxval": 2}}}},
            "hyperparameters.a.b.minval",
            "not less",
        ),
        ({"hyperparameters": {"a": {"type": "int", "minval": 1}}}, "hyperparameters.a.maxval", "missing"),
        (
            {"hyperparameters": {"a": {"type": "int", "minval": 1.5, "maxval": 3}}},
            "hyperparameters.a.minval",
            "whole number",
        ),
        (
            {"hyperparameters": {"a": {"type": "int", "minval": 1, "maxval": 3, "count": 0}}},
            "hyperparameters.a.count",
            "at least 1",
        ),
        (
            {"hyperparameters": {"a": {"type": "log", "minval": -1, "maxval": 3, "base": -2}}},
            "hyperparameters.a.base",
            "more than 0",
        ),
        (
            {"hyperparameters": {"a": {"type": "log", "minval": -1, "maxval": 9999}}},
            "hyperparameters.a.maxval",
            "no number",
        ),
        ({"hyperparameters": {"a": {"type": "categorical", "vals": []}}}, "hyperparameters.a.vals", "empty"),
        ({"hyperparameters": {"a": {"type": "const"}}}, "hyperparameters.a.val", "missing"),
        (
            {"hyperparameters": {"a": {"type": "double", "minvl": 1, "minval": 0, "maxval": 1}}},
            "hyperparameters.a.minvl",
            "no such setting",
        ),
        ({"hyperparameters": {"a": {"type": None}}}, "hyperparameters.a.type", "no type"),
        ({"resources": {"slots_per_trial": -1}}, "resources.slots_per_trial", "at least 0"),
        ({"resources": {"priority": 0}}, "resources.priority", "at least 1"),
        ({"resources": {"weight": 0}}, "resources.weight", "more than 0"),
        ({"resources": {"kind": "tpu"}}, "resources.kind", "no kind"),
        ({"resources": {"shm_size": "big"}}, "resources.shm_size", "amount of memory"),
        ({"resources": {"shm_size": "2.gb"}}, "resources.shm_size", "amount of memory"),
        ({"resources": {"memory": True}}, "resources.memory", "amount of memory"),
        ({"resources": []}, "resources", "not a map"),
        ({"max_restarts": -1}, "max_restarts", "at least 0"),
        ({"preemption_timeout": 1e9}, "preemption_timeout", "at most"),
        ({"preemptible": "maybe"}, "preemptible", "true or false"),
        ({"reproducibility": {"experiment_seed": 2**31}}, "reproducibility.experiment_seed", "at most"),
        ({"checkpoint_storage": {"type": "ftp"}}, "checkpoint_storage.type", "no checkpoint_storage"),
        ({"checkpoint_storage": {"type": "shared_fs", "host_path": "nfs"}}, "checkpoint_storage.host_path", "absolute"),
        (
            {"checkpoint_storage": {"type": "shared_fs", "host_path": "/nfs", "storage_path": "../x"}},
            "checkpoint_storage.storage_path",
            "not in host_path",
        ),
        (
            {"checkpoint_storage": {"type": "shared_fs", "host_path": "/nfs", "storage_path": "/nfs2"}},
            "checkpoint_storage.storage_path",
            "not in host_path",
        ),
        (
            {"checkpoint_storage": {"type": "s3", "bucket": "b", "prefix": "a/../b"}},
            "checkpoint_storage.prefix",
            "leads out",
        ),
        (
            {"checkpoint_storage": {"type": "s3", "bucket": "b", "endpoint_url": "https://k:s@h"}},
            "checkpoint_storage.endpoint_url",
            "not an address",
        ),
        (
            {"checkpoint_storage": {"type": "s3", "bucket": "b", "credentials": "AKIA:abc/def"}},
            "checkpoint_storage.credentials",
            "does not name a secret",
        ),
        (
            {"checkpoint_storage": {"type": "azure", "container": "c", "connection_string": "x"}},
            "checkpoint_storage.connection_string",
            "written down",
        ),
        ({"checkpoint_storage": {"type": "hdfs"}}, "checkpoint_storage.url", "missing"),
        (
            {"checkpoint_storage": {"type": "hdfs", "url": "hdfs://a/b", "host": "c"}},
            "checkpoint_storage.url",
            "as well",
        ),
        ({"checkpoint_storage": {"class": "nothing"}}, "checkpoint_storage.class", "name a class"),
        ({"checkpoint_storage": {"bucket": "b"}}, "checkpoint_storage.bucket", "no such setting"),
        ({"checkpoint_storage": "s3://K:S@b"}, "checkpoint_storage", "credentials"),
        ({"checkpoint_storage": "somewhere"}, "checkpoint_storage", "not a place"),
        ({"environment": {"image": 5}}, "environment.image", "text"),
        ({"environment": {"image": {"cpu": 5}}}, "environment.image.cpu", "text"),
        ({"environment": {"image": {"cpu": "x"}}}, "environment.image", "no image"),
        ({"environment": {"environment_variables": ["A"]}}, "environment.environment_variables", "no value"),
        ({"environment": {"environment_variables": {"1A": 1}}}, "environment.environment_variables", "not the name"),
        (
            {"environment": {"environment_variables": {"CLUTCH_X": 1}}},
            "environment.environment_variables",
            "set by the cluster",
        ),
        ({"environment": {"environment_variables": {"A": {}}}}, "environment.environment_variables", "a map"),
        ({"environment": {"environment_variables": 3}}, "environment.environment_variables", "not variables"),
        ({"environment": {"secrets": ["a=CLUTCH_TOKEN"]}}, "environment.secrets", "cannot be the name"),
        ({"environment": {"secrets": [3]}}, "environment.secrets", "not text"),
        (
            {"environment": {"registry_auth": {"username": "a", "password": "b"}}},
            "environment.registry_auth",
            "does not name a secret",
        ),
        ({"environment": {"proxy_ports": [70000]}}, "environment.proxy_ports[0].proxy_port", "at most"),
        ({"environment": {"proxy_ports": [1, {"proxy_port": 1}]}}, "environment.proxy_ports[1].proxy_port", "twice"),
        ({"bind_mounts": [{"host_path": "a", "container_path": "/b"}]}, "bind_mounts[0].host_path", "absolute"),
        ({"bind_mounts": [{"host_path": "/a", "container_path": "."}]}, "bind_mounts[0].container_path", "absolute"),
        (
            {"bind_mounts": [{"host_path": "/a", "container_path": "a/../b"}]},
            "bind_mounts[0].container_path",
            "absolute",
        ),
        (
            {"bind_mounts": [{"host_path": "/a", "container_path": "b"}], "environment": {"image": "i"}},
            "bind_mounts[0].container_path",
            "a container needs",
        ),
        (
            {"bind_mounts": [{"host_path": "/a", "container_path": "/b"}] * 2},
            "bind_mounts[1].container_path",
            "same place",
        ),
        ({"output_rules": [{"name": "a", "pattern": "("}]}, "output_rules[0].pattern", "regular expression"),
        ({"output_rules": [{"name": "a", "pattern": "x", "action": "explode"}]}, "output_rules[0].action", "one of"),
        ({"output_rules": [{"name": "a", "pattern": "x"}] * 2}, "output_rules[1].name", "two rules"),
        ({"output_rules": [{}]}, "output_rules[0].name", "missing"),
        ({"integrations": {"webhooks": {"webhook_nme": []}}}, "integrations.webhooks.webhook_nme", "no such setting"),
        ({"data": {"blob": "x" * 60_000}}, "config", "told to each trial"),
        ({"odd key!": 1}, '"odd key!"', "no such setting"),
    ],
)
def test_each_problem_has_its_place(config: dict[str, Any], path: str, words: str) -> None:
    found = refused({**ENTRY, **config})
    assert list(found) == [path], found
    assert words in found[path].problem
    assert found[path].hint


def test_what_is_huge_is_refused_quickly() -> None:
    deep: Any = 1
    for _ in range(300):
        deep = {"a": deep}
    for check in (merged, lambda layers: accepted(layers[0], Door()), lambda layers: check_partial(layers[0])):
        with pytest.raises(BadConfig, match="more than 64 levels"):
            check([{"data": deep}])
    many = {f"{number}{'x' * 50}": number for number in range(20_000)}
    began = time.monotonic()
    for config in (many, {"resources": many}, {"hyperparameters": {key: {"type": "x"} for key in many}}):
        assert 100 <= len(refused({**ENTRY, **config})) <= 101
    with pytest.raises(BadConfig, match="more than 50000 values"):
        accepted({"data": {"a": list(range(60_000))}}, Door())
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("pattern", ["a{99999999999}", "(" * 1000 + ")" * 1000, "[", "*"])
def test_patterns_that_cannot_be_compiled(pattern: str) -> None:
    assert list(refused({**ENTRY, "output_rules": [{"name": "a", "pattern": pattern}]})) == ["output_rules[0].pattern"]


def test_a_key_of_another_kind_says_where_it_belongs() -> None:
    found = refused({**ENTRY, "searcher": {"name": "single", "max_rungs": 3}})
    assert found["searcher.max_rungs"].hint == "It belongs to name: adaptive_asha."
    found = refused({**ENTRY, "checkpoint_storage": {"host_path": "/x"}})
    assert found["checkpoint_storage.host_path"].hint == "It belongs to type: shared_fs."


@pytest.mark.parametrize(
    "part",
    [
        {},
        {"searcher": {"metric": "loss"}},
        {"searcher": {"name": "adaptive_asha", "max_trials": 5}},
        {"searcher": {"name": "grid"}, "hyperparameters": {"a": {"type": "double", "minval": 0, "maxval": 1}}},
        {"hyperparameters": {"a": {"type": "int", "minval": 0, "maxval": 1}}},
        {"checkpoint_storage": {"save_trial_best": 2}},
        {"checkpoint_storage": {"bucket": "b"}},
        {"checkpoint_storage": {"type": "s3"}},
        {"checkpoint_storage": {"type": "hdfs"}},
        {"resources": {"max_slots": 2}},
        {"environment": {"image": {"cpu": "x"}}},
        {"name": None},
    ],
)
def test_a_template_may_leave_anything_out(part: dict[str, Any]) -> None:
    assert check_partial(part) == ()


@pytest.mark.parametrize(
    ("part", "path"),
    [
        ({"searcher": {"metrc": "loss"}}, "searcher.metrc"),
        ({"searcher": {"max_trials": 0}}, "searcher.max_trials"),
        ({"searcher": {"name": "sinlge"}}, "searcher.name"),
        ({"checkpoint_storage": {"type": "s3", "access_key": "x"}}, "checkpoint_storage.access_key"),
        ({"checkpoint_storage": {"save_trial_best": -2}}, "checkpoint_storage.save_trial_best"),
        ({"bind_mounts": [{"container_path": "/x"}]}, "bind_mounts[0].host_path"),
        ({"hyperparameters": {"a": {"type": "int", "minval": 0}}}, "hyperparameters.a.maxval"),
        ({"entrypoint": "a:B"}, "entrypoint"),
    ],
)
def test_but_what_a_template_says_must_be_right(part: dict[str, Any], path: str) -> None:
    with pytest.raises(BadConfig) as caught:
        check_partial(part, "template base")
    assert [problem.path for problem in caught.value.problems] == [path]
    assert caught.value.object == "template base"


def test_a_template_tells_its_notices() -> None:
    assert [notice.path for notice in check_partial({"resources": {"slots": 3}, "debug": True})] == [
        "debug",
        "resources.slots",
    ]


json = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 200) | st.floats(allow_nan=True) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = [
    "name",
    "entrypoint",
    "searcher",
    "hyperparameters",
    "resources",
    "checkpoint_storage",
    "environment",
    "bind_mounts",
    "output_rules",
    "log_policies",
    "labels",
    "data",
    "integrations",
    "profiling",
    "reproducibility",
    "max_restarts",
    "preemptible",
    "debug",
]
INNER = [
    "name",
    "type",
    "max_length",
    "max_trials",
    "metric",
    "image",
    "environment_variables",
    "proxy_ports",
    "secrets",
    "webhooks",
    "bucket",
    "class",
    "host_path",
    "storage_path",
    "prefix",
    "slots",
    "slots_per_trial",
    "shm_size",
    "action",
    "pattern",
    "container_path",
    "gpu",
    "cuda",
    "options",
]
WORDS = st.sampled_from(
    [
        "random",
        "grid",
        "single",
        "asha",
        "pbt",
        "custom",
        "s3",
        "shared_fs",
        "hdfs",
        "class",
        "int",
        "log",
        "const",
        "categorical",
    ]
)
odd = st.recursive(
    json | WORDS,
    lambda inner: st.dictionaries(st.sampled_from(INNER), inner, max_size=4) | st.lists(inner, max_size=2),
    max_leaves=10,
)


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), odd, max_size=6))
def test_whatever_is_written_is_accepted_or_refused_and_never_breaks(config: dict[str, Any]) -> None:
    for check in (lambda: check_partial(config), lambda: accepted(config, Door(kinds=("cpu",)))):
        try:
            check()
        except BadConfig as error:
            assert error.problems
            assert BadConfig(error.cause).problems == error.problems
