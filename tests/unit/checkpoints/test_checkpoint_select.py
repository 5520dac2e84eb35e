"""Patterns over paths."""

import re
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.runtime.checkpoint_select import any_of, selected
from clutch.wire.errors import BadRequest
from clutch.wire.push import CheckpointFile


def files(*paths: str) -> tuple[CheckpointFile, ...]:
    return tuple(CheckpointFile(path, 1, "0" * 64) for path in paths)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("model.pt", ["model.pt"], ["a/model.pt", "model_pt", "model.pt2"]),
        ("*.json", ["a.json", ".json"], ["a/b.json", "a.jsonl"]),
        ("**/*.json", ["a.json", "a/b.json", "a/b/c.json"], ["a.txt"]),
        ("optimizer/", ["optimizer/a", "optimizer/b/c"], ["optimizer", "my-optimizer/a"]),
        ("**", ["a", "a/b/c"], []),
        ("a/**/z", ["a/z", "a/b/z", "a/b/c/z"], ["a", "z", "ab/z"]),
        ("rank-?.bin", ["rank-1.bin"], ["rank-10.bin", "rank-/.bin"]),
        ("[a-c]x", ["ax", "cx"], ["dx", "/x"]),
        ("[!a-c]x", ["dx"], ["ax", "/x"]),
        ("[^a]x", ["^x", "ax"], ["bx"]),
        ("a+(b).[", ["a+(b).["], ["aab."]),
    ],
)
def test_patterns(pattern: str, yes: list[str], no: list[str]) -> None:
    match = any_of([pattern])
    assert [path for path in yes if not match(path)] == []
    assert [path for path in no if match(path)] == []


@given(st.text("ab*?.", max_size=8).filter(lambda text: "**" not in text and text), st.text("ab.", max_size=8))
def test_within_a_folder_it_is_what_shells_do(pattern: str, path: str) -> None:
    assert any_of([pattern])(path) == fnmatchcase(path, pattern)


@given(st.text(max_size=30))
def test_no_pattern_does_harm(pattern: str) -> None:
    try:
        match = any_of([pattern])
    except BadRequest:
        return
    match("a/b")


@given(st.text("abz/.-_ +(){}^$|\\", min_size=1, max_size=20).filter(lambda text: not text.endswith("/")))
def test_a_plain_path_means_itself_only(path: str) -> None:
    match = any_of([path])
    assert match(path)
    assert not match(path + "x")
    assert not match("x" + path)


def test_what_is_selected() -> None:
    three = files("model.pt", "a/b.json", "c.json")
    assert selected(three, None) == three
    assert [file.path for file in selected(three, ["**/*.json"])] == ["a/b.json", "c.json"]
    assert [file.path for file in selected(three, lambda path: "b" in path)] == ["a/b.json"]
    with pytest.raises(BadRequest, match=re.escape("nothing*")):
        selected(three, ["nothing*"])
    with pytest.raises(BadRequest):
        selected(three, "model.pt")
    with pytest.raises(BadRequest):
        selected(three, [""])
