"""``.clutchignore`` decides as git does, on any pattern."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clutch.sdk.ignore import default_rules, is_ignored, parse_rule, parse_rules

NAMES = ["a", "b", "ab", "abc", "a.py", "b.pyc", "x y", "x ", "-", "!a", "#b", "]", "[", "\\", "é", "A", "0", "*", "a?"]
PIECES = [
    "a", "b", "ab", ".py", "x", " ", "\\ ", "*", "**", "***", "?", "/", "/", "[ab]", "[!a]", "[^b]", "[a-c]", "[]a]",
    "c", "[-a]",
    "[[:alpha:]]", "[[:nope:]]", "[[:x]", "[a", "[\\]]", "[a\\-c]", "[c-a]", "\\*", "\\", "!", "#", "é", "0",
]  # fmt: skip

patterns = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join)
files = st.lists(patterns | patterns.map(lambda p: "!" + p), max_size=5).map("\n".join)
paths = st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3), min_size=1, max_size=8)


def ours(text: bytes, inner: bytes, wanted: list[tuple[bytes, ...]]) -> list[bytes]:
    """Paths that are ignored, looking at each folder on the way as a walk would."""
    rules = (*parse_rules(text), *parse_rules(inner, b"a/"))
    found = []
    for steps in wanted:
        prefixes = [b"/".join(steps[: end + 1]) for end in range(len(steps))]
        if any(is_ignored(rules, prefix, prefix != prefixes[-1]) for prefix in prefixes):
            found.append(b"/".join(steps))
    return found


def gits(root: Path, wanted: list[tuple[bytes, ...]]) -> list[bytes]:
    """What git would not add."""
    out = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-per-directory=.gitignore", "-z"],
        cwd=root, capture_output=True, check=True,
    ).stdout.split(b"\0")  # fmt: skip
    return [b"/".join(steps) for steps in wanted if b"/".join(steps) not in out]


@pytest.mark.skipif(shutil.which("git") is None, reason="compares with git, which is not on this machine")
@given(files, files, paths)
@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_rules_decide_as_git_does(
    tmp_path_factory: pytest.TempPathFactory, text: str, inner: str, chosen: list[list[str]]
) -> None:
    root = tmp_path_factory.mktemp("tree")
    subprocess.run(
        ["git", "init", "-q", "."], cwd=root, check=True, env={"PATH": os.environ["PATH"], "HOME": str(root)}
    )
    wanted: list[tuple[bytes, ...]] = []
    for steps in chosen:
        path = root.joinpath(*steps)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_dir():
                path.write_bytes(b"")
                wanted.append(tuple(step.encode() for step in steps))
        except OSError:  # a name is a file here and a folder there
            continue
    (root / ".gitignore").write_bytes(text.encode())
    if (root / "a").is_dir():
        (root / "a" / ".gitignore").write_bytes(inner.encode())
    wanted = sorted(set(wanted))
    assert ours(text.encode(), inner.encode() if (root / "a").is_dir() else b"", wanted) == gits(root, wanted)
    shutil.rmtree(root)


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.log", "a/b/x.log", True),
        ("/*.log", "a/x.log", False),
        ("/*.log", "x.log", True),
        ("a/b", "c/a/b", False),
        ("**/b", "c/a/b", True),
        ("a/**/b", "a/b", True),
        ("a/**", "a", False),
        ("\\#x", "#x", True),
        ("#x", "#x", False),
        ("x\\ ", "x ", True),
        ("x   ", "x", True),
    ],
)
def test_the_rules_one_by_one(pattern: str, path: str, matches: bool) -> None:
    rule = parse_rule(pattern.encode())
    assert (rule is not None and rule.matches(path.encode(), False)) == matches


def test_defaults_can_be_taken_back() -> None:
    assert is_ignored(default_rules(), b"sub/__pycache__", True)
    assert not is_ignored((*default_rules(), *parse_rules(b"!__pycache__/")), b"sub/__pycache__", True)
