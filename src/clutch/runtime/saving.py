"""Checkpoints as a script writes and reads them: a folder to write into, a path to read from.

A folder that was filled becomes a checkpoint when the block that fills it ends: a ``Keeper`` stores it whole and only
then is it the latest. A block that raises leaves nothing. How it is kept is the keeper's: with the master
(``ClusterKeeper``) or in a folder (``runtime.local``).
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from clutch.wire.errors import Conflict, NotFound
from clutch.wire.metadata import meant
from clutch.wire.metadata import words as written

if TYPE_CHECKING:
    from clutch.runtime.checkpoint_select import Selector
    from clutch.runtime.silence import Silence
    from clutch.wire.push import CheckpointFile


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that is whole."""

    id: str
    step: int
    metadata: dict[str, str] = {}


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that shall be."""

    step: int
    label: str = ""
    metadata: dict[str, str] = {}


class Keeper(Protocol):
    """Where checkpoints are kept."""

    def draft(self, step: int) -> Path:
        """A new empty folder to fill."""
        ...

    def keep(self, folder: Path, wanted: Wanted) -> Kept:
        """It is durable, and the latest, when this returns. The folder is gone then."""
        ...

    def latest(self) -> str:
        """The id of the one to begin from; empty: there is none."""
        ...

    def look(self, checkpoint: str) -> Kept: ...

    def fetch(self, checkpoint: str, selector: Selector | None = None) -> Path:
        """A folder that holds it, or those of its files that are meant."""
        ...

    def close(self) -> None: ...


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that has a name and a place, and may come to nothing."""

    id: str
    place: str
    workspace: str = ""


class SharedKeeper(Keeper, Protocol):
    """Keeps checkpoints that several ranks bring together: rank 0 begins and commits, each stores its part."""

    def begin(self, wanted: Wanted) -> Begun: ...

    def store(self, folder: Path, begun: Begun, left_out: Collection[str] = ()) -> tuple[CheckpointFile, ...]:
        """What of the folder is there now: all but what is left out."""
        ...

    def commit(self, begun: Begun, wanted: Wanted, files: tuple[CheckpointFile, ...]) -> Kept:
        """It is durable, and the latest, when this returns."""
        ...

    def abandon(self, begun: Begun) -> None:
        """Nothing will come of it."""
        ...


class SavedCheckpoint:
    """A checkpoint to read from: use it as a path. Its files are fetched when the path is first asked for."""

    def __init__(
        self, keeper: Keeper, checkpoint: str, kept: Kept | None = None, selector: Selector | None = None
    ) -> None:
        self.id = checkpoint
        self._keeper = keeper
        self._kept = kept
        self._selector = selector
        self._path: Path | None = None

    @property
    def path(self) -> Path:
        """The folder with its files. Read only: it is removed when the run ends."""
        if self._path is None:
            self._path = self._keeper.fetch(self.id, self._selector)
        return self._path

    @property
    def step(self) -> int:
        return self._look().step

    @property
    def metadata(self) -> dict[str, Any]:
        """As it was given: numbers are numbers, lists are lists."""
        return {key: meant(word) for key, word in self._look().metadata.items()}

    def _look(self) -> Kept:
        if self._kept is None:
            self._kept = self._keeper.look(self.id)
        return self._kept

    def __fspath__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: str | os.PathLike[str]) -> Path:
        return self.path / name

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"SavedCheckpoint({self.id!r})"


class Saver:
    """The checkpoints of a run: those it writes, one after the other, and the latest."""

    def __init__(self, keeper: SharedKeeper) -> None:
        self.keeper = keeper
        self._latest: SavedCheckpoint | None = None
        self._asked = False
        self._under_way: _InBackground | None = None
        self._filling = False

    @property
    def latest(self) -> SavedCheckpoint | None:
        """The last one that is whole: of this run, or what it was given to begin from."""
        if not self._asked:
            self._asked = True
            found = self.keeper.latest()
            self._latest = SavedCheckpoint(self.keeper, found) if found else None
        return self._latest

    def begin(self, step: int, folder: Path | None = None) -> Path:
        """A folder to fill: a new one, or that of the caller."""
        if self._filling:
            raise Conflict(
                "another checkpoint of this run is being written",
                object=f"checkpoint of step {step}",
                next_step="End its block first.",
            )
        self.join()
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        found = folder if folder is not None else self.keeper.draft(step)
        self._filling = True
        return found

    def give_up(self, folder: Path | None) -> None:
        """None: what was filled is the caller's."""
        self._filling = False
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def saved(self, kept: Kept) -> None:
        """This is the latest one now."""
        self._asked = True
        self._latest = SavedCheckpoint(self.keeper, kept.id, kept)

    def fetched(self, checkpoint: str, selector: Selector | None) -> SavedCheckpoint:
        """One whose files are here, as far as they are meant."""
        found = SavedCheckpoint(self.keeper, checkpoint, None, selector)
        found.path  # noqa: B018
        return found

    def save(self, folder: Path, wanted: Wanted, done: Callable[[str], None], *, background: bool) -> None:
        self._filling = False
        if not folder.is_dir():
            raise NotFound(
                "the folder it was written into is gone",
                object=f"checkpoint of step {wanted.step} in {folder}",
                next_step="Write into the folder that run.checkpoint() gives, and do not move or remove it.",
            )
        if background:
            self._under_way = _InBackground(lambda: self._keep(folder, wanted, done))
        else:
            self._keep(folder, wanted, done)

    def _keep(self, folder: Path, wanted: Wanted, done: Callable[[str], None]) -> None:
        try:
            kept = self.keeper.keep(folder, wanted)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self.saved(kept)
        done(kept.id)

    def join(self) -> None:
        """Wait for a checkpoint that is stored in the background; what went wrong with it is raised here."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.join()

    def close(self) -> None:
        try:
            self.join()
        finally:
            self.keeper.close()


class Saving:
    """One checkpoint under way: ``with run.checkpoint(step) as path``. ``id`` is known when it is whole."""

    def __init__(
        self, saver: Saver, wanted: Wanted, *, background: bool = False, silence: Silence | None = None
    ) -> None:
        self._saver = saver
        self._silence = silence
        self._wanted = wanted
        self._background = background
        self._folder: Path | None = None
        self.id = ""

    def __enter__(self) -> Path:
        self._folder = self._saver.begin(self._wanted.step)
        return self._folder

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._folder is not None
        if kind is not None:
            self._saver.give_up(self._folder)
            return
        with self._silence or nullcontext():  # storing has its own deadlines
            self._saver.save(self._folder, self._wanted, self._done, background=self._background)

    def _done(self, checkpoint: str) -> None:
        self.id = checkpoint


class _InBackground:
    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._error: BaseException | None = None
        # Not a daemon: a checkpoint that was begun is finished before the interpreter ends
        self._thread = threading.Thread(target=self._run, name="clutch-checkpoint")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # raised where it is joined
            self._error = error

    def join(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error


def words(metadata: Mapping[str, Any] | None, step: int) -> dict[str, str]:
    """A checkpoint's metadata as it is kept."""
    return written(metadata, f"checkpoint of step {step}")


def new_folder(parent: str, prefix: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=prefix, dir=parent or None))
