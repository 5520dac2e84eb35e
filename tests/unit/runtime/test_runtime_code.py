"""Archives that try to leave their folder, and the cache that members of one user share."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from clutch.runtime.code import cache_folder, unpack
from clutch.wire.errors import BadRequest, NotAllowed, TooLarge

Entry = tuple[str, bytes | str, Callable[[tarfile.TarInfo], None] | None]


def entry(name: str, content: bytes = b"x", *, mode: int = 0o644) -> Entry:
    def shape(info: tarfile.TarInfo) -> None:
        info.mode = mode

    return name, content, shape


def link(name: str, to: str, kind: bytes = tarfile.SYMTYPE) -> Entry:
    def shape(info: tarfile.TarInfo) -> None:
        info.type, info.linkname, info.size = kind, to, 0

    return name, b"", shape


def special(name: str, kind: bytes) -> Entry:
    def shape(info: tarfile.TarInfo) -> None:
        info.type, info.size = kind, 0

    return name, b"", shape


def pack(path: Path, entries: list[Entry], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content, shape in entries:
            assert isinstance(content, bytes)
            info = tarfile.TarInfo(name)
            info.size = len(content)
            if shape is not None:
                shape(info)
            archive.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize("mode", ["w:gz", "w", "w:xz"])
def test_what_was_packed_is_there(tmp_path: Path, mode: str) -> None:
    target = tmp_path / "target"
    target.mkdir()
    entries = [
        entry("train.py", b"print(1)"),
        entry("./bin/run", b"#!", mode=0o4755),
        special("empty", tarfile.DIRTYPE),
        link("deep/latest", "../train.py"),
        link("copy.py", "train.py", tarfile.LNKTYPE),
        link("here", "."),
    ]
    unpack(pack(tmp_path / "a.tar", entries, mode), target)
    assert (target / "train.py").read_bytes() == (target / "deep/latest").read_bytes() == b"print(1)"
    assert (target / "copy.py").read_bytes() == b"print(1)" and (target / "empty").is_dir()
    assert (target / "bin/run").stat().st_mode & 0o7777 == 0o755, "and nothing runs as somebody else"


@pytest.mark.parametrize(
    "bad",
    [
        [entry("/etc/evil")],
        [entry("../evil")],
        [entry("a/../../evil")],
        [link("out", "/etc")],
        [link("out", "../outside")],
        [link("a/out", "../../outside")],
        [link("hard", "../outside", tarfile.LNKTYPE)],
        [link("hard", "/etc/passwd", tarfile.LNKTYPE)],
        [special("pipe", tarfile.FIFOTYPE)],
        [special("null", tarfile.CHRTYPE)],
        [special("disk", tarfile.BLKTYPE)],
        [link("l2", "deep/l1/.."), link("deep/l1", "..")],  # each looks fine alone
        [link("d", "deep/dir/l1/../.."), entry("deep/dir/x"), link("deep/dir/l1", "../..")],
        [link("train.py", "other"), entry("train.py/under")],
        [entry("a"), link("a", "b")],
        [link("missing", "nobody", tarfile.LNKTYPE)],
    ],
)
def test_what_does_not_belong_is_refused_and_nothing_is_written_outside(tmp_path: Path, bad: list[Entry]) -> None:
    top = tmp_path / "inner" / "target"
    top.mkdir(parents=True)
    with pytest.raises(BadRequest) as caught:
        unpack(pack(tmp_path / "a.tar", [entry("ok.py"), *bad]), top)
    assert caught.value.object
    outside = [path for path in tmp_path.rglob("*") if top not in path.parents and path.name not in ("inner", "target")]
    assert [path.name for path in outside] == ["a.tar"]
    for path in top.rglob("*"):
        assert top in Path(os.path.realpath(path)).parents, f"{path} leads out"


def test_no_file_is_written_through_a_link(tmp_path: Path) -> None:
    outside, top = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    top.mkdir()
    with pytest.raises(BadRequest):
        unpack(pack(tmp_path / "a.tar", [link("d", str(outside)), entry("d/evil")]), top)
    assert list(outside.iterdir()) == []


def test_no_sound_archive(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    whole = pack(tmp_path / "whole.tar", [entry("big", os.urandom(100_000))]).read_bytes()
    for content in (b"", b"no tar at all", whole[: len(whole) // 2]):
        (tmp_path / "a.tar").write_bytes(content)
        with pytest.raises(BadRequest):
            unpack(tmp_path / "a.tar", target)


def test_a_bomb_is_refused_before_it_fills_the_disk(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(TooLarge):
        unpack(pack(tmp_path / "a.tar", [entry("zeros", bytes(2 << 20))]), target, max_bytes=1 << 20)
    assert list(target.iterdir()) == []


def test_a_cache_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    assert cache_folder(str(tmp_path / "new/one")).is_dir()
    loose = tmp_path / "loose"
    loose.mkdir()
    loose.chmod(0o777)
    with pytest.raises(NotAllowed):
        cache_folder(str(loose))
    (tmp_path / "link").symlink_to(tmp_path / "new")
    with pytest.raises(NotAllowed):
        cache_folder(str(tmp_path / "link"))
