"""What a trial draws follows from seed, number and path alone; what a grid tries, from its counts."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.wire.errors import BadRequest, TooLarge
from clutch.wire.experiments import Categorical, Const, Double, Hyperparameter, Int, Log, Nested
from clutch.workloads.experiment.search.sampling import (
    grid_axes,
    grid_point,
    grid_size,
    overlay,
    sample,
    trial_seed,
)

SPACE: dict[str, Hyperparameter] = {
    "lr": Log(-5, -1),
    "layers": Int(1, 4),
    "dropout": Double(0.1, 0.5),
    "kind": Categorical(("a", {"b": [1, None]}, 3)),
    "steps": Const(100),
    "optimizer": Nested({"name": Categorical(("sgd", "adam")), "inner": Nested({"momentum": Double(0, 1)})}),
}


def shuffled(space: dict[str, Hyperparameter], chance: random.Random) -> dict[str, Hyperparameter]:
    """The same space with every dictionary in another order."""
    names = list(space)
    chance.shuffle(names)
    return {
        name: Nested(shuffled(inner.vals, chance)) if isinstance(inner := space[name], Nested) else inner
        for name in names
    }


@given(seed=st.integers(0, 2**31 - 1), trial=st.integers(1, 10**6), order=st.randoms(use_true_random=False))
def test_the_order_of_a_dictionary_changes_nothing_at_any_depth(seed: int, trial: int, order: random.Random) -> None:
    assert sample(shuffled(SPACE, order), seed, trial) == sample(SPACE, seed, trial)


@given(seed=st.integers(0, 2**31 - 1), trial=st.integers(1, 1000))
def test_a_draw_stays_when_others_are_added(seed: int, trial: int) -> None:
    assert sample({"lr": SPACE["lr"]}, seed, trial)["lr"] == sample(SPACE, seed, trial)["lr"]


@given(seed=st.integers(0, 2**31 - 1), trial=st.integers(1, 10**6))
def test_draws_are_within_their_ranges(seed: int, trial: int) -> None:
    drawn = sample(SPACE, seed, trial)
    assert 1e-5 <= drawn["lr"] <= 1e-1 * (1 + 1e-12)
    assert drawn["layers"] in (1, 2, 3, 4)
    assert 0.1 <= drawn["dropout"] <= 0.5
    assert drawn["kind"] in ("a", {"b": [1, None]}, 3)
    assert drawn["steps"] == 100
    assert drawn["optimizer"]["name"] in ("sgd", "adam")
    assert 0 <= drawn["optimizer"]["inner"]["momentum"] <= 1
    assert 0 <= trial_seed(seed, trial) <= 2**31 - 1


def test_draws_are_spread_evenly() -> None:
    many = [sample(SPACE, 3, trial) for trial in range(1, 4001)]
    for value in (1, 2, 3, 4):
        assert 850 < sum(one["layers"] == value for one in many) < 1150
    exponents = [one["lr"] for one in many]
    assert 0.45 < sum(value < 1e-3 for value in exponents) / 4000 < 0.55
    assert 0.47 < sum((one["dropout"] - 0.1) / 0.4 for one in many) / 4000 < 0.53
    # Two hyperparameters of one trial, and one of two trials, have nothing to do with each other.
    same = sum((a["dropout"] > 0.3) == (a["optimizer"]["inner"]["momentum"] > 0.5) for a in many)
    assert 1850 < same < 2150
    following = sum((a["dropout"] > 0.3) == (b["dropout"] > 0.3) for a, b in itertools.pairwise(many))
    assert 1850 < following < 2150


def test_the_draws_of_a_seed_are_what_they_always_were() -> None:
    """A release must not change what old experiments would draw."""
    drawn = sample({"a": Int(0, 10**6), "b": Nested({"c": Double(0, 1)}), "d": Categorical(("x", "y", "z"))}, 42, 1)
    assert drawn == {"a": 271014, "b": {"c": 0.7501363480303989}, "d": "y"}
    assert trial_seed(42, 1) == 1338167524


def test_a_key_with_a_dot_is_one_key() -> None:
    flat = sample({"a.b": Double(0, 1)}, 1, 1)["a.b"]
    deep = sample({"a": Nested({"b": Double(0, 1)})}, 1, 1)["a"]["b"]
    assert flat != deep


def test_whole_numbers_of_any_size() -> None:
    assert sample({"n": Int(-3, -3)}, 1, 1) == {"n": -3}
    drawn = [sample({"n": Int(-(2**70), 2**70)}, 1, trial)["n"] for trial in range(200)]
    assert len(set(drawn)) == 200
    assert any(value % 2 for value in drawn) and any(abs(value) > 2**68 for value in drawn)


def test_what_is_laid_over_wins_at_every_depth() -> None:
    space: dict[str, Hyperparameter] = {
        "a": Const(1),
        "o": Nested({"x": Const(1), "y": Const(2)}),
        "k": Categorical(({"left": 1}, {"right": 2})),
    }
    under = {"a": 1, "o": {"x": 1, "y": 2}, "k": {"left": 1}}
    over = {"o": {"y": 3, "z": 4}, "k": {"right": 2}, "b": 5}
    assert overlay(space, under, over) == {"a": 1, "o": {"x": 1, "y": 3, "z": 4}, "k": {"right": 2}, "b": 5}
    assert under == {"a": 1, "o": {"x": 1, "y": 2}, "k": {"left": 1}}
    assert overlay(space, under, {"o": 7})["o"] == 7


# -- grids --------------------------------------------------------------------------------------------------------


def points(space: dict[str, Hyperparameter]) -> list[dict[str, Any]]:
    axes = grid_axes(space)
    return [grid_point(space, axes, number) for number in range(1, grid_size(axes) + 1)]


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        (Int(0, 10, 3), (0, 5, 10)),
        (Int(0, 20, 3), (0, 10, 20)),
        (Int(1, 3, 100), (1, 2, 3)),  # no more than there are
        (Int(0, 10, 1), (5,)),
        (Int(0, 9, 1), (5,)),  # a half is rounded away from zero
        (Int(-9, 0, 1), (-5,)),
        (Int(0, 9, 3), (0, 5, 9)),
        (Int(5, 5, 4), (5,)),
        (Double(0, 10, 3), (0.0, 5.0, 10.0)),
        (Double(1, 2, 1), (1.5,)),
        (Log(-3, -1, 10, 3), (1e-3, 1e-2, 1e-1)),
        (Log(-2, 0, 10, 1), (0.1,)),
        (Categorical(("x", "y")), ("x", "y")),
    ],
)
def test_the_values_of_an_axis(axis: Hyperparameter, values: tuple[Any, ...]) -> None:
    (found,) = grid_axes({"a": axis})
    assert found.values == pytest.approx(values) if not isinstance(axis, Categorical) else found.values == values


def test_a_grid_is_every_combination_once_also_of_nested_axes() -> None:
    space: dict[str, Hyperparameter] = {
        "b": Nested({"y": Int(1, 2, 2), "c": Const("k")}),
        "a": Categorical(("p", "q", "r")),
    }
    assert points(space) == [
        {"b": {"y": y, "c": "k"}, "a": a} for a in ("p", "q", "r") for y in (1, 2)
    ]  # axes are sorted by path, the last varies fastest
    assert points(dict(reversed(space.items()))) == points(space)
    assert points({}) == [{}]


def test_a_range_without_a_count_is_named() -> None:
    with pytest.raises(BadRequest) as caught:
        grid_axes({"fine": Int(1, 2, 2), "o": Nested({"lr": Double(0, 1)})})
    assert caught.value.path == "hyperparameters.o.lr.count"


def test_a_grid_beyond_all_reason_is_refused() -> None:
    with pytest.raises(TooLarge):
        grid_axes({str(number): Int(1, 10, 10) for number in range(7)})
