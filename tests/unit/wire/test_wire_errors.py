"""The tree of errors: codes, statuses, blame, words; and the picture of it."""

from __future__ import annotations

import re

import pytest

from clutch.wire import errors


def tree(kind: type[errors.ClutchError]) -> list[type[errors.ClutchError]]:
    found = [kind]
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            found += tree(child)
    return found


ALL = tree(errors.ClutchError)
LEAVES = [
    kind for kind in ALL if kind not in (errors.ClutchError, errors.UserError, errors.ClusterError, errors.BugError)
]


def drawn() -> dict[str, tuple[str, int | None, str]]:
    """From the docstring: name -> (parent, status, code)."""
    assert errors.__doc__ is not None
    found: dict[str, tuple[str, int | None, str]] = {}
    path: list[tuple[int, str]] = []
    for line in errors.__doc__.split("::")[1].splitlines():
        match = re.match(r"^ {4}([│ ├└─]*)([A-Z]\w+)(?:\s+(\d{3})\s+(\w+))?", line)
        if match is None:
            continue
        depth = len(match[1])
        while path and path[-1][0] >= depth:
            path.pop()
        found[match[2]] = (path[-1][1] if path else "", int(match[3]) if match[3] else None, match[4] or "")
        path.append((depth, match[2]))
    return found


def test_the_picture_shows_exactly_the_classes() -> None:
    assert sorted(drawn()) == sorted(kind.__name__ for kind in ALL)


@pytest.mark.parametrize("kind", ALL)
def test_the_picture_is_right(kind: type[errors.ClutchError]) -> None:
    parent, status, code = drawn()[kind.__name__]
    assert (kind.__mro__[1].__name__ if kind is not errors.ClutchError else "") == parent
    if kind in LEAVES:
        assert (status, code) == (kind.status, kind.code)


def test_codes_are_unique_and_names_of_their_classes() -> None:
    codes = [kind.code for kind in ALL]
    assert len(codes) == len(set(codes))
    for kind in LEAVES:
        assert kind.code == re.sub(r"(?<!^)([A-Z])", r"_\1", kind.__name__).lower()


@pytest.mark.parametrize("kind", ALL)
def test_status_and_blame(kind: type[errors.ClutchError]) -> None:
    assert 400 <= kind.status < 600
    blame = {errors.UserError: "user", errors.ClusterError: "cluster", errors.BugError: "bug"}
    for root, who in blame.items():
        if issubclass(kind, root):
            assert kind.blame == who
    if kind.blame == "user":
        assert kind.status < 500, "the caller can mend it"
    assert kind.__doc__


@pytest.mark.parametrize("kind", ALL)
def test_it_says_cause_object_and_next_step(kind: type[errors.ClutchError]) -> None:
    error = kind("the wheel came off.", object="cart 7", next_step="Fit another.")
    assert str(error) == "cart 7: the wheel came off. Fit another."
    view = error.view()
    assert (view.code, view.cause, view.object, view.next_step) == (
        kind.code, "the wheel came off.", "cart 7", "Fit another.",
    )  # fmt: skip
    assert str(kind("bare")) == "bare."


def test_a_path_is_said_too() -> None:
    error = errors.BadRequest("it is negative", object="task 't'", path="roles[0].count", next_step="Give 1 or more.")
    assert str(error) == "task 't': it is negative (at roles[0].count). Give 1 or more."
    assert error.view().path == "roles[0].count"


def test_what_some_errors_carry_besides() -> None:
    assert errors.IllegalMove("no", story=("a", "b")).story == ("a", "b")
    assert errors.NotLeader("no", leader="m2").leader == "m2"
