"""YAML and JSON as people write them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from clutch.wire.errors import BadConfig
from clutch.workloads.experiment.config import config_in


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 1e5),
        ("1e+5", 1e5),
        ("3.1e-4", 3.1e-4),
        (".012", 0.012),
        ("1.", 1.0),
        ("-.5", -0.5),
        ("0.1", 0.1),
        ("1_000", 1000),
        ("1_000.5", 1000.5),
        ("0", 0),
        ("-7", -7),
        ("+5", 5),
        ("0x1F", 31),
        ("0o17", 15),
        ("0b101", 5),
        ("true", True),
        ("False", False),
        ("TRUE", True),
        ("null", None),
        ("~", None),
        ("", None),
        ("no", "no"),
        ("off", "off"),
        ("Yes", "Yes"),
        ("y", "y"),
        ("12:30:00", "12:30:00"),
        ("0755", "0755"),
        ("2024-01-01", "2024-01-01"),
        ("1.2.3", "1.2.3"),
        ("e5", "e5"),
        ("'1e-3'", "1e-3"),
        ('"true"', "true"),
        ("[1e-3, no]", [0.001, "no"]),
        ("{a: 1e-3}", {"a": 0.001}),
        ("1e", "1e"),
    ],
)
def test_values(text: str, value: Any) -> None:
    found = config_in(f"a: {text}")["a"]
    assert found == value
    assert type(found) is type(value)


def test_nothing_is_an_empty_configuration() -> None:
    assert config_in("") == config_in("# only words\n") == config_in("{}", "x.json") == {}


def test_keys_that_look_like_something_else() -> None:
    assert config_in("on: 1\nno: 2\n3: c\n1.5: d") == {"on": 1, "no": 2, "3": "c", "1.5": "d"}


def test_a_key_that_stands_twice_is_an_error_with_its_lines() -> None:
    with pytest.raises(BadConfig) as caught:
        config_in("a: 1\nb:\n  c: 1\n  c: 2\na: 3\n", "mine.yaml")
    assert {(p.path, p.problem) for p in caught.value.problems} == {
        ("a", "it stands twice, in line 1 and in line 5"),
        ("c", "it stands twice, in line 3 and in line 4"),
    }
    assert caught.value.object == "mine.yaml"
    with pytest.raises(BadConfig, match="a: it stands twice"):
        config_in('{"a": 1, "a": 2}', "mine.json")
    assert config_in("x: &x {a: 1}\ny: {<<: *x, a: 2}")["y"] == {"a": 2}


def test_what_a_merge_brings_in_does_not_stand_twice() -> None:
    text = "a: &a {x: 1}\nouter: {inner: &b {<<: *a, x: 2}}\nc: {<<: *b}\nd: {<<: [*a, *b], y: 3}"
    found = config_in(text)
    assert found["outer"]["inner"] == found["c"] == {"x": 2}
    assert found["d"] == {"x": 1, "y": 3}


def test_files_of_other_systems() -> None:
    assert config_in("\ufeffa: 1\r\nb: 2\r\n") == {"a": 1, "b": 2}
    assert config_in('\ufeff{"a": 1}', "x.json") == {"a": 1}


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("a: [1", "c.yaml", "line 1"),
        ("a: b: c", "c.yaml", "line 1, column 5"),
        ("a: 1\n\tb: 2", "c.yaml", "line 2"),
        ("- a", "c.yaml", "a list, not a map"),
        ("just text", "c.yaml", "text, not a map"),
        ("--- {}\n--- {}", "c.yaml", "not YAML"),
        ("a: !!python/object/apply:os.system [ls]", "c.yaml", "constructor"),
        ("a: !!binary aGk=", "c.yaml", "cannot be written as JSON"),
        ("a: .inf", "c.yaml", "not a finite number"),
        ("a: .nan", "c.yaml", "not a finite number"),
        ("a: 99999999999999999999", "c.yaml", "64 bits"),
        ("a: &a [*a]", "c.yaml", "64 levels"),
        ("true: 1", "c.yaml", "truth value"),
        ('1: a\n"1": b', "c.yaml", "the same"),
        ("a: " + "[" * 5000, "c.yaml", "not YAML"),
        ("{", "c.json", "line 1, column 2"),
        ("[" * 100_000, "c.json", "not JSON"),
        ("x" * 2**21, "c.yaml", "characters"),
        ("a: *nowhere", "c.yaml", "not YAML"),
        ("\x00", "c.yaml", "not YAML"),
    ],
)
def test_what_cannot_be_read(text: str, name: str, words: str) -> None:
    with pytest.raises(BadConfig) as caught:
        config_in(text, name)
    assert words in caught.value.problems[0].problem
    assert caught.value.object == name


def test_a_few_lines_cannot_stand_for_billions_of_values() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(BadConfig, match="more than 50000 values"):
        config_in("\n".join(lines))


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b", "no"]), plain, max_size=3))
def test_what_was_written_by_a_program_is_read_the_same(config: dict[str, Any]) -> None:
    assert config_in(msgspec.json.encode(config).decode(), "x.json") == config


safe = st.recursive(
    st.none() | st.booleans() | st.integers(-999, 999) | st.floats(-1e6, 1e6) | st.sampled_from(["word", "no", "1e-3"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["k", "off", "1"]), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b"]), safe, max_size=2), st.booleans())
def test_what_pyyaml_writes_is_read_the_same(config: dict[str, Any], flow: bool) -> None:
    """But for text that YAML 1.1 writes without quotes and that is a number since 1.2."""
    text = yaml.safe_dump(config, default_flow_style=flow)
    assert config_in(text) == _numbers(config)


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return 0.001 if value == "1e-3" else value
