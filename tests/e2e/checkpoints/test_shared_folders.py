"""One folder for the checkpoints of several users: each keeps their own, nobody touches another's."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clutch.backends.blobs.shared_folder import share
from clutch.cli.checkpoints import app
from clutch.runtime.checkpoint import Store
from clutch.wire.errors import NotAllowed
from clutch.wire.experiments import Storage

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
ADA, EVE = 61234, 61236

# All that is imported lazily is imported before: another user may not reach the interpreter's own folders.
BEGINNING = """
import asyncio, os, sys
import clutch.backends.blobs.directory, clutch.backends.blobs.opening, clutch.runtime.checkpoint_apart
import clutch.runtime.checkpoint_ways, clutch.runtime.checkpoint_landing, concurrent.futures.thread
from pathlib import Path
from clutch.backends.blobs.directory import DirectoryBlobs
from clutch.runtime.checkpoint import Store
from clutch.runtime.checkpoint_ways import check_folder
from clutch.wire.experiments import Storage
folder, files, uid = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.setgroups([]), os.setgid(uid), os.setuid(uid), os.umask(0)
store = Store.open(Storage(address=f"file://{folder}"))
"""


@pytest.fixture
def kept() -> Iterator[Path]:
    """Where other users get to: pytest closes its own folders again whenever it starts somewhere."""
    with tempfile.TemporaryDirectory(prefix="clutch-shared-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "kept").mkdir()
        (folder / "files").mkdir()
        (folder / "files" / "model.pt").write_bytes(b"weights")
        yield folder / "kept"


def as_user(uid: int, kept: Path, script: str) -> str:
    """What a script of this user's printed last, or the error it ended with."""
    command = [sys.executable, "-c", BEGINNING + script, str(kept), str(kept.with_name("files")), str(uid)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return (done.stdout if done.returncode == 0 else done.stderr).strip().rpartition("\n")[2]


def test_each_user_keeps_their_own(kept: Path) -> None:
    assert CliRunner().invoke(app, ["share", str(kept)]).exit_code == 0
    for uid, name in ((ADA, "1-a"), (EVE, "1-e")):
        said = as_user(uid, kept, f"check_folder('file://' + folder)\nprint(store.upload(files, 'checkpoints/{name}'))")
        assert "model.pt" in said, said
        file = kept / "checkpoints" / name / "model.pt"
        assert (file.stat().st_uid, file.parent.stat().st_uid) == (uid, uid)
        assert not (file.stat().st_mode | file.parent.stat().st_mode) & (stat.S_IWOTH | stat.S_IWGRP)
    read = "print(store.download('checkpoints/1-a', found, folder + '/../' + 'back')[0].path)"
    (kept.parent / "back").mkdir()
    (kept.parent / "back").chmod(0o777)
    found = "from clutch.wire.push import CheckpointFile; import hashlib\n"
    found += "found = [CheckpointFile('model.pt', 7, hashlib.sha256(b'weights').hexdigest())]\n"
    assert as_user(EVE, kept, found + read) == "model.pt", "what the umask lets others read is read"
    for wrong in (
        "store.delete('checkpoints/1-a')",
        "store.upload(files, 'checkpoints/1-a/more')",
        "os.rename(folder + '/checkpoints/1-a', folder + '/checkpoints/1-x')",
        "os.rename(folder + '/checkpoints', folder + '/gone')",
        "os.rename(folder + '/.clutch', folder + '/gone')",
        "os.rename(folder + '/.clutch/parts', folder + '/.clutch/gone')",
    ):
        said = as_user(EVE, kept, wrong)
        assert said.startswith(("clutch.wire.errors.NotAllowed", "PermissionError")), (wrong, said)
    assert (kept / "checkpoints" / "1-a" / "model.pt").read_bytes() == b"weights"
    assert as_user(ADA, kept, "print(store.delete('checkpoints/1-a'))") == "()"
    assert as_user(EVE, kept, "print(store.delete('checkpoints/1-e'))") == "()"
    assert list((kept / "checkpoints").iterdir()) == [], "the folder that all use stays"


def test_nobody_prepares_anothers_checkpoint(kept: Path) -> None:
    """Who makes a folder first, with the name of another's checkpoint, gets no files to change."""
    share(kept)
    as_user(EVE, kept, "os.mkdir(folder + '/checkpoints/1-a', 0o777)")
    assert "it belongs to uid 61236" in as_user(ADA, kept, "store.upload(files, 'checkpoints/1-a')")
    as_user(EVE, kept, "os.symlink('/tmp', folder + '/checkpoints/2-a')")
    assert "NotAllowed" in as_user(ADA, kept, "store.upload(files, 'checkpoints/2-a')")


def test_half_written_files_of_others_are_left_alone(kept: Path) -> None:
    share(kept)
    name = "from clutch.backends.blobs.files import source\n"
    name += "with source(Path(files) / 'model.pt') as origin: part = origin.identity('checkpoints/1-a/model.pt')\n"
    plant = f"{name}open(folder + '/.clutch/parts/' + part, 'w').write('weig')"
    assert as_user(EVE, kept, plant) == ""
    assert "model.pt" in as_user(ADA, kept, "print(store.upload(files, 'checkpoints/1-a'))")
    assert (kept / "checkpoints" / "1-a" / "model.pt").stat().st_uid == ADA
    swept = "print(asyncio.run(DirectoryBlobs(Path(folder)).sweep(0.0)))"
    assert as_user(ADA, kept, swept) == "0"
    assert as_user(EVE, kept, swept) == "1"


def test_a_folder_that_refuses_is_found_before_anything_is_written(kept: Path) -> None:
    said = as_user(ADA, kept, "check_folder('file://' + folder)")
    assert (
        said.startswith("clutch.wire.errors.NotAllowed") and "uid 61234" in said and "clutch checkpoint share" in said
    )
    assert "NotAllowed" in as_user(ADA, kept, "check_folder('file://' + folder + '/not/there')")
    kept.chmod(0o1777)
    assert as_user(ADA, kept, "check_folder('file://' + folder); store.upload(files, 'checkpoints/1-a')") == ""
    said = as_user(EVE, kept, "check_folder('file://' + folder)")
    assert "uid 61234" in said, "nobody prepared it, so it is whose checkpoint was there first"
    share(kept)
    assert as_user(EVE, kept, "check_folder('file://' + folder); store.upload(files, 'checkpoints/1-e')") == ""
    assert "NotAllowed" in as_user(EVE, kept, "store.delete('checkpoints/1-a')")


def test_what_root_makes_belongs_to_the_folders_owner(kept: Path) -> None:
    """A master looks whether checkpoints can be kept there, and its agents run as somebody else."""
    os.chown(kept, ADA, ADA)
    Store.open(Storage(address=f"file://{kept}")).check()
    assert "model.pt" in as_user(
        ADA, kept, "check_folder('file://' + folder)\nprint(store.upload(files, 'checkpoints/1-a'))"
    )


def test_a_link_in_its_place_is_not_followed(kept: Path) -> None:
    target = kept.with_name("target")
    target.mkdir(mode=0o700)
    (kept / "checkpoints").symlink_to(target)
    with pytest.raises(NotAllowed):
        share(kept)
    assert stat.S_IMODE(target.stat().st_mode) == 0o700
    missing = CliRunner().invoke(app, ["share", str(kept / "model.pt" / "x")])
    assert missing.exit_code == 0 and (kept / "model.pt" / "x" / "checkpoints").is_dir()
