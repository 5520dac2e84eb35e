"""Packing a working directory: the same bytes for the same files, nothing from outside, a limit that says why."""

from __future__ import annotations

import io
import os
import shutil
import socket
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clutch.sdk.code import Packed, pack
from clutch.wire.errors import BadRequest, Conflict, NotFound, TooLarge

step = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=8).filter(
    lambda name: name not in (".", "..") and len(name.encode()) < 200
)
trees = st.dictionaries(st.lists(step, min_size=1, max_size=3).map(tuple), st.binary(max_size=200), max_size=8)

SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Python 3.11 has it from its fourth patch on."""


def fill(root: Path, tree: dict[tuple[str, ...], bytes]) -> dict[str, bytes]:
    made = {}
    for steps, data in tree.items():
        path = root.joinpath(*steps)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        except OSError:  # a name is a file here and a folder there
            continue
        made["/".join(steps)] = data
    return made


def unpacked(packed: Packed) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(b"".join(packed.chunks())), mode="r:gz") as archive:
        return {info.name: info for info in archive.getmembers()}


def packed_bytes(root: Path) -> tuple[str, bytes]:
    with pack(root) as packed:
        return packed.digest, b"".join(packed.chunks())


@given(trees)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_same_files_give_the_same_bytes_and_come_back(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[tuple[str, ...], bytes]
) -> None:
    base = tmp_path_factory.mktemp("pack")
    first, second = base / "one", base / "two"
    first.mkdir(), second.mkdir()
    made = fill(first, tree)
    fill(second, dict(reversed(list(tree.items()))))
    for path in second.rglob("*"):
        os.utime(path, (1, 1))
    if {p.relative_to(first) for p in first.rglob("*")} == {p.relative_to(second) for p in second.rglob("*")}:
        assert packed_bytes(first) == packed_bytes(second)
    out = base / "out"
    with tarfile.open(fileobj=io.BytesIO(packed_bytes(first)[1]), mode="r:gz") as archive:
        archive.extractall(out, **SAFELY)
    kept = {name: data for name, data in made.items() if (out / name).exists()}
    assert {name: (out / name).read_bytes() for name in kept} == kept
    ignorable = (".pyc", ".pyo", "venv", ".git", ".hg", ".svn")
    assert all(any(part.endswith(ignorable) for part in name.split("/")) for name in made.keys() - kept.keys())
    shutil.rmtree(base)


def test_modes_links_and_empty_folders_are_kept(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o750)
    (tmp_path / "empty").mkdir()
    (tmp_path / "again").symlink_to("run.sh")
    with pack(tmp_path) as packed:
        found = unpacked(packed)
    assert list(found) == ["again", "empty", "run.sh"]
    assert found["run.sh"].mode == 0o750
    assert found["empty"].isdir()
    assert (found["again"].issym(), found["again"].linkname) == (True, "run.sh")
    assert {(info.mtime, info.uid, info.gid, info.uname) for info in found.values()} == {(0, 0, 0, "")}


def test_nothing_leads_out_of_the_folder(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir(), root.mkdir()
    (outside / "secret").write_text("x")
    (root / "deep" / "er").mkdir(parents=True)
    (root / "absolute").symlink_to(outside / "secret")
    (root / "relative").symlink_to("../outside/secret")
    (root / "folder").symlink_to("../outside")
    (root / "deep" / "door").symlink_to("../../outside")
    (root / "through").symlink_to("deep/door/secret")  # inside as written, outside as resolved
    (root / "back").symlink_to("../root/deep")  # out and in again: only while the folder has this name
    (root / "fine").symlink_to("deep/er/../../deep")
    (root / "dangling").symlink_to("not-there-yet")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(root / "s"))
    os.mkfifo(root / "pipe")
    with pack(root) as packed:
        found = unpacked(packed)
    listener.close()
    assert sorted(found) == ["dangling", "deep", "deep/er", "fine"]
    assert [reason.split(" ")[0] for reason in packed.contents.left_out] == [
        "absolute", "back", "deep/door", "folder", "pipe", "relative", "s", "through",
    ]  # fmt: skip
    with tarfile.open(fileobj=io.BytesIO(b"".join(_again(root))), mode="r:gz") as archive:
        archive.extractall(tmp_path / "out", **SAFELY)


def _again(root: Path) -> list[bytes]:
    with pack(root) as packed:
        return list(packed.chunks())


def test_a_rule_in_a_folder_counts_for_that_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / ".clutchignore").write_text("*.log\n")
    (tmp_path / "a" / ".clutchignore").write_text("!keep.log\n")
    for name in ("keep.log", "a/keep.log", "a/other.log"):
        (tmp_path / name).touch()
    with pack(tmp_path) as packed:
        assert list(unpacked(packed)) == [".clutchignore", "a", "a/.clutchignore", "a/keep.log"]


def test_a_home_leaves_the_clusters_own_files_and_keys_at_home(tmp_path: Path) -> None:
    for name in (".local/share/clutch/local.token", ".config/clutch/profile", "clutch-runs/train/run.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("ours")
    (tmp_path / ".local" / "share" / "mine").write_text("mine")
    with pack(tmp_path) as packed:
        assert [name for name, info in unpacked(packed).items() if info.isfile()] == [".local/share/mine"]


def test_too_much_says_what_is_large_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "big.bin").write_bytes(os.urandom(300_000))
    (tmp_path / "small.py").write_text("x = 1\n")
    with pytest.raises(TooLarge) as caught:
        pack(tmp_path, limit_bytes=100_000)
    assert "98 KiB" in caught.value.cause or "97.7 KiB" in caught.value.cause
    for words in ("data/ 293 KiB", "data/big.bin 293 KiB", "small.py 6 B", ".clutchignore", "--code"):
        assert words in caught.value.next_step


def test_what_cannot_be_packed_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        pack(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(BadRequest):
        pack(tmp_path / "file")


def test_a_file_that_changes_meanwhile_is_an_error(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x" * 1000)

    def grow(done: int, total: int) -> None:
        (tmp_path / "b").write_bytes(b"x" * 10)

    with pytest.raises(Conflict, match="changed while it was packed"):
        pack(tmp_path, progress=grow)


def test_progress_of_sending_counts_every_byte_and_can_begin_again(tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(os.urandom(1_000_000))
    said: list[tuple[int, int]] = []
    with pack(tmp_path) as packed:
        first = b"".join(packed.chunks(lambda done, total: said.append((done, total))))
        assert b"".join(packed.chunks()) == first
        assert said[-1] == (packed.size_bytes, len(first))
        assert [done for done, _ in said] == sorted({done for done, _ in said})
