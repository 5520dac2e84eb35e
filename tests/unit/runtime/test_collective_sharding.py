"""What ranks bring to one checkpoint: who stores what, where they contradict each other, whose metadata."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from clutch.runtime.collective import sharding
from clutch.wire.errors import Conflict
from clutch.wire.push import SHA256_OF_NOTHING, CheckpointFile

WHAT = "checkpoint of step 5"
NAMES = some.sampled_from(["a", "b", "c"])
PATHS = some.lists(NAMES, min_size=1, max_size=3).map("/".join)


def test_of_ranks_with_one_folder_the_lowest_stores_it() -> None:
    assert sharding.storing_ranks(["x", "y", "x", "z", "y"]) == (True, True, False, True, False)


def test_folders_may_overlap() -> None:
    assert sharding.shared_paths({0: ["m/a", "m/n/c"], 1: ["m/b", "m/n/d"], 2: ["e"]}, WHAT) == {}


def test_a_file_of_several_ranks_is_named_with_them() -> None:
    assert sharding.shared_paths({0: ["m/a", "x"], 1: ["m/a"], 3: ["m/a", "x"]}, WHAT) == {
        "m/a": (0, 1, 3),
        "x": (0, 3),
    }


@pytest.mark.parametrize("turned", [False, True])
def test_a_file_is_no_folder_of_another_rank(turned: bool) -> None:
    sides = {0: ["m"], 1: ["m/n/a"]} if not turned else {1: ["m"], 0: ["m/n/a"]}
    with pytest.raises(Conflict, match=r"step 5: m is a file on rank \d and a folder on rank \d"):
        sharding.shared_paths(sides, WHAT)


def test_equal_files_are_stored_by_the_lowest_rank() -> None:
    hashes = {0: {"x": "1"}, 1: {"x": "1", "y": "2"}, 2: {"y": "2", "x": "1"}, 3: {}}
    assert sharding.stored_elsewhere(hashes, WHAT) == {0: set(), 1: {"x"}, 2: {"x", "y"}, 3: set()}


def test_different_files_of_one_path_are_a_conflict() -> None:
    with pytest.raises(Conflict, match="step 5: x has different contents on ranks 0, 1, 2"):
        sharding.stored_elsewhere({0: {"x": "1"}, 1: {"x": "1"}, 2: {"x": "2"}}, WHAT)


def test_a_folder_that_another_rank_fills_is_not_empty() -> None:
    brought = [CheckpointFile(path, 0, SHA256_OF_NOTHING) for path in ("b/", "a/", "a/x", "a-b", "c/d/", "c/d-e/")]
    assert [file.path for file in sharding.joined(brought)] == ["a-b", "a/x", "b/", "c/d-e/", "c/d/"]
    assert sharding.shared_paths({0: ["a/"], 1: ["a/"], 2: ["a/x"]}, WHAT) == {"a/": (0, 1)}
    with pytest.raises(Conflict, match="a is a file on rank 0 and a folder on rank 1"):
        sharding.shared_paths({0: ["a"], 1: ["a/"]}, WHAT)


def test_metadata_is_laid_together_key_by_key() -> None:
    said = {0: {"a": {"x": 1, "z": [1]}, "all": "same"}, 1: {"a": {"y": 2, "z": [1]}, "all": "same"}, 2: {}}
    assert sharding.merged_metadata(said, WHAT) == {"a": {"x": 1, "z": [1], "y": 2}, "all": "same"}


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ({0: {"a": {"b": 1}}, 1: {"a": {"b": 1}}, 2: {"a": {"b": 2}}}, "a.b differs between ranks 0, 1, 2"),
        ({0: {"a": {"b": 1}}, 2: {"a": 1}}, "a differs between ranks 0, 2"),
        ({0: {"a": 1}, 1: {"a": True}}, "a differs between ranks 0, 1"),
        ({0: {"a": 1}, 1: {"a": 1.0}}, "a differs between ranks 0, 1"),
        ({0: {"a": [1]}, 1: {"a": [2]}}, "a differs between ranks 0, 1"),
        ({0: {"a": None}, 1: {"a": 0}}, "a differs between ranks 0, 1"),
    ],
)
def test_metadata_that_differs_is_a_conflict_that_names_the_path_and_the_ranks(said: Any, names: str) -> None:
    with pytest.raises(Conflict, match=names):
        sharding.merged_metadata(said, WHAT)


@given(some.dictionaries(some.integers(0, 4), some.lists(PATHS, unique=True, max_size=6), max_size=5))
def test_every_file_is_stored_once_and_by_a_rank_that_has_it(paths: dict[int, list[str]]) -> None:
    files = {path for found in paths.values() for path in found}
    folders = {path[:at] for path in files for at, letter in enumerate(path) if letter == "/"}
    if files & folders:
        with pytest.raises(Conflict):
            sharding.shared_paths(paths, WHAT)
        return
    shared = sharding.shared_paths(paths, WHAT)
    hashes = {rank: {path: "same" for path in found if path in shared} for rank, found in paths.items()}
    left = sharding.stored_elsewhere(hashes, WHAT)
    stored = [path for rank, found in paths.items() for path in found if path not in left[rank]]
    assert sorted(stored) == sorted(files)
    for path in files:
        lowest = min(rank for rank, found in paths.items() if path in found)
        assert path not in left[lowest]


@given(some.lists(some.dictionaries(NAMES, some.integers(0, 1) | some.dictionaries(NAMES, some.integers(0, 1)))))
def test_metadata_is_merged_alike_in_any_order_of_ranks(said: list[dict[str, Any]]) -> None:
    def outcome(order: list[dict[str, Any]]) -> Any:
        try:
            return sharding.merged_metadata(dict(enumerate(order)), WHAT)
        except Conflict:
            return "conflict"

    found = outcome(said)
    assert outcome(said[::-1]) == found
    if found != "conflict":
        for one in said:
            for key, value in one.items():
                inside = value.items() <= found[key].items() if isinstance(value, dict) else found[key] == value
                assert inside
