"""Checkpoints of a run by itself: folders beside each other in the run's own."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from clutch.runtime.local import CHECKPOINTS, UNSAFE, LocalFolder, read_json, write_whole
from clutch.runtime.saving import Begun, Kept, Wanted
from clutch.wire.errors import NotFound
from clutch.wire.push import SHA256_OF_NOTHING, CheckpointFile

if TYPE_CHECKING:
    from clutch.runtime.checkpoint_select import Selector


class LocalKeeper:
    """Checkpoints as folders. One counts when the file beside it says that it is whole."""

    def __init__(self, folder: LocalFolder) -> None:
        self._folder = folder
        self._drafts = 0

    def draft(self, step: int) -> Path:
        self._drafts += 1
        place = self._folder.made() / CHECKPOINTS
        place.mkdir(exist_ok=True)
        path = place / f".draft-{step}-{os.getpid()}-{self._drafts}"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return path

    def keep(self, folder: Path, wanted: Wanted) -> Kept:
        return self._named(folder, wanted)

    def begin(self, wanted: Wanted) -> Begun:
        """Ranks of one machine, or of one file system, copy their parts to where rank 0 says."""
        return Begun(id=_name(wanted), place=str(self.draft(wanted.step)))

    def store(self, folder: Path, begun: Begun, left_out: Collection[str] = ()) -> tuple[CheckpointFile, ...]:
        from clutch.runtime.checkpoint import hash_of, make_folder
        from clutch.runtime.checkpoint_folder import files_in

        found = [one for one in files_in(folder) if one.path not in left_out]
        for one in found:
            target = Path(begun.place) / one.path
            if one.is_folder:
                make_folder(Path(begun.place), one.path)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(one.place, target)
        return tuple(
            CheckpointFile(one.path, one.size_bytes, SHA256_OF_NOTHING if one.is_folder else hash_of(one.place))
            for one in found
        )

    def commit(self, begun: Begun, wanted: Wanted, files: tuple[CheckpointFile, ...]) -> Kept:
        return self._named(Path(begun.place), wanted)

    def abandon(self, begun: Begun) -> None:
        shutil.rmtree(begun.place, ignore_errors=True)

    def _named(self, folder: Path, wanted: Wanted) -> Kept:
        kept = Kept(id=_name(wanted), step=wanted.step, metadata=wanted.metadata)
        place = folder.parent
        note, target = place / f"{kept.id}.json", place / kept.id
        note.unlink(missing_ok=True)  # one of the same step is replaced, and counts for nothing while it is
        shutil.rmtree(target, ignore_errors=True)
        folder.rename(target)
        about = {"step": kept.step, "label": wanted.label, "metadata": kept.metadata, "at": time.time()}
        write_whole(note, json.dumps(about, indent=2) + "\n")
        return kept

    def latest(self) -> str:
        place = self._folder.path / CHECKPOINTS
        found: list[tuple[int, float, str]] = []
        for note in place.glob("*.json"):
            said = read_json(note)
            if isinstance(said, dict) and (place / note.stem).is_dir():
                found.append((int(said.get("step", 0)), float(said.get("at", 0.0)), note.stem))
        return max(found)[2] if found else ""

    def look(self, checkpoint: str) -> Kept:
        said = read_json(self._folder.path / CHECKPOINTS / f"{checkpoint}.json")
        if not isinstance(said, dict):
            raise NotFound("it is not there any more", object=f"checkpoint {checkpoint} in {self._folder.path}")
        return Kept(id=checkpoint, step=int(said["step"]), metadata=dict(said.get("metadata") or {}))

    def fetch(self, checkpoint: str, selector: Selector | None = None) -> Path:
        """All of it: it is here already."""
        self.look(checkpoint)
        return self._folder.path / CHECKPOINTS / checkpoint

    def close(self) -> None:
        return


def _name(wanted: Wanted) -> str:
    label = UNSAFE.sub("-", wanted.label)
    return f"step-{wanted.step:09d}{f'-{label}' if label else ''}"
