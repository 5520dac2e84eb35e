"""What may be reported, and how a script hears of what may not."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clutch.runtime.hparams import Hparams, laid_over
from clutch.runtime.trial import Trial, read_trial
from clutch.runtime.values import plain_group, plain_step, plain_values
from clutch.wire.errors import BadRequest, TooLarge
from clutch.wire.experiments import Storage, TrialInfo


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1), (1.5, 1.5), (True, 1), (np.float32(0.5), 0.5), (np.int64(7), 7), (np.array(2.5), 2.5),
        (np.array([3.0]), 3.0), (np.bool_(True), 1), (torch.tensor(0.25), 0.25), (torch.tensor([4]), 4),
        (torch.tensor(0.5, requires_grad=True), 0.5), (Decimal("0.5"), 0.5), (Fraction(1, 4), 0.25),
        (math.inf, math.inf), (10**30, 1e30),
    ],
)  # fmt: skip
def test_numbers_of_any_library_become_plain(value: Any, expected: float) -> None:
    found = plain_values({"m": value}, "training", 3)["m"]
    assert found == expected and type(found) in (int, float)


def test_whole_numbers_of_any_size_are_numbers() -> None:
    found = plain_values({"most": 2**63 - 1, "more": 2**64, "far": 10**400, "below": -(10**400)}, "training", 1)
    assert found == {"most": 2**63 - 1, "more": 2.0**64, "far": float("inf"), "below": float("-inf")}
    assert [type(value) for value in found.values()] == [int, float, float, float]


def test_not_a_number_is_a_number() -> None:
    assert math.isnan(plain_values({"m": torch.tensor(math.nan)}, "training", 3)["m"])


@pytest.mark.parametrize(
    "value",
    [
        "0.5",
        b"1",
        None,
        1j,
        np.complex64(1),
        torch.ones(2),
        np.zeros((2, 2)),
        [1.0],
        {"a": 1},
        object(),
        np.array(["a"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_one_number_is_refused_by_metric_and_step(value: Any) -> None:
    with pytest.raises(BadRequest) as refused:
        plain_values({"fine": 1.0, "wrong": value}, "training", 1234)
    assert "'wrong'" in str(refused.value) and "step 1234" in str(refused.value)


def test_names_and_amounts_are_bounded() -> None:
    for values in ({"": 1}, {"x" * 201: 1}, {1: 1}, {}):
        with pytest.raises(BadRequest):
            plain_values(values, "training", 1)  # type: ignore[arg-type]
    with pytest.raises(TooLarge):
        plain_values({f"m{i}": 1 for i in range(1001)}, "training", 1)
    for group in ("", "x" * 201, 3):
        with pytest.raises(BadRequest):
            plain_group(group)


@pytest.mark.parametrize("step", [-1, 1.0, "1", None, 2**63])
def test_a_step_is_a_whole_number(step: Any) -> None:
    with pytest.raises(BadRequest):
        plain_step(step, "training")


def test_a_step_of_a_library_is_plain() -> None:
    assert plain_step(np.int32(5), "training") == plain_step(torch.tensor(5), "training") == 5


JSON = st.recursive(
    st.none() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner), max_leaves=8
)


@given(st.dictionaries(st.text(), JSON))
def test_hyperparameters_are_the_dict_they_came_from(values: dict[str, Any]) -> None:
    assert Hparams(values) == values


@given(st.dictionaries(st.text(), JSON), st.dictionaries(st.text(), JSON))
def test_what_lies_above_wins(below: dict[str, Any], above: dict[str, Any]) -> None:
    found = laid_over(below, above)
    assert set(found) == set(below) | set(above)
    assert laid_over(found, above) == found
    for key, value in above.items():
        if not isinstance(value, dict):
            assert found[key] == value


def test_hyperparameters_are_attributes_and_a_missing_one_says_which_there_are() -> None:
    found = Hparams({"model": {"width": 4}, "layers": [{"size": 1}]})
    assert found.model.width == 4 and found.layers[0].size == 1
    with pytest.raises(AttributeError, match="'lr'; there are: layers, model"):
        _ = found.lr
    with pytest.raises(KeyError, match="there are: layers, model"):
        _ = found["lr"]
    assert found.get("lr") is None


def test_a_trial_reads_what_the_wire_writes() -> None:
    import msgspec

    assert set(Trial.__struct_fields__) == set(TrialInfo.__struct_fields__)
    said = TrialInfo(
        experiment="e1", trial=3, name="n", hparams={"a": {"b": 1}}, seed=5, metric="loss", max_time=10,
        storage=Storage(address="file:///x", secret="s"), warm_start="c", data={"d": 1}, profiling=True,
        config='{"x":1}',
    )  # fmt: skip
    found = read_trial(msgspec.json.encode(said).decode())
    for name in TrialInfo.__struct_fields__:
        if name != "storage":
            assert getattr(found, name) == getattr(said, name), name
    assert msgspec.json.decode(found.storage, type=Storage) == said.storage
    alone = TrialInfo(experiment="", trial=0)
    assert all(getattr(Trial(), name) == getattr(alone, name) for name in Trial.__struct_fields__ if name != "storage")
    with pytest.raises(BadRequest, match="CLUTCH_TRIAL"):
        read_trial("{")
