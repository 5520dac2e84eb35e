"""Validations as they are told: one word a step, in order, numbers only."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from clutch.wire.metrics import VALIDATION, MetricPoint, Value
from clutch.workloads.experiment.service.feeding import numbers, validations

values = st.dictionaries(
    st.sampled_from("abc"),
    st.one_of(st.floats(), st.integers(), st.text(max_size=9), st.sampled_from(["NaN", "Infinity"])),
)
points = st.lists(
    st.builds(
        MetricPoint, st.sampled_from(["training", VALIDATION, "other"]), st.integers(0, 5), values, st.floats(0, 9)
    )
)


@given(points)
def test_each_step_is_said_once_in_the_order_it_came_and_nothing_of_other_groups(
    found: list[MetricPoint],
) -> None:
    said = list(validations("e-x.1", 2, found))
    steps = [one.step for one in found if one.group == VALIDATION]
    assert [one.step for one in said] == list(dict.fromkeys(steps))
    for one in said:
        assert (one.task, one.epoch) == ("e-x.1", 2)
        mine = [point for point in found if point.group == VALIDATION and point.step == one.step]
        assert one.at == mine[-1].at
        expected: dict[str, float] = {}
        for point in mine:
            expected.update(numbers(point.values))
        assert repr(one.values) == repr(expected)


def test_texts_and_truth_values_are_no_numbers_and_three_texts_are() -> None:
    given: dict[str, Value] = {
        "a": 1, "b": 2.5, "c": "high", "d": True, "e": "NaN", "f": "-Infinity", "g": 10**400,
    }  # fmt: skip
    found = numbers(given)
    assert {name: found[name] for name in "ab"} == {"a": 1.0, "b": 2.5}
    assert math.isnan(found["e"]) and found["f"] == -math.inf
    assert set(found) == {"a", "b", "e", "f"}
