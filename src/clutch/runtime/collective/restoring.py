"""A checkpoint that the ranks of one node read: its files are fetched once, and lie in one folder.

The first rank to come fetches, under a lock; the others find what is there. A rank that is killed while it fetches
lets go of the lock, and the next one goes on where it was. Each fetches what it means: together that is the union. The
last to leave removes the folder.

::

    FOLDER/files/...       the checkpoint
    FOLDER/landed          the paths of files that are whole, one a line
    FOLDER/view            what the master says of it, as JSON
    FOLDER/lock, used      who fetches, and who reads
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from clutch.runtime.collective.together import WORK_WITHIN_S, Together
from clutch.wire.errors import NotAllowed
from clutch.wire.push import CheckpointFile, CheckpointView

if TYPE_CHECKING:
    from clutch.runtime.checkpoint_select import Selector
    from clutch.runtime.saving import SavedCheckpoint, Saver

FILES, LANDED, VIEW, LOCK, USED = "files", "landed", "view", "lock", "used"


class NodeFolder:
    """``whose`` is the same for processes that share it, and for nobody else."""

    def __init__(self, parent: str, checkpoint: str, whose: str) -> None:
        digest = hashlib.sha256(f"{whose}\0{checkpoint}".encode()).hexdigest()[:16]
        name = re.sub(r"[^A-Za-z0-9._-]", "-", checkpoint)[:60]
        self._folder = Path(parent or tempfile.gettempdir()) / f"clutch-restored-{name}-{digest}"
        self._used = self._enter()

    def view(self, ask: Callable[[], CheckpointView]) -> CheckpointView:
        """What the master says, asked for by one of us."""
        place = self._folder / VIEW
        with self._alone():
            if not place.exists():
                aside = place.with_suffix(".new")
                aside.write_bytes(msgspec.json.encode(ask()))
                aside.rename(place)
            return msgspec.json.decode(place.read_bytes(), type=CheckpointView)

    def fetch(
        self, meant: Sequence[CheckpointFile], get: Callable[[Sequence[CheckpointFile], Path], None]
    ) -> Path:  # fmt: skip
        """The folder, with the files that are meant in it. ``get`` brings those that nobody has fetched."""
        target = self._folder / FILES
        with self._alone():
            target.mkdir(exist_ok=True)
            landed = self._landed()
            wanted = [file for file in meant if file.path not in landed]
            if wanted:
                get(wanted, target)
                with (self._folder / LANDED).open("a") as note:
                    note.write("".join(f"{msgspec.json.encode(file.path).decode()}\n" for file in wanted))
        return target

    def close(self) -> None:
        """The last one removes it."""
        try:
            fcntl.flock(self._used, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(self._folder, ignore_errors=True)
        except OSError:
            return  # somebody still reads
        finally:
            os.close(self._used)

    def _landed(self) -> set[str]:
        try:
            lines = (self._folder / LANDED).read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return set()
        return {msgspec.json.decode(line) for line in lines if line.endswith("\n")}  # the last may be half written

    def _enter(self) -> int:
        """Hold it against removal. One that is being removed is made anew."""
        while True:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self._folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise NotAllowed(
                    "it belongs to somebody else", object=f"folder {self._folder}", next_step="Set TMPDIR."
                )
            with contextlib.suppress(FileNotFoundError):
                held = os.open(self._folder / USED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(held, fcntl.LOCK_SH)
                if _is(held, self._folder / USED):
                    return held
                os.close(held)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        held = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield
        finally:
            os.close(held)


def _is(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    own = os.fstat(descriptor)
    return (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)


def restore_together(together: Together, saver: Saver, selector: Selector | None) -> SavedCheckpoint | None:
    """The same checkpoint on every rank, with what each of them means of it."""

    def latest() -> str:
        found = saver.latest
        return "" if found is None else found.id

    checkpoint = together.from_chief(latest)
    if not checkpoint:
        return None
    mine: list[SavedCheckpoint] = []
    together.made_of_all(lambda: mine.append(saver.fetched(checkpoint, selector)), lambda every: None, WORK_WITHIN_S)
    return mine[0]
