"""What lies in a folder that becomes a checkpoint."""

import os
from pathlib import Path

import pytest

from clutch.runtime.checkpoint_folder import files_in
from clutch.wire.errors import BadRequest, NotFound


def paths(folder: Path) -> list[str]:
    return sorted(one.path for one in files_in(folder))


def test_files_by_size(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "small").write_bytes(b"1")
    (tmp_path / "a" / "b" / "large").write_bytes(b"123")
    found = files_in(tmp_path)
    assert [(one.path, one.size_bytes) for one in found] == [("a/b/large", 3), ("small", 1), ("empty/", 0)]
    assert [one.is_folder for one in found] == [False, False, True]
    assert files_in(tmp_path / "empty") == (), "the folder itself is none in it"
    (tmp_path / "empty" / "deeper").mkdir()
    (tmp_path / "link").symlink_to("empty")
    assert paths(tmp_path) == ["a/b/large", "empty/deeper/", "link/deeper/", "small"]


def test_links_inside_are_what_they_lead_to(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one").write_bytes(b"12")
    (tmp_path / "latest").symlink_to("data/one")
    (tmp_path / "again").symlink_to(tmp_path / "data")
    assert paths(tmp_path) == ["again/one", "data/one", "latest"]
    (tmp_path.parent / f"{tmp_path.name}-link").symlink_to(tmp_path)
    assert paths(tmp_path.parent / f"{tmp_path.name}-link") == ["again/one", "data/one", "latest"]


@pytest.mark.parametrize("target", ["/etc/hostname", "../outside", "/", ".."])
def test_links_that_lead_out_are_refused(target: str, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"secret")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(target)
    with pytest.raises(BadRequest, match="leads out") as refused:
        files_in(folder)
    assert "link" in refused.value.object


def test_links_that_lead_nowhere_or_round(tmp_path: Path) -> None:
    (tmp_path / "dead").symlink_to("nothing")
    with pytest.raises(NotFound, match="dead"):
        files_in(tmp_path)
    (tmp_path / "dead").unlink()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "up").symlink_to("..")
    with pytest.raises(BadRequest, match="leads back"):
        files_in(tmp_path)
    (tmp_path / "sub" / "up").unlink()
    (tmp_path / "self").symlink_to("self")
    with pytest.raises(BadRequest):
        files_in(tmp_path)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadRequest, match="pipe"):
        files_in(tmp_path)
    with pytest.raises(NotFound):
        files_in(tmp_path / "nothing")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BadRequest):
        files_in(tmp_path / "file")
