"""``clutch run --search``: what the words on a command line become."""

from __future__ import annotations

from typing import Any

import pytest

from clutch.cli.searching import Search, as_program, config_of
from clutch.wire.errors import BadRequest

WISH: dict[str, Any] = {
    "name": "", "pool": "default", "priority": 42, "max_restarts": 0, "slots": None, "launch": "", "environment": {},
    "image": "",
}  # fmt: skip


def searcher(*hyperparameters: str, **more: Any) -> dict[str, Any]:
    found = config_of(["train.py"], Search(hyperparameters=hyperparameters, **more), WISH)
    assert found["name"] == "train.py" and found["entrypoint"] == ["python", "train.py"]
    return dict(found["searcher"])


@pytest.mark.parametrize(
    ("words", "more", "name"),
    [
        (("lr=log(1e-5,1e-1)",), {}, "random"),
        (("lr=log(1e-5,1e-1)",), {"max_time": 9}, "adaptive_asha"),
        (("lr=log(1e-5,1e-1,count=3)",), {}, "grid"),
        (("lr=log(1e-5,1e-1,count=3)", "a.b=choice(x,y)", "c=5"), {}, "grid"),
        (("lr=log(1e-5,1e-1,count=3)", "n=int(1,9)"), {}, "random"),
        (("a=choice(x,y)",), {}, "random"),
        (("lr=log(1e-5,1e-1,count=3)",), {"method": "tpe"}, "tpe"),
        (("lr=log(1e-5,1e-1,count=3)",), {"max_time": 9}, "adaptive_asha"),
    ],
    ids=str,
)
def test_which_search_is_meant(words: tuple[str, ...], more: dict[str, Any], name: str) -> None:
    found = searcher(*words, **more)
    assert found["name"] == name
    assert ("max_trials" in found) is (name != "grid")


def test_depths_and_repetitions() -> None:
    found = config_of(["train.py"], Search(hyperparameters=("opt.lr=uniform(0,1)", "opt.kind=adam")), WISH)
    assert found["hyperparameters"]["opt"]["kind"] == {"type": "const", "val": "adam"}
    for wrong in (("a=1",), ("a=1", "b.c=2"), ("a=int(1,2)", "a=int(1,3)"), ("a=int(1,2)", "a.b=int(1,2)")):
        with pytest.raises(BadRequest):
            searcher(*wrong)
    with pytest.raises(BadRequest):
        config_of([], Search(hyperparameters=("a=int(1,2)",)), WISH)
    assert as_program(("sh", "x.py")) == ("sh", "x.py")
