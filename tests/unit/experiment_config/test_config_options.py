"""``--search`` in one word."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.wire.errors import BadRequest
from clutch.wire.experiments import Const, Int, Log
from clutch.workloads.experiment.config import Door, accepted, merged, search_option
from clutch.workloads.experiment.config.options import search_options


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("lr=log(1e-5,1e-1)", ("lr",), {"type": "log", "base": 10, "minval": -5.0, "maxval": -1.0}),
        (
            "lr=log(1e-5, 1e-1, count=5)",
            ("lr",),
            {"type": "log", "base": 10, "minval": -5.0, "maxval": -1.0, "count": 5},
        ),
        ("n=int(1,8)", ("n",), {"type": "int", "minval": 1, "maxval": 8}),
        ("n = INT( 1 , 1e3 , count = 4 )", ("n",), {"type": "int", "minval": 1, "maxval": 1000, "count": 4}),
        ("d=uniform(0,0.5)", ("d",), {"type": "double", "minval": 0.0, "maxval": 0.5}),
        ("d=double(-1,1,count=3)", ("d",), {"type": "double", "minval": -1.0, "maxval": 1.0, "count": 3}),
        ("a=choice(relu,gelu)", ("a",), {"type": "categorical", "vals": ["relu", "gelu"]}),
        ("a=[relu, 1, 1e-3, null, true]", ("a",), {"type": "categorical", "vals": ["relu", 1, 0.001, None, True]}),
        ("a=choice('x,y', \"(\", [1,2])", ("a",), {"type": "categorical", "vals": ["x,y", "(", [1, 2]]}),
        ("optimizer.lr=0.1", ("optimizer", "lr"), {"type": "const", "val": 0.1}),
        ("a.b.c=word of text", ("a", "b", "c"), {"type": "const", "val": "word of text"}),
        ("a=x=y", ("a",), {"type": "const", "val": "x=y"}),
        ("a=", ("a",), {"type": "const", "val": ""}),
        ("a=null", ("a",), {"type": "const", "val": None}),
        ("a={type: adam}", ("a",), {"type": "const", "val": {"type": "adam"}}),
        ("a=http://host:80/x", ("a",), {"type": "const", "val": "http://host:80/x"}),
    ],
)
def test_forms(text: str, path: tuple[str, ...], value: dict[str, Any]) -> None:
    assert search_option(text) == (path, value)
    accepted({"entrypoint": "x", "hyperparameters": search_options([text])}, Door())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr", "names no hyperparameter"),
        ("=3", "names no hyperparameter"),
        ("a..b=3", "names no hyperparameter"),
        ("a b=3", "names no hyperparameter"),
        ("lr=logg(1,2)", "no form 'logg'"),
        ("lr=log(0,1)", "no logarithm"),
        ("lr=log(-1,1)", "no logarithm"),
        ("lr=log(1)", "two numbers"),
        ("lr=log(1,2,3)", "two numbers"),
        ("lr=log(a,b)", "two numbers"),
        ("lr=log(true,2)", "two numbers"),
        ("n=int(1.5,2)", "not whole numbers"),
        ("n=int(3,1)", "not less than"),
        ("n=int(1,3,count=0)", "count=0"),
        ("n=int(1,3,count=x)", "count=x"),
        ("a=choice()", "nothing to choose"),
        ("a=[1, 2", "cannot be read"),
        ("lr=log(1e-5", "bracket is not closed"),
        ("a=x: y", "cannot be read"),
    ],
)
def test_what_is_no_form(text: str, words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        search_option(text)
    assert words in caught.value.cause
    assert text in caught.value.object
    assert "log(1e-5,1e-1)" in caught.value.next_step


def test_several_are_laid_over_a_file() -> None:
    over = search_options(["optimizer.lr=log(1e-4,1e-2)", "optimizer.kind=adam", "layers=int(1,4)"])
    file = {
        "entrypoint": "x",
        "hyperparameters": {"optimizer": {"lr": 0.1, "beta": 0.9}, "layers": 2},
        "searcher": {"name": "random", "metric": "loss", "max_trials": 5},
    }
    spec = accepted(merged([{"hyperparameters": over}, file]), Door()).spec
    assert spec.hyperparameters["layers"] == Int(1, 4)
    assert spec.hyperparameters["optimizer"].vals == {  # type: ignore[union-attr]
        "lr": Log(-4.0, -2.0),
        "kind": Const("adam"),
        "beta": Const(0.9),
    }
    for twice in (["a=1", "a=2"], ["a=1", "a.b=2"], ["a.b=1", "a=2"]):
        with pytest.raises(BadRequest):
            search_options(twice)


@given(st.floats(1e-12, 1e6), st.floats(1.001, 1e6))
def test_log_takes_values_and_gives_exponents(low: float, factor: float) -> None:
    _, found = search_option(f"x=log({low!r},{low * factor!r})")
    assert math.isclose(10 ** found["minval"], low, rel_tol=1e-9)
    assert math.isclose(10 ** found["maxval"], low * factor, rel_tol=1e-9)
